#!/usr/bin/env python3
"""Tests that LoRA jobs have the same losses on GPUs as on CPU ranks, with frozen weights in precision.compute and in NF4.

    tests/gpu/lora.py

A small Llama trains adapters for ten steps through coordinator, agents and ranks, in fp32 and bf16, on up to two GPUs: each
step as one CUDA graph and without graphs, with recomputation, and with tensor parallelism. same_losses.py has the tolerances.
Prints one JSON line per job with the largest relative differences. Needs the programs built with --config=cuda (FSDPD_BIN:
their directory).
"""

import pathlib
import sys

from same_losses import compare

# A name, ranks, and settings.
WAYS = [("", 1, {"train": {"graphs": True}}), ("-launches", 1, {"train": {"graphs": False}}),
        ("-recompute", 1, {"fsdp": {"recompute": "full"}}), ("-2", 2, {}), ("-2-tensor", 2, {"parallel": {"tensor": 2}})]
GPUS = len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))
JOB = {
    "model": {"llama": {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 384, "layers": 4, "heads": 4, "kv_heads": 2}},
    # Fewer words than the model has: there is something to learn.
    "data": {"synthetic": {"vocab": 64}, "sequence_length": 128},
    "train": {"steps": 10, "micro_batch": 2, "global_batch": 8, "seed": 1},
    "optimizer": {"adamw": {"lr": 2e-3}, "clip_norm": 1.0},
}


def job(device, ranks, settings, compute, base_type):
    train = {**JOB["train"], "lora": {"rank": 8, "base_type": base_type}, **settings.get("train", {})}
    return {**JOB, **settings, "train": train, "precision": {"compute": compute},
            "resources": {"nodes": 1, "ranks_per_node": ranks, "device": device}}


def jobs(base_type):
    found = {"cpu-fp32": job("cpu", 1, {}, "fp32", base_type), "cpu-2": job("cpu", 2, {}, "fp32", base_type)}
    for compute in ("fp32", "bf16"):
        for name, ranks, settings in WAYS:
            if GPUS >= ranks:
                found[f"gpu-{compute}{name}"] = job("cuda", ranks, settings, compute, base_type)
    return found


if __name__ == "__main__":
    # Not `and`: print both.
    sys.exit(0 if all([compare(jobs(base_type))[1] for base_type in ("compute", "nf4")]) else 1)
