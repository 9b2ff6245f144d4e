"""Line coverage by directory, which `tests/run coverage` prints, from the summary that llvm-cov exports."""

import pathlib
from collections import defaultdict
from dataclasses import dataclass

# What is aimed at, and in which rooms: what a job passes through.
AIM_PERCENT = 90
AIMED = ("coordinator", "agent", "client", "fsdp/plan", "fsdp/comm", "fsdp/engine")
# So many files with the most lines that no test runs are named below the table.
HOLES = 10


@dataclass
class Lines:
    count: int = 0
    covered: int = 0

    @property
    def percent(self):
        return 100 * self.covered / self.count if self.count else 100.0

    @property
    def missed(self):
        return self.count - self.covered


def by_file(exported, counted):
    """Returns the lines of each shipped file of this repository for which `counted` is true."""
    files = {}
    for file in exported["data"][0]["files"]:
        path = pathlib.PurePosixPath(file["filename"])
        if counted(path):
            lines = file["summary"]["lines"]
            files[path] = Lines(lines["count"], lines["covered"])
    return files


def by_room(files):
    rooms = defaultdict(Lines)
    for path, lines in files.items():
        room = rooms[str(path.parent)]
        room.count += lines.count
        room.covered += lines.covered
    return dict(rooms)


def aimed(room):
    return any(room == each or room.startswith(each + "/") for each in AIMED)


def table(files):
    rows = [f"{'room':<24} {'lines':>6} {'run':>6} {'':>6}"]
    for room, lines in sorted(by_room(files).items()):
        below = f"  below {AIM_PERCENT}%" if aimed(room) and lines.percent < AIM_PERCENT else ""
        rows.append(f"{room:<24} {lines.count:>6} {lines.covered:>6} {lines.percent:>5.1f}%{below}")
    rows.append("\nmost lines that no test runs:")
    worst = sorted(files.items(), key=lambda item: -item[1].missed)[:HOLES]
    rows += [f"  {lines.missed:>4} of {lines.count:<5} {path}" for path, lines in worst if lines.missed]
    return "\n".join(rows)
