from fsdpd.data.command import main

main()
