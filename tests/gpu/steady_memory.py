#!/usr/bin/env python3
"""Tests that hundreds of steps with evaluations, saves and traces allocate no device memory after the second step.

    tests/gpu/steady_memory.py SPEC.yaml [--ranks 2] [--steps 500]        # --device cpu: the CPU version

The job reads a token file, evaluates every fifth of its steps, saves twice and at its end, and traces one step of its spec and
one on demand. Prints one JSON line: median and longest step time, and the calls of the CUDA runtime, by any library, that
allocated or freed device memory: until the second step of each rank, and after it. The latter must be zero. Needs the built
programs (FSDPD_BIN: their directory).
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import tempfile

import yaml
from instruments import samples
from leaving import last_step, submit
from peer_loss import ctl, job_of, wait

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "perf"))
from run_jobs import cluster  # noqa: E402

TOKENS = 4_000_000
CALLS = ("fsdpd_device_mallocs_total", "fsdpd_device_frees_total")


def busy_job(spec, directory, options):
    file = directory / "tokens.u8"
    file.write_bytes(random.Random(1).randbytes(TOKENS))
    spec["data"] = {"sequence_length": spec["data"]["sequence_length"], "tokens": [{"path": str(file), "type": "u8"}],
                    "validation": [{"path": str(file), "type": "u8"}]}
    spec["train"] |= {"steps": options.steps, "evaluation": {"every_steps": options.steps // 5, "samples": 8}}
    spec["resources"] = {"nodes": 1, "ranks_per_node": options.ranks, "device": options.device}
    spec["checkpoint"] = {"dir": f"{directory}/run", "every_steps": options.steps // 2 - 1, "keep_last": 1}
    spec["telemetry"] = {"trace_steps": [options.steps // 3]}
    return spec


def calls(address):
    read = samples(address)
    return {name: {labels["rank"]: int(value) for labels, value in read[name]} for name in CALLS}


def trained(server, address, spec, directory, options):
    """Returns the job's id and the calls of each rank after the second step and at its end."""
    job = submit(server, directory, busy_job(spec, directory, options))

    def made(step):
        now = job_of(server, job)
        if now["state"] == "failed":
            sys.exit(json.dumps(now["failure"]))
        return last_step(now) >= step

    wait("the second step is made", lambda: made(3))
    before = calls(address)
    wait("half is done", lambda: made(options.steps // 2))
    ctl(server, "trace", job, "--out", f"{directory}/trace.json")
    ctl(server, "wait", job)
    return job, before, calls(address)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", metavar="SPEC")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fsdpd-steady-") as directory:
        directory = pathlib.Path(directory)
        spec = yaml.safe_load(pathlib.Path(options.spec).read_text())
        with cluster(directory, options.device, agents=1, slots=options.ranks) as (server, metrics):
            job, before, after = trained(server, metrics[0], spec, directory, options)
            steps = [json.loads(line) for line in ctl(server, "get", job, "--steps", "-o", "json").splitlines()]
            ended = job_of(server, job)
            traces = len(list(directory.glob("*.work/**/trace_step_*_rank_0.json")))
    hot = [step["step_seconds"] * 1e3 for step in steps[10:]]
    reported = {"steps": len(steps), "step_ms": round(statistics.median(hot), 2), "longest_ms": round(max(hot), 2),
            "evaluations": sum("evaluation_loss" in step for step in steps), "saves": len(ended["checkpoints"]),
            "traces": traces, "calls_by_step_2": before, "calls_since": {
                name: {rank: after[name][rank] - count for rank, count in ranks.items()} for name, ranks in before.items()}}
    print(json.dumps(reported), flush=True)
    if any(count for ranks in reported["calls_since"].values() for count in ranks.values()):
        return "device memory was taken or given back after the second step"
    return 0 if reported["evaluations"] and reported["saves"] > 1 and reported["traces"] > 1 else "it was not as busy as it should have been"


if __name__ == "__main__":
    sys.exit(main())
