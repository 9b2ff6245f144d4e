#!/usr/bin/env python3
"""Tests that copy engines, not NCCL kernels, run all-gathers and 16-bit reductions if memory windows reach all GPUs.

    tests/gpu/copy_engines.py

Trains a few steps on two GPUs twice with train_local, which traces its kernels. With 16-bit gradients on the wire the only
NCCL kernel in the trace is the all-reduce of the norm, and device-to-device copies move the rest. With 32-bit gradients the
reduction is a kernel, which proves that the trace shows NCCL's kernels. Prints one JSON line per run. Needs
//fsdp/engine:train_local built with --config=cuda (FSDPD_BIN: its directory).
"""

import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FSDPD_BIN", ROOT / ".build/bin"))
STEPS = 5
JOB = {
    "name": "copy-engines",
    "model": {"llama": {"vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 4096, "layers": 4, "heads": 8,
                        "kv_heads": 8}},
    "data": {"synthetic": {"vocab": 4096}, "sequence_length": 1024},
    "train": {"steps": STEPS, "micro_batch": 1, "global_batch": 2},
    "optimizer": {"adamw": {"lr": 1e-4}},
    "fsdp": {"strategy": "STRATEGY_OPTIM_GRADS_PARAMS"},
    "resources": {"nodes": 1, "ranks_per_node": 2, "device": "DEVICE_CUDA"},
}


def traced(directory, wire):
    """Returns the counts of kernels and copies of a run by name."""
    spec, trace = directory / "job.json", directory / "kernels.json"
    spec.write_text(json.dumps({**JOB, "precision": {"compute": "DTYPE_BF16", "grad_comm": wire}}))
    command = [BIN / "fsdp/engine/train_local", "--spec", spec, "--device", "cuda", "--kernels", trace]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600,
                          env={**os.environ, "NCCL_NVLS_ENABLE": "0"})
    if done.returncode != 0:
        sys.exit(done.stderr)
    events = json.loads(trace.read_text())["traceEvents"]
    return collections.Counter(event["name"] for event in events if "device" in event.get("args", {}))


def main():
    with tempfile.TemporaryDirectory() as directory:
        narrow, wide = (traced(pathlib.Path(directory), wire) for wire in ("DTYPE_BF16", "DTYPE_FP32"))
    faults = []
    for wire, names in (("bf16", narrow), ("fp32", wide)):
        nccl = {name: count for name, count in names.items() if name.startswith("nccl")}
        copies = sum(count for name, count in names.items() if name.startswith("Memcpy"))
        print(json.dumps({"wire": wire, "nccl_kernels": nccl, "copies": copies}), flush=True)
        allowed = ("AllReduce",) if wire == "bf16" else ("AllReduce", "ReduceScatter")
        faults += [f"{wire}: {name} {count} times" for name, count in nccl.items() if not any(word in name for word in allowed)]
        if not any("AllReduce" in name for name in nccl):
            faults.append(f"{wire}: no all-reduce of the norm, so this trace does not show NCCL's kernels")
    if not any("ReduceScatter" in name for name in wide):
        faults.append("fp32: no kernel reduces gradients, so this trace does not show NCCL's kernels")
    if faults:
        sys.exit("moved by kernels and not by copy engines:\n" + "\n".join(faults))


if __name__ == "__main__":
    main()
