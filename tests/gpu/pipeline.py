#!/usr/bin/env python3
"""Tests that a model in two pipeline stages on two GPUs (parallel.pipeline) has the losses of one GPU, with the default
schedule and with deferred weight gradients.

    tests/gpu/pipeline.py

A small Llama trains ten steps of four micro-batches through coordinator, agents and ranks, in fp32 and bf16: on one GPU, on two
without stages, and on two stages, which must not allocate device memory when warm. same_losses.py has the tolerances. Needs two
GPUs. Prints one JSON line per job with the largest relative differences. Needs the programs built with --config=cuda
(FSDPD_BIN: their directory).
"""

import pathlib
import sys

from same_losses import compare

GPUS = len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))
JOB = {
    "model": {"llama": {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 384, "layers": 6, "heads": 4, "kv_heads": 2,
                        "tied_embeddings": True}},
    # Fewer words than the model has: there is something to learn.
    "data": {"synthetic": {"vocab": 64}, "sequence_length": 128},
    "train": {"steps": 10, "micro_batch": 2, "global_batch": 8, "seed": 1},
    "optimizer": {"adamw": {"lr": 1e-3}, "clip_norm": 1.0},
}
STAGES = {
    "stages": ("optim_grads_params", {"pipeline": 2}),
    "zero-bubble": ("optim", {"pipeline": 2, "pipeline_schedule": "zero_bubble"}),
}


def job(device, ranks, compute, strategy="optim_grads_params", parallel=None):
    return {**JOB, "precision": {"compute": compute, "grad_comm": "fp32"}, "parallel": parallel or {}, "fsdp": {"strategy": strategy},
            "resources": {"nodes": 1, "ranks_per_node": ranks, "device": device}}


def jobs():
    found = {"cpu-fp32": job("cpu", 1, "fp32"), "cpu-2-stages": job("cpu", 2, "fp32", *STAGES["stages"])}
    for compute in ("fp32", "bf16"):
        found[f"gpu-{compute}"] = job("cuda", 1, compute)
        found[f"gpu-{compute}-2"] = job("cuda", 2, compute)
        for name, stages in STAGES.items():
            found[f"gpu-{compute}-2-{name}"] = job("cuda", 2, compute, *stages)
    return found


def main():
    if GPUS < 2:
        sys.exit("two GPUs are needed")
    found, within = compare(jobs())
    staged = [line for name, line in found.items() if name.startswith("gpu") and name.endswith(tuple(STAGES))]
    return 0 if within and not any(line["steady_device_mallocs"] for line in staged) else 1


if __name__ == "__main__":
    sys.exit(main())
