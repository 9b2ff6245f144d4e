"""Content of a job's checkpoints, read through `fsdpctl ckpt inspect` and the files."""

import json
import pathlib

from harness.cluster import fsdpctl


def steps_in(directory):
    """Steps of the committed checkpoints in a job's directory, ascending."""
    return sorted(int(path.parent.name[len("iter_"):]) for path in pathlib.Path(directory).glob("iter_*/.metadata")
                  if not path.parent.name.endswith(".damaged"))


def path_of(directory, step):
    return pathlib.Path(directory) / f"iter_{step:07d}"


def assert_whole(directory):
    """Verifies each checkpoint of a job with `fsdpctl ckpt verify`. Returns their steps."""
    steps = steps_in(directory)
    for step in steps:
        assert fsdpctl("ckpt", "verify", path_of(directory, step)).expect(0).out.endswith(": intact\n")
    return steps


def records(path):
    """Returns {(tensor, *offsets): bytes of the chunk}. Equal results for two checkpoints of one layout mean bitwise
    equal numbers."""
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
    """Flips one bit in the middle of a file."""
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def truncate(path):
    """Truncates a file to half its size, like a torn write."""
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
