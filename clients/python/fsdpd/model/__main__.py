from fsdpd.model.command import main

# Processes that compile import this module too.
if __name__ == "__main__":
    main()
