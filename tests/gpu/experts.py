#!/usr/bin/env python3
"""Tests that a mixture-of-experts model has the same losses on GPUs as on CPU ranks: with all experts on each rank, and with
expert parallelism (parallel.expert), also combined with context parallelism and pipeline stages.

    tests/gpu/experts.py

A small Mixtral-like model trains ten steps through coordinator, agents and ranks, in fp32 and bf16, on up to four GPUs, and
again with selection biases. same_losses.py has the tolerances. Prints one JSON line per job with the largest relative
differences. Needs the programs built with --config=cuda (FSDPD_BIN: their directory).
"""

import pathlib
import sys

from same_losses import compare

# As DeepSeek-V3 balances, without a loss.
BALANCED = {"scores": "sigmoid", "selection_bias": True, "bias_update_rate": 0.01}

# A name, ranks, and how they share.
WAYS = [("", 1, {}), ("-2", 2, {}), ("-2-expert", 2, {"expert": 2}), ("-4-context-expert", 4, {"context": 2, "expert": 2}),
        ("-4-expert", 4, {"expert": 4}), ("-4-stages-expert", 4, {"pipeline": 2, "expert": 2})]
GPUS = len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))
JOB = {
    "model": {"llama": {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 384, "layers": 4, "heads": 4, "kv_heads": 2,
                        "experts": {"count": 8, "per_token": 2, "intermediate_size": 96, "dense_layers": 1, "balance_loss": 0.01,
                                    "z_loss": 0.001}}},
    # Fewer words than the model has: there is something to learn.
    "data": {"synthetic": {"vocab": 64}, "sequence_length": 128},
    "train": {"steps": 10, "micro_batch": 2, "global_batch": 8, "seed": 1},
    "optimizer": {"adamw": {"lr": 1e-3}, "clip_norm": 1.0},
}


def job(device, ranks, parallel, compute, balanced):
    llama = JOB["model"]["llama"]
    experts = {**llama["experts"], **(BALANCED if balanced else {})}
    return {**JOB, "model": {"llama": {**llama, "experts": experts}}, "precision": {"compute": compute}, "parallel": parallel,
            "resources": {"nodes": 1, "ranks_per_node": ranks, "device": device}}


def jobs(balanced):
    found = {"cpu-fp32": job("cpu", 1, {}, "fp32", balanced), "cpu-2-expert": job("cpu", 2, {"expert": 2}, "fp32", balanced)}
    for compute in ("fp32", "bf16"):
        for name, ranks, parallel in WAYS:
            if GPUS >= ranks:
                found[f"gpu-{compute}{name}"] = job("cuda", ranks, parallel, compute, balanced)
    return found


if __name__ == "__main__":
    # Not `and`: print both.
    sys.exit(0 if all([compare(jobs(balanced))[1] for balanced in (False, True)]) else 1)
