#!/usr/bin/env python3
"""A job on GPUs that goes on from its checkpoint has the losses and the parameters of one that was not interrupted.

    tests/gpu/resume.py [--ranks 2]

Trains ten steps that save after the fifth, then five from that checkpoint: on as many GPUs, where every bit must be the
same (main parameters lie in halves there, and are joined on their way to the disk), and on one, where sums are ordered
otherwise. Prints one line of JSON. Needs //fsdp/engine:train_local built with --config=cuda (FSDPD_BIN: where it is).
"""

import argparse
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FSDPD_BIN", ROOT / ".build/bin"))
STEPS, SAVED = 10, 5
# Losses are near 8, and bf16 products of other shapes round otherwise.
TOLERANCE = 2e-3
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


def run(folder, ranks, checkpoint):
    job = copy.deepcopy(JOB)
    job["resources"]["ranks_per_node"], job["checkpoint"] = ranks, checkpoint
    spec, weights = folder / "job.json", folder / "weights"
    spec.write_text(json.dumps(job))
    command = [BIN / "fsdp/engine/train_local", "--spec", spec, "--device", "cuda", "--dump-weights", weights]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600,
                          env={**os.environ, "NCCL_NVLS_ENABLE": "0"})
    if done.returncode != 0:
        sys.exit(done.stderr)
    return [float(line) for line in done.stdout.split()], weights.read_bytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        runs = folder / "runs"
        load = {"load": str(runs / f"iter_{SAVED:07d}")}
        plain, _ = run(folder, options.ranks, {})
        whole, weights = run(folder, options.ranks, {"dir": str(runs), "every_steps": SAVED})
        resumed, resumed_weights = run(folder, options.ranks, load)
        alone, _ = run(folder, 1, load)
    rest = whole[SAVED:]
    apart = max(abs(one / other - 1) for one, other in zip(rest, alone, strict=True))
    print(json.dumps({"losses": rest, "resumed": resumed, "on_one": alone, "apart_on_one": apart}), flush=True)
    faults = []
    if whole != plain:
        faults.append("saving changed a loss")
    if resumed != rest or resumed_weights != weights:
        faults.append("a job that goes on has other numbers than one that was not interrupted")
    if apart > TOLERANCE:
        faults.append(f"on one GPU losses are {apart:.2e} apart")
    sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
