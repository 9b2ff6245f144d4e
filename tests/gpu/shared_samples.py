#!/usr/bin/env python3
"""Two GPUs that share each sample, by its tokens (parallel.context) or with each matrix too (parallel.tensor), have the losses
and gradient norms of two that have whole samples of their own.

    tests/gpu/shared_samples.py

A small Llama with grouped heads, twelve steps, in fp32 and in bf16, through coordinator, agent and ranks. In fp32 there is room for
other orders of summation; in bf16 they are held to twice the distance of whole samples in bf16 from those in fp32. Prints one line
of JSON a job with the largest relative differences. Needs the programs built with --config=cuda (FSDPD_BIN: where they are).
"""

import copy
import json
import pathlib
import subprocess
import sys
import tempfile

import yaml

RUN_JOBS = pathlib.Path(__file__).resolve().parents[1] / "perf/run_jobs.py"
FP32_BOUND = 2e-5
PRECISIONS = ("fp32", "bf16")
WAYS = {"whole": {}, "context": {"context": 2}, "tensor": {"tensor": 2}}
JOB = {
    "model": {"llama": {"vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1536, "layers": 4, "heads": 8, "kv_heads": 4}},
    "data": {"synthetic": {}, "sequence_length": 1024},
    "train": {"steps": 12, "micro_batch": 1, "global_batch": 4, "seed": 1},
    "optimizer": {"adamw": {"lr": 1e-3}, "clip_norm": 1.0},
    "resources": {"nodes": 1, "ranks_per_node": 2, "device": "cuda"},
}


def lines(directory):
    """What each job gave, by precision and way."""
    paths = []
    for precision in PRECISIONS:
        for way, parallel in WAYS.items():
            job = {"name": f"{precision}-{way}", **copy.deepcopy(JOB), "precision": {"compute": precision}, "parallel": parallel}
            paths.append(directory / f"{job['name']}.yaml")
            paths[-1].write_text(yaml.safe_dump(job))
    out = subprocess.run([sys.executable, RUN_JOBS, "--device", "cuda", *paths], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {pathlib.Path(line["spec"]).stem: line for line in map(json.loads, out.splitlines())}


def furthest(first, second):
    return max(abs(a - b) / abs(b) for a, b in zip(first, second, strict=True))


def main():
    with tempfile.TemporaryDirectory(prefix="fsdpd-shared-") as directory:
        found = lines(pathlib.Path(directory))
    within = True
    of = ("losses", "grad_norms")
    rounding = {each: furthest(found["bf16-whole"][each], found["fp32-whole"][each]) for each in of}
    for precision in PRECISIONS:
        whole = found[f"{precision}-whole"]
        bounds = {each: FP32_BOUND if precision == "fp32" else 2 * rounding[each] for each in of}
        for way in ("context", "tensor"):
            line = found[f"{precision}-{way}"]
            far = {each: furthest(line[each], whole[each]) for each in of}
            print(json.dumps({"job": line["spec"], **far, "bounds": bounds, "step_ms": line["step_ms_median"],
                              "planned_bytes": line["planned_bytes"], "peak_bytes": line["peak_bytes"],
                              "device_mallocs": line["steady_device_mallocs"]}), flush=True)
            within = within and all(far[each] <= bounds[each] for each in of)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
