"""Coordinator that kills itself at a chosen point (deaths.c), independent of timing:

    deaths = Deaths(tmp_path / "deaths")
    cluster.coordinator_prefix = deaths.prefix
    deaths.before("the ranks save and leave: reason 7")   # This change of a job is never written.
    deaths.after("RUNNING -> PAUSING")                    # It is written, but not acted on.
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
        """Dies instead of a write to the store that contains this text."""
        self._meet("unwritten", text)

    def after(self, text):
        """Dies after a log line that contains this text. Changes are logged after they are stored and before they
        are acted on."""
        self._meet("written", text)

    def _meet(self, which, text):
        made = self._directory / f"new.{which}"
        made.write_text(text)
        os.rename(made, self._directory / which)

    def left(self):
        """The points that were not reached."""
        return sorted(name for name in ("unwritten", "written") if (self._directory / name).exists())
