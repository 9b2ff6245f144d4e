#!/usr/bin/env python3
"""A model in two stages on two GPUs (parallel.pipeline) has the losses that it has on one: plain, with two chunks a stage, and with
gradients of matrices put off.

    tests/gpu/pipeline.py

A small Llama, ten steps of four micro-batches, through coordinator, agents and ranks: in fp32 on one CPU rank, which the others are
compared with; in fp32 on one GPU, on two without stages and on two in stages, to the room for other orders of summation; in bf16
likewise, where one GPU is held to a bound of rounding and two of them to twice the distance that one has. Needs two GPUs, and while
parallel_pipeline_on_cpu is among the rules (fsdp/plan/rules/pipeline_rules.cc) a build without it. Prints one line of JSON a job with
the largest relative differences. Needs the programs built with --config=cuda (FSDPD_BIN: where they are).
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
    "model": {"llama": {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 384, "layers": 6, "heads": 4, "kv_heads": 2,
                        "tied_embeddings": True}},
    # Fewer words than the model has: there is something to learn.
    "data": {"synthetic": {"vocab": 64}, "sequence_length": 128},
    "train": {"steps": 10, "micro_batch": 2, "global_batch": 8, "seed": 1},
    "optimizer": {"adamw": {"lr": 1e-3}, "clip_norm": 1.0},
}
STAGES = {
    "stages": ("optim_grads_params", {"pipeline": 2}),
    "chunks": ("optim_grads_params", {"pipeline": 2, "pipeline_chunks": 2}),
    "zero-bubble": ("optim", {"pipeline": 2, "pipeline_schedule": "zero_bubble"}),
}


def jobs():
    """Names, and what each says: device, ranks, compute, strategy, parallel."""
    plain = "optim_grads_params"
    found = {"cpu-fp32": ("cpu", 1, "fp32", plain, {}), "cpu-2-stages": ("cpu", 2, "fp32", *STAGES["stages"])}
    for compute in ("fp32", "bf16"):
        found[f"gpu-{compute}"] = ("cuda", 1, compute, plain, {})
        found[f"gpu-{compute}-2"] = ("cuda", 2, compute, plain, {})
        for name, (strategy, parallel) in STAGES.items():
            found[f"gpu-{compute}-2-{name}"] = ("cuda", 2, compute, strategy, parallel)
    return found


def train(folder, device, named):
    paths = []
    for name, (_, ranks, compute, strategy, parallel) in named.items():
        job = {"name": name, **copy.deepcopy(JOB), "precision": {"compute": compute, "grad_comm": "fp32"}, "parallel": parallel,
               "fsdp": {"strategy": strategy}, "resources": {"nodes": 1, "ranks_per_node": ranks, "device": device}}
        paths.append(folder / f"{name}.yaml")
        paths[-1].write_text(yaml.safe_dump(job))
    slots = max(ranks for _, ranks, *_ in named.values())
    out = subprocess.run([sys.executable, RUN_JOBS, "--device", device, "--slots", str(slots), *paths], check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return {pathlib.Path(line["spec"]).stem: line for line in map(json.loads, out.splitlines())}


def furthest(line, other, what):
    return max(abs(a - b) / abs(b) for a, b in zip(line[what], other[what], strict=True))


def main():
    if GPUS < 2:
        sys.exit("two GPUs are needed")
    found = {}
    with tempfile.TemporaryDirectory(prefix="fsdpd-pipeline-") as folder:
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
        within = within and ("stages" not in name or name.startswith("cpu") or line["steady_device_mallocs"] == 0)
    return 0 if within and alone["losses"][-1] < alone["losses"][0] else 1


if __name__ == "__main__":
    sys.exit(main())
