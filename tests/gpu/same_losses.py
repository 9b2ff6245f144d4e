"""Comparison of jobs of one model on CPU ranks and GPUs: all must have the losses and gradient norms of one CPU rank in fp32.

In fp32 the tolerance allows for other summation orders. In bf16 one GPU has a bound for rounding, and several GPUs may differ
by twice the distance of one GPU. Names of jobs have meanings: "cpu-fp32" is the reference, "gpu-bf16" the one GPU.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import yaml

RUN_JOBS = pathlib.Path(__file__).resolve().parents[1] / "perf/run_jobs.py"
FP32_BOUND, BF16_BOUND = 5e-5, 2e-2
WHAT = ("losses", "grad_norms")


def train(directory, device, specs):
    """Returns the output of run_jobs.py for each job by name. One agent runs all of them."""
    paths = []
    for name, spec in specs.items():
        paths.append(directory / f"{name}.yaml")
        paths[-1].write_text(yaml.safe_dump({"name": name, **spec}))
    slots = max(spec["resources"]["ranks_per_node"] for spec in specs.values())
    out = subprocess.run([sys.executable, RUN_JOBS, "--device", device, "--slots", str(slots), *paths], check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return {pathlib.Path(line["spec"]).stem: line for line in map(json.loads, out.splitlines())}


def furthest(line, other, what):
    return max(abs(a - b) / abs(b) for a, b in zip(line[what], other[what], strict=True))


def compare(specs):
    """Runs the jobs and prints one JSON line per job; returns their results by name, and whether all are within bounds
    and their loss decreases."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="fsdpd-same-losses-") as directory:
        for device in ("cpu", "cuda"):
            found |= train(pathlib.Path(directory), device,
                           {name: spec for name, spec in specs.items() if spec["resources"]["device"] == device})
    alone, within = found["cpu-fp32"], True
    rounding = {what: furthest(found["gpu-bf16"], alone, what) for what in WHAT}
    for name, line in found.items():
        far = {what: furthest(line, alone, what) for what in WHAT}
        bound = dict.fromkeys(far, FP32_BOUND)
        if "bf16" in name:
            bound = {"losses": BF16_BOUND, "grad_norms": 10 * BF16_BOUND}
            if name != "gpu-bf16":
                bound = {what: max(bound[what], 2 * rounding[what]) for what in far}
        print(json.dumps({"job": name, **far, "bounds": bound, "losses_of": [line["losses"][0], line["losses"][-1]],
                          "step_ms": line["step_ms_median"], "planned_bytes": line["planned_bytes"], "peak_bytes": line["peak_bytes"],
                          "device_mallocs": line["steady_device_mallocs"]}), flush=True)
        within = within and all(far[what] <= bound[what] for what in far)
    return found, within and alone["losses"][-1] < alone["losses"][0]
