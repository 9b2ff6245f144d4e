"""Exit codes of `fsdpctl data` and `fsdpctl model`, which are those of fsdpctl (docs/fsdpctl.md), and their exception."""

OK = 0
WRONG_USAGE = 2  # Invalid arguments, or a file that cannot be read or written.
NOT_WRITTEN = 8  # Writing to stdout failed.
DAMAGED = 9  # A token file is invalid.
INTERRUPTED = 130


class Fault(Exception):
    """An error in the user's input or files. The message starts with the place."""
