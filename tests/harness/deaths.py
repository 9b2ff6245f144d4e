"""A coordinator that is dead at a chosen place, by its own doing (deaths.c), so that no timing decides where:

    deaths = Deaths(tmp_path / "deaths")
    cluster.coordinator_prefix = deaths.prefix
    deaths.before("the ranks save and leave: reason 7")   # Such a change of a job never comes to the disk.
    deaths.after("RUNNING -> PAUSING")                    # It is on disk, and nothing more is done about it.
"""

import os
import pathlib
import subprocess

_SOURCE = pathlib.Path(__file__).with_name("deaths.c")


class Deaths:
    def __init__(self, directory):
        self._directory = directory
        directory.mkdir()
        library = directory / "deaths.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, _SOURCE, "-ldl"], check=True)
        self.prefix = ["env", f"LD_PRELOAD={library}", f"FSDPD_DEATHS={directory}"]

    def before(self, text):
        """In place of a write with that text to the store."""
        self._meet("unwritten", text)

    def after(self, text):
        """Once a line of the log says that: lines tell of changes when they are stored, and before they are acted upon."""
        self._meet("written", text)

    def _meet(self, which, text):
        made = self._directory / f"new.{which}"
        made.write_text(text)
        os.rename(made, self._directory / which)

    def left(self):
        """What was to happen and did not."""
        return sorted(name for name in ("unwritten", "written") if (self._directory / name).exists())
