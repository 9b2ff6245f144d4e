#!/usr/bin/env python3
"""Measures the cost of telemetry per step: alternates the same job with and without it, from coordinator to ranks (run_jobs.py).

    tests/perf/telemetry_cost.py [--rounds 5] [--steps 300]
    tests/perf/telemetry_cost.py --device cuda docs/bench/specs/llama3-1b-s4096.yaml

Without a spec: the preset `tiny` on two CPU ranks. "Off" is FSDPD_MEASURE=off (fsdp/engine/executor.cc), which omits the work for
each instruction: the event at its start, the memory after it, its flight recorder entry, and the sums for the step's report. Both
have what is cheap or not only telemetry: events at the ends of instructions, which also order the step, the allocator's counters,
read once per step, and the report itself.

A step's time is from one report of rank 0 to the next, so that it includes host work between steps. The order within a round
alternates. Prints one JSON line: the median step of each run, the medians of both, and the median of the ratios of each round,
whose two runs saw the same state of the machine. Timings decide nothing. Needs only the built programs (FSDPD_BIN: their
directory).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import yaml

HERE = pathlib.Path(__file__).resolve().parent
TINY = {"name": "tiny", "model": {"preset": "tiny"}, "data": {"synthetic": {}, "sequence_length": 128},
        "train": {"micro_batch": 1, "global_batch": 2, "seed": 1}, "optimizer": {"adamw": {"lr": 1e-3}, "clip_norm": 1.0},
        "precision": {"compute": "fp32"}, "resources": {"nodes": 1, "ranks_per_node": 2, "device": "cpu"}}


def step_ms(path, telemetry, spec, options):
    resources = spec["resources"]
    command = [sys.executable, HERE / "run_jobs.py", "--device", options.device, "--agents", resources["nodes"], "--slots",
               resources["ranks_per_node"], "--warm-up", options.warm_up, path]
    done = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          env={**os.environ, "FSDPD_MEASURE": telemetry})
    return json.loads(done.stdout)["report_ms_median"]


def measure(spec, options):
    if options.steps:
        spec["train"]["steps"] = options.steps
    spec.setdefault("restart", {})["hang_seconds"] = 0  # Without flight recorders nothing seems to move.
    spec["resources"]["device"] = options.device
    times = {"on": [], "off": []}
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / f"{spec['name']}.yaml"
        path.write_text(yaml.safe_dump(spec))
        for number in range(options.rounds):
            for telemetry in (list(times), list(times)[::-1])[number % 2]:
                times[telemetry].append(step_ms(path, telemetry, spec, options))
    medians = {telemetry: statistics.median(each) for telemetry, each in times.items()}
    ratios = [on / off for on, off in zip(times["on"], times["off"])]
    return {"what": "telemetry_cost", "spec": spec["name"], "device": options.device, "steps": spec["train"]["steps"],
            "runs_ms": times, "step_ms": medians, "ratio": round(statistics.median(ratios), 4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", metavar="SPEC")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of a run; those of the spec, or 300")
    parser.add_argument("--warm-up", type=int, default=20, help="steps of each run that are not timed")
    options = parser.parse_args()
    specs = [yaml.safe_load(pathlib.Path(path).read_text()) for path in options.specs] or [{**TINY, "train": {**TINY["train"], "steps": 300}}]
    for spec in specs:
        print(json.dumps(measure(spec, options)), flush=True)


if __name__ == "__main__":
    main()
