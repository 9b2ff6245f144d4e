#!/usr/bin/env python3
"""Tests that two GPUs with context parallelism (parallel.context) or tensor parallelism (parallel.tensor) have the losses and
gradient norms of two GPUs with whole samples.

    tests/gpu/shared_samples.py

A small Llama with grouped-query attention trains twelve steps in fp32 and bf16 through coordinator, agent and ranks. In fp32 the
tolerance allows for other summation orders. In bf16 the difference may be twice that of whole samples in bf16 from fp32. Prints
one JSON line per job with the largest relative differences. Needs the programs built with --config=cuda (FSDPD_BIN: their
directory).
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
    """Returns the result of each job by precision and configuration."""
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
