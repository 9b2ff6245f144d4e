#!/usr/bin/env python3
"""Tests that a GPU job which resumes from a checkpoint has bit-identical parameters, and the losses of an uninterrupted run.

    tests/gpu/resume.py [--ranks 2]

Trains ten steps with saves after the fifth and the last. Loading the last checkpoint without further steps must return every
bit (main parameters are split fp32 in memory, and joined for the disk), on several GPUs and on one. Five steps from the fifth
must end like the uninterrupted run, within the difference of two runs of one job: several GPUs in one process choose among
matrix-product kernels that round differently. Prints one JSON line. Needs //fsdp/engine:train_local built with --config=cuda
(FSDPD_BIN: its directory).
"""

import argparse
import copy
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FSDPD_BIN", ROOT / ".build/bin"))
STEPS, SAVED = 10, 5
# Two runs of this job were up to 5e-5 apart in losses, and resumed ones by 0.2% of what five steps move.
LOSS_TOLERANCE, WEIGHT_TOLERANCE = 2e-4, 0.1
JOB = {
    "name": "resume",
    "model": {"llama": {"vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 4096, "layers": 4, "heads": 8,
                        "kv_heads": 4}},
    "data": {"synthetic": {"vocab": 4096}, "sequence_length": 1024},
    "train": {"steps": STEPS, "micro_batch": 1, "global_batch": 4},
    "optimizer": {"adamw": {"lr": 1e-3}, "clip_norm": 1.0},
    "precision": {"compute": "DTYPE_BF16"},
    "fsdp": {"strategy": "STRATEGY_OPTIM_GRADS_PARAMS"},
    "resources": {"nodes": 1, "ranks_per_node": 2, "device": "DEVICE_CUDA"},
}


def run(directory, ranks, checkpoint, steps=STEPS):
    """Runs one job with its files in `dir`."""
    job = copy.deepcopy(JOB)
    job["resources"]["ranks_per_node"], job["checkpoint"], job["train"]["steps"] = ranks, checkpoint, steps
    spec, weights = directory / "job.json", directory / "weights"
    spec.write_text(json.dumps(job))
    command = [BIN / "fsdp/engine/train_local", "--spec", spec, "--device", "cuda", "--dump-weights", weights, "--job", "resume"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600,
                          env={**os.environ, "NCCL_NVLS_ENABLE": "0"})
    if done.returncode != 0:
        sys.exit(done.stderr)
    return [float(line) for line in done.stdout.split()], numpy.fromfile(weights, dtype=numpy.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    faults, reported = [], {}
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        runs = directory / "runs"
        losses, end = run(directory, options.ranks, {"dir": str(runs), "every_steps": SAVED})
        saved = pathlib.Path("middle") / f"iter_{SAVED:07d}"  # Where it is the last, there is nothing to do.
        shutil.copytree(runs / saved.name, directory / saved)
        _, middle = run(directory, options.ranks, {"dir": str(directory / "middle")}, SAVED)
        moved = numpy.linalg.norm(end - middle)
        for ranks in (options.ranks, 1):
            none, loaded = run(directory, ranks, {"dir": str(runs), "every_steps": SAVED})
            if none or loaded.tobytes() != end.tobytes():
                faults.append(f"on {ranks} GPUs what was loaded is not what was saved")
            resumed, weights = run(directory, ranks, {"load": str(runs / f"iter_{SAVED:07d}")})
            apart = max(abs(one / other - 1) for one, other in zip(losses[SAVED:], resumed, strict=True))
            weights_apart = float(numpy.linalg.norm(weights - end) / moved)
            reported[f"on {ranks}"] = {"losses_apart": apart, "weights_apart": weights_apart}
            if apart > LOSS_TOLERANCE or weights_apart > WEIGHT_TOLERANCE:
                faults.append(f"on {ranks} GPUs a job that goes on ends elsewhere than one that was not interrupted")
    print(json.dumps(reported), flush=True)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
