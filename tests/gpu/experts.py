#!/usr/bin/env python3
"""A model with experts has the losses on GPUs that it has on CPU ranks: with all experts on each rank, and with two ranks that have
them among them (parallel.expert).

    tests/gpu/experts.py

A small Mixtral-like model, ten steps, through coordinator, agents and ranks: in fp32 on one CPU rank, which the others are compared
with; in fp32 on one GPU and on two, to the room for other orders of summation; in bf16 likewise, where one GPU is held to a bound of
rounding and two of them to twice the distance that one has. Two GPUs only where there are two. Prints one line of JSON a job with the
largest relative differences. Needs the programs built with --config=cuda (FSDPD_BIN: where they are).
"""

import copy
import json
import pathlib
import subprocess
import sys
import tempfile

import yaml

RUN_JOBS = pathlib.Path(__file__).resolve().parents[1] / "perf/run_jobs.py"
GPUS = len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))
FP32_BOUND, BF16_BOUND = 5e-5, 2e-2
JOB = {
    "model": {"llama": {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 384, "layers": 4, "heads": 4, "kv_heads": 2,
                        "experts": {"count": 8, "per_token": 2, "intermediate_size": 96, "dense_layers": 1, "balance_loss": 0.01,
                                    "z_loss": 0.001}}},
    # Fewer words than the model has: there is something to learn.
    "data": {"synthetic": {"vocab": 64}, "sequence_length": 128},
    "train": {"steps": 10, "micro_batch": 2, "global_batch": 8, "seed": 1},
    "optimizer": {"adamw": {"lr": 1e-3}, "clip_norm": 1.0},
}


def jobs():
    """Names, and what each says of ranks and precision: device, ranks, expert, compute."""
    found = {"cpu-fp32": ("cpu", 1, 1, "fp32"), "cpu-2-expert": ("cpu", 2, 2, "fp32")}
    for compute in ("fp32", "bf16"):
        found[f"gpu-{compute}"] = ("cuda", 1, 1, compute)
        if GPUS >= 2:
            found[f"gpu-{compute}-2"] = ("cuda", 2, 1, compute)
            found[f"gpu-{compute}-2-expert"] = ("cuda", 2, 2, compute)
    return found


def train(folder, device, named):
    paths = []
    for name, (_, ranks, expert, compute) in named.items():
        job = {"name": name, **copy.deepcopy(JOB), "precision": {"compute": compute}, "parallel": {"expert": expert},
               "resources": {"nodes": 1, "ranks_per_node": ranks, "device": device}}
        paths.append(folder / f"{name}.yaml")
        paths[-1].write_text(yaml.safe_dump(job))
    slots = max(ranks for _, ranks, _, _ in named.values())
    out = subprocess.run([sys.executable, RUN_JOBS, "--device", device, "--slots", str(slots), *paths], check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return {pathlib.Path(line["spec"]).stem: line for line in map(json.loads, out.splitlines())}


def furthest(line, other, what):
    return max(abs(a - b) / abs(b) for a, b in zip(line[what], other[what], strict=True))


def main():
    found = {}
    with tempfile.TemporaryDirectory(prefix="fsdpd-experts-") as folder:
        for device in ("cpu", "cuda"):
            named = {name: job for name, job in jobs().items() if job[0] == device}
            found |= train(pathlib.Path(folder), device, named)
    alone, within = found["cpu-fp32"], True
    rounding = {what: furthest(found["gpu-bf16"], alone, what) for what in ("losses", "grad_norms")}
    for name, line in found.items():
        far = {what: furthest(line, alone, what) for what in ("losses", "grad_norms")}
        bound = dict.fromkeys(far, FP32_BOUND)
        if "bf16" in name:
            bound = {"losses": BF16_BOUND, "grad_norms": 10 * BF16_BOUND}
            if name != "gpu-bf16":
                bound = {what: max(bound[what], 2 * rounding[what]) for what in far}
        print(json.dumps({"job": name, **far, "bounds": bound, "losses_of": [line["losses"][0], line["losses"][-1]],
                          "step_ms": line["step_ms_median"], "planned_bytes": line["planned_bytes"], "peak_bytes": line["peak_bytes"],
                          "device_mallocs": line["steady_device_mallocs"]}), flush=True)
        within = within and all(far[what] <= bound[what] for what in far)
    return 0 if within and alone["losses"][-1] < alone["losses"][0] else 1


if __name__ == "__main__":
    sys.exit(main())
