"""What a job's checkpoints hold, read from outside: by fsdpctl's words for where things lie, and the files."""

import json
import pathlib

from harness.cluster import fsdpctl


def steps_in(directory):
    """Steps of the checkpoints in a job's directory that are committed, ascending."""
    return sorted(int(path.parent.name[len("iter_"):]) for path in pathlib.Path(directory).glob("iter_*/.metadata")
                  if not path.parent.name.endswith(".damaged"))


def path_of(directory, step):
    return pathlib.Path(directory) / f"iter_{step:07d}"


def assert_whole(directory):
    """Each of a job's checkpoints, by `fsdpctl ckpt verify`; the steps."""
    steps = steps_in(directory)
    for step in steps:
        assert fsdpctl("ckpt", "verify", path_of(directory, step)).expect(0).out.endswith(": intact\n")
    return steps


def records(path):
    """By tensor and the place of each chunk in it, the chunk's record: two checkpoints of one layout that have the same
    ones hold the same numbers, bit by bit."""
    report = json.loads(fsdpctl("ckpt", "inspect", path, "-o", "json").expect(0).out)
    found = {}
    for tensor in report["tensors"]:
        for chunk in tensor["chunks"]:
            with open(pathlib.Path(path) / chunk["file"], "rb") as file:
                file.seek(int(chunk["begin"]))
                place = (tensor["name"], *(int(each) for each in chunk["offsets"]))
                found[place] = file.read(int(chunk["bytes"]))
    assert found, f"{path} has no tensors"
    return found


def flip(path):
    """One bit in the middle of a file."""
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def truncate(path):
    """A file ends in its middle, as one that was torn."""
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
