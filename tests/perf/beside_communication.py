#!/usr/bin/env python3
"""Measures the slowdown of matrix products and attention by concurrent communication: the same layers on one GPU and on several.

    tests/perf/beside_communication.py --ranks 4 --set model.llama.layers=12 docs/bench/specs/llama3-8b-s8192.yaml

Alternates, on warm GPUs, between a job on the first GPU and one on all GPUs, in which rank 0 has that GPU and the same samples.
STEPS steps of each are traced with their kernels. Prints a JSON line per job: milliseconds per step of rank 0's matrix products,
attention and other kernels, its median step before them, the SM clock, and their product, cycles. A last line has the ratios of the
medians. Cycles show the cost of communication without the effect of power, which all work of a GPU shares. Needs the built programs
(FSDPD_BIN: their directory).
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import yaml

from gpu_vs_rival import with_settings
from run_jobs import cluster

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))
from leaving import last_step, submit  # noqa: E402
from peer_loss import ctl, job_of, wait  # noqa: E402

HOT, WARM_UP, STEPS = 10, 25, 3  # Traced steps follow the warm-up, whose hot steps are timed.
# By what their names hold; the first that fits.
KINDS = {"attention": ("cudnn", "flash", "fmha"), "products": ("nvjet", "gemm", "xmma", "cutlass")}


def kind_of(name):
    return next((kind for kind, words in KINDS.items() if any(word in name.lower() for word in words)), "other")


def kernels(trace):
    """Returns milliseconds of rank 0's kernels in the trace by kind."""
    spent = dict.fromkeys((*KINDS, "other"), 0.0)
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == 0 and event["cat"] == "kernel":
            spent[kind_of(event["name"])] += event["dur"] / 1e3
    return spent


def measure(spec, ranks):
    spec = with_settings(json.loads(json.dumps(spec)), ["train.steps=1000000", f"train.global_batch={ranks * spec['train']['micro_batch']}"])
    spec["resources"] = {"nodes": 1, "ranks_per_node": ranks, "device": "cuda"}
    with tempfile.TemporaryDirectory(prefix="fsdpd-beside-") as directory, cluster(pathlib.Path(directory), "cuda", 1, ranks) as (server, _):
        job = submit(server, directory, spec)

        def made(step):
            now = job_of(server, job)
            if now["state"] in ("failed", "succeeded"):
                sys.exit(json.dumps(now))
            return last_step(now) >= step

        wait("the card is hot", lambda: made(WARM_UP))
        ctl(server, "trace", job, "--steps", STEPS, "--rank", 0, "--out", f"{directory}/trace.json")
        step = job_of(server, job)["last_step"]
        steps = [json.loads(line) for line in ctl(server, "get", job, "--steps", "--from", HOT, "--to", WARM_UP, "-o", "json").splitlines()]
        ctl(server, "cancel", job, "--wait")
        spent = kernels(json.loads(pathlib.Path(directory, "trace.json").read_text()))
    megahertz = step["power"]["sm_clock_hertz"] / 1e6
    reported = {kind: round(ms / STEPS, 2) for kind, ms in spent.items()}
    return {"ranks": ranks, **reported, "step_ms": round(1e3 * statistics.median(each["step_seconds"] for each in steps), 1),
            "sm_mhz": round(megahertz), **{f"{kind}_megacycles": round(reported[kind] * megahertz / 1e3, 1) for kind in KINDS}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", metavar="SPEC")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="change the spec")
    options = parser.parse_args()
    with open(options.spec, encoding="utf-8") as file:
        spec = with_settings(yaml.safe_load(file), options.set)
    lines = []
    for _ in range(options.rounds):
        for ranks in (1, options.ranks):
            lines.append(measure(spec, ranks))
            print(json.dumps(lines[-1]), flush=True)

    def median(ranks, name):
        return statistics.median(line[name] for line in lines if line["ranks"] == ranks)

    names = [name for kind in KINDS for name in (kind, f"{kind}_megacycles")]
    print(json.dumps({"beside_over_alone": {name: round(median(options.ranks, name) / median(1, name), 4) for name in names}}), flush=True)


if __name__ == "__main__":
    main()
