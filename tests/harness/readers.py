"""TensorBoard and W&B's client (third_party/readers.txt), which read the output of `fsdpctl export`. Each call is a
separate process, because they need another protobuf version."""

import functools
import json
import os
import subprocess
import sys

from harness.cached import made_once, pip_install
from harness.programs import ROOT

PINS = ROOT / "third_party/readers.txt"

_TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
tags = events.Tags()["scalars"]
print(json.dumps({tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in tags}))
"""

_WANDB = """
import json, wandb
run = wandb.init(mode="offline", project="exports")
"""

# Reads the run's file: records in LevelDB's log format, in blocks of 32 KiB, with a header of seven bytes per part.
_WANDB_FILE = """
import json, pathlib, struct, sys
from wandb.proto import wandb_internal_pb2
path, = pathlib.Path(sys.argv[1]).glob("wandb/offline-run-*/run-*.wandb")
data, at, record, rows = path.read_bytes(), 7, b"", []
while at < len(data):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    size, kind = struct.unpack_from("<HB", data, at + 4)
    record = (b"" if kind in (1, 2) else record) + data[at + 7:at + 7 + size]
    at += 7 + size
    if kind in (1, 4):
        history = wandb_internal_pb2.Record.FromString(record).history
        if history.item:
            rows.append({each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in history.item})
print(json.dumps(rows))
"""


@functools.lru_cache(maxsize=None)
def installed():
    """Their directory, for PYTHONPATH; created once per version in the user's cache."""
    return made_once("readers", [PINS], lambda directory: pip_install(PINS, directory, "--require-hashes"))


def _said(script, directory):
    done = subprocess.run([sys.executable, "-c", script, directory], cwd=directory, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(installed())})
    assert done.returncode == 0, done.stderr
    return done.stdout


def tensorboard(directory):
    """{tag: [[step, value]]} of all scalars that TensorBoard finds below the directory."""
    return json.loads(_said(_TENSORBOARD, directory))


def wandb_run(directory, logged):
    """Rows in the file of an offline run in which the Python lines `logged` were executed."""
    _said(f"{_WANDB}{logged}\nrun.finish()", directory)
    return json.loads(_said(_WANDB_FILE, directory))
