"""How `fsdpctl data` ends: the exit codes are fsdpctl's (docs/fsdpctl.md)."""

OK = 0
WRONG_USAGE = 2  # Or a file that cannot be read or written.
NOT_WRITTEN = 8  # Stdout did not take what was asked for.
DAMAGED = 9  # A token file has a fault.
INTERRUPTED = 130


class Fault(Exception):
    """What a person's input, file or disk caused, in words that name the place."""
