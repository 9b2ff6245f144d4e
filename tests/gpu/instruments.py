#!/usr/bin/env python3
"""Tests the measurements of GPU steps: power and energy, device memory of all users, kernels in a trace, owners of memory.

    tests/gpu/instruments.py SPEC.yaml [--ranks 2]        # --device cpu: the CPU version, without power and kernels

The job trains without end. When it is warm, the test reads the agent's metrics, traces two steps with a memory snapshot, and
checks that the job continues. Prints one JSON line:
  gpus            the agent's metrics of each GPU, checked for consistency: joules over seconds is about its watts
  mallocs         calls of any library that allocated device memory, and requests to the allocator
  kernels         in the trace: number, time, and the fraction of the compute lane's time with a running kernel or copy
                  (both must use the same clock, so it is close to 1)
  counters        in the trace, next to the allocator's
  memory          of the snapshot: allocated bytes, equal to those in the step's report; recorded allocations since the
                  request; and the fraction of them with a known instruction
  step_ms         before, during and after the recording of kernels
Needs the built programs (FSDPD_BIN: their directory) and PyTorch, whose viewer reads the snapshots.
"""

import argparse
import collections
import json
import pathlib
import pickle
import re
import statistics
import sys
import tempfile
import urllib.request

import yaml
from leaving import last_step, submit
from peer_loss import ctl, job_of, wait

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "perf"))
from run_jobs import cluster  # noqa: E402

WARM_STEPS, STEPS, GO_ON_STEPS = 30, 2, 200


def samples(address):
    """Returns labels and values of all series by name."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = collections.defaultdict(list)
    for name, labels, value in re.findall(r"^(\w+)\{([^}]*)\} (\S+)$", text, re.MULTILINE):
        found[name].append((dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)))
    return found


def gpus(metrics):
    cards = collections.defaultdict(dict)
    for name, series in metrics.items():
        for labels, value in series:
            if name.startswith("fsdpd_gpu_"):
                kind = labels.get("reason") or labels.get("kind")
                short = name.removeprefix("fsdpd_gpu_")
                cards[labels["device"]][f"{short}.{kind}" if kind else short] = value
    return cards


def covered(spans, by):
    """Returns the fraction of the time of `spans` in which something in `by` ran."""
    merged = []
    for begin, end in sorted(by):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    inside = sum(max(0, min(end, e) - max(begin, b)) for begin, end in spans for b, e in merged)
    return inside / sum(end - begin for begin, end in spans)


def kernels(trace):
    events = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == 0]
    lane, device, names = [], [], collections.Counter()
    for event in events:
        span = event["ts"], event["ts"] + event["dur"]
        if event["cat"] in ("kernel", "copy"):
            device.append(span)
            names[event["name"][:60]] += event["dur"] / 1e3
        elif event["tid"] == 0:
            lane.append(span)
    return {"count": len(device), "ms": round(sum(end - begin for begin, end in device) / 1e3, 2),
            "compute_lane_covered": round(covered(lane, device), 4),
            "longest_ms": {name: round(ms, 2) for name, ms in names.most_common(5)}}


def memory(path):
    from torch.cuda import _memory_viz  # Here, since others take what is above and have no PyTorch.

    snapshot = pickle.loads(pathlib.Path(path).read_bytes())
    held = sum(block["size"] for segment in snapshot["segments"] for block in segment["blocks"]
               if block["state"] == "active_allocated")
    made = [event for events in snapshot["device_traces"] for event in events if event["action"] == "alloc"]
    # PyTorch's own page of it.
    if len(_memory_viz.trace_plot(snapshot)) < 1000 or f"segments: {len(snapshot['segments'])}\n" not in _memory_viz.segsum(snapshot):
        sys.exit(f"{path}: PyTorch's memory viewer does not read it")
    return {"bytes": held, "allocations": len(made),
            "known_share": round(sum(1 for event in made if event["frames"]) / max(1, len(made)), 3)}


def measure(server, metrics, directory, spec):
    job = submit(server, directory, spec)
    times = collections.defaultdict(dict)

    def reached(step, when):
        reported = job_of(server, job)
        times[when][last_step(reported)] = 1e3 * float((reported.get("last_step") or {}).get("step_seconds", 0))
        if reported["state"] in ("failed", "succeeded"):
            sys.exit(json.dumps(reported))
        return last_step(reported) >= step

    wait("the job is warm", lambda: reached(WARM_STEPS, "before"))
    read = samples(metrics[0])
    step = job_of(server, job)["last_step"]
    traced = ctl(server, "trace", job, "--steps", STEPS, "--memory", "--out", f"{directory}/trace.json", "-o", "json")
    files = [json.loads(line)["trace"] for line in traced.splitlines()]
    last = max(int(each["step"]) for each in files)
    reached(0, "traced")
    wait("the job goes on", lambda: reached(last + GO_ON_STEPS, "after"))
    ctl(server, "cancel", job, "--wait")
    trace = json.loads(pathlib.Path(directory, "trace.json").read_text())
    power = step.get("power", {})
    return {
        "gpus": gpus(read),
        "step": {"ms": round(1e3 * step["step_seconds"], 2), "joules": power.get("energy_joules"),
                 "watts": power.get("energy_joules", 0) / step["step_seconds"],
                 "sm_clock_hertz": power.get("sm_clock_hertz"), "slowdowns": power.get("slowdowns")},
        "mallocs": {name: [value for _, value in read[f"fsdpd_{name}_total"]]
                    for name in ("device_mallocs", "device_frees", "allocations", "memory_spikes")},
        "kernels": kernels(trace),
        "counters": sorted({event["name"] for event in trace["traceEvents"] if event["ph"] == "C"}),
        "memory": [memory(each["memory_snapshot"]["path"]) for each in files],
        "allocated": [value for _, value in read["fsdpd_memory_allocated_bytes"]],
        "step_ms": {when: round(statistics.median(list(steps.values())[-10:]), 2) for when, steps in times.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", metavar="SPEC")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fsdpd-instruments-") as directory:
        spec = yaml.safe_load(pathlib.Path(options.spec).read_text())
        spec["train"]["steps"] = 1_000_000
        spec["resources"] = {"nodes": 1, "ranks_per_node": options.ranks, "device": options.device}
        with cluster(pathlib.Path(directory), options.device, agents=1, slots=options.ranks) as (server, metrics):
            reported = measure(server, metrics, directory, spec)
    faults = []
    if len(reported["memory"]) != options.ranks * STEPS:
        faults.append(f"{len(reported['memory'])} snapshots of {options.ranks} ranks' {STEPS} steps")
    if not all(each["bytes"] > 0 for each in reported["memory"]):
        faults.append("a snapshot holds nothing")
    for name, values in {**reported["mallocs"], "memory_allocated_bytes": reported["allocated"]}.items():
        if len(values) != options.ranks:
            faults.append(f"fsdpd_{name}: {len(values)} series of {options.ranks} ranks")
    # A step that is launched as a graph allocates nothing.
    if any(each["allocations"] > 0 and each["known_share"] == 0 for each in reported["memory"]):
        faults.append("nobody is known to have allocated")
    if options.device == "cuda":
        if len(reported["gpus"]) < options.ranks:
            faults.append("a card tells nothing")
        for name, card in reported["gpus"].items():
            if not 0.5 < reported["step"]["watts"] / max(1, card.get("power_watts", 0)) < 2 and name == "cuda:0":
                faults.append("a step's energy does not go with the card's power")
            if card.get("memory_outside_bytes", 0) <= 0:
                faults.append(f"{name}: nothing is in use beside the rank's own")
        if not all(reported["mallocs"]["device_mallocs"]):
            faults.append("nobody asked a device for memory")
        if reported["kernels"]["compute_lane_covered"] < 0.5:
            faults.append("kernels are not where the lanes say that work was done")
        if not {"power", "SM clock", "device memory in use"} <= set(reported["counters"]):
            faults.append("counters are missing")
    print(json.dumps({**reported, "faults": faults}), flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
