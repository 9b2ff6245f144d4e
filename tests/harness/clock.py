"""Command prefix that shifts a process's date (clock.c): cluster.coordinator_prefix = shifted_clock(directory,
-3600)."""

import pathlib
import subprocess

_SOURCE = pathlib.Path(__file__).with_name("clock.c")


def shifted_clock(directory, seconds):
    """Returns the command prefix."""
    library = directory / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, _SOURCE], check=True)
    return ["env", f"LD_PRELOAD={library}", f"FSDPD_CLOCK_SHIFT_S={seconds}"]
