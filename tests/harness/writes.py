"""Recorded writes of ranks to checkpoint directories, and injected errors or deaths at a chosen write (writes.c),
independent of timing.

    writes = Writes(tmp_path / "writes", tmp_path / "runs")
    cluster.start_agent("node-0", rank_binary=writes.rank_binary)
    ...  # a job saves below tmp_path / "runs"
    for write in writes.of(rank=0, step=10): ...
    writes.die(writes.of(rank=0, step=10)[3], step=15)   # Takes effect in a later save.
"""

import os
import pathlib
import subprocess
from dataclasses import dataclass

from harness.cluster import paced_rank

_SOURCE = pathlib.Path(__file__).with_name("writes.c")


@dataclass(frozen=True)
class Write:
    rank: int
    number: int  # Index within its save.
    what: str
    path: pathlib.Path

    def __str__(self):
        return f"{self.what} {self.path.name}"


class Writes:
    def __init__(self, directory, written):
        self.directory = directory
        directory.mkdir()
        library = directory / "writes.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, _SOURCE, "-ldl"], check=True)
        self.rank_binary = paced_rank(directory, library, FSDPD_WRITES=directory, FSDPD_WRITTEN=f"{written}/")

    def of(self, rank, step):
        """Writes of one undisturbed save, in order. Of consecutive writes to one file only the first and the last."""
        fields = [line.split(" ", 4) for line in (self.directory / "log").read_text().splitlines()]
        found = [Write(rank, int(number), what, pathlib.Path(path)) for by, at, number, what, path in fields
                 if (int(by), int(at)) == (rank, step)]
        alike = [write.what == "write" and {before.what, after.what} == {"write"}
                 for before, write, after in zip(found, found[1:], found[2:])]
        return [write for write, left_out in zip(found, [False, *alike, False]) if not left_out]

    def die(self, write, step):
        """Kills the rank before this write of the save of `step`, once."""
        self._meet(write, step, 0)

    def fail(self, write, step, error):
        """Makes this write of the save of `step` fail with an errno, once."""
        self._meet(write, step, error)

    def _meet(self, write, step, fate):
        name = f"{write.rank}.{step}.{write.number}"
        made = self.directory / f"new.{name}"
        made.write_text(str(fate))
        os.rename(made, self.directory / name)

    def left(self):
        """The injections that did not take effect."""
        return sorted(path.name for path in self.directory.glob("[0-9]*.[0-9]*.[0-9]*"))
