#!/usr/bin/env python3
"""Runs job specs through a coordinator and agents on this machine and prints one JSON line for each.

    tests/perf/run_jobs.py --device cuda --slots 2 SPEC.yaml ...

A line has losses and gradient norms, the median step after --warm-up, planned and measured memory, device mallocs in the steady
state, overlap, and the agents' /metrics at the end. With --device cuda and several agents, each sees only its own --slots GPUs
(CUDA_VISIBLE_DEVICES), as in pods. Copies between ranks that do not see each other's GPUs are slower
(docs/bench/2026-11-22-whole-nodes.md), so measure with one agent that has all GPUs. Needs only the built programs (FSDPD_BIN:
their directory). Timings decide nothing. A failed job ends the run with exit code 1 and the ends of its logs.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FSDPD_BIN", ROOT / ".build/bin"))
KEPT_METRICS = ("fsdpd_steps_total", "fsdpd_exposed_seconds_total", "fsdpd_comm_seconds_total", "fsdpd_comm_exposed_seconds_total",
                "fsdpd_comm_bytes_total", "fsdpd_memory_peak_bytes", "fsdpd_device_mallocs_total")


def start(command, directory, name, env=None):
    """Starts a daemon; returns it and the address in its port file."""
    port_file = directory / f"{name}.port"
    with open(directory / f"{name}.log", "wb") as log:
        process = subprocess.Popen([*map(str, command), "--port-file", str(port_file)], stdout=log, stderr=log,
                                   env={**os.environ, **(env or {})})
    deadline = time.monotonic() + 30
    while not port_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"{name} did not serve:\n{(directory / f'{name}.log').read_text()}")
        time.sleep(0.05)
    return process, port_file.read_text().strip()


@contextlib.contextmanager
def cluster(directory, device, agents, slots, plugin_dir=None):
    """Yields the coordinator's address and the agents' metrics addresses."""
    daemons = []
    try:
        coordinator, server = start([BIN / "coordinator/fsdpd-coordinator", "--insecure", "--listen", "127.0.0.1:0",
                                     "--state-dir", directory / "state"], directory, "coordinator")
        daemons.append(coordinator)
        metrics = []
        for index in range(agents):
            own = ",".join(str(index * slots + slot) for slot in range(slots))
            env = {"CUDA_VISIBLE_DEVICES": own} if device == "cuda" and agents > 1 else {}
            agent, address = start([BIN / "agent/fsdpd-agent", "--insecure", "--coordinator", server, "--node",
                                    f"node-{index}", "--device", device, "--slots", slots, "--work-dir", directory / f"node-{index}.work",
                                    "--rank-binary", BIN / "fsdp/fsdpd-rank", *(["--plugin-dir", plugin_dir] if plugin_dir else [])],
                                   directory, f"node-{index}", env)
            daemons.append(agent)
            metrics.append(address)
        yield server, metrics
    finally:
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(daemons):
            daemon.wait(30)


def scrape(addresses, job):
    """Returns samples of `job` by name and labels over all agents."""
    found = {}
    for address in addresses:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        for name, labels, value in re.findall(r"^(\w+)\{([^}]*)\} (\S+)$", text, re.MULTILINE):
            if name in KEPT_METRICS and f'fsdpd_job="{job}"' in labels:
                short = ",".join(part for part in labels.split(",") if not part.startswith("fsdpd_job="))
                found[f"{name}{{{short}}}"] = float(value)
    return dict(sorted(found.items()))


def run(spec, server, metrics, directory, warm_up):
    record = directory / f"{pathlib.Path(spec).stem}.jsonl"
    done = subprocess.run([BIN / "client/fsdpctl", "--server", server, "submit", "-f", spec, "--follow", "--record",
                           record], stdout=sys.stderr)
    if done.returncode != 0:
        logs = sorted(directory.glob("node-*.work/*/attempt-*/rank-*.log"))
        sys.exit("\n".join(f"--- {log}\n" + log.read_text(errors="replace")[-3000:] for log in logs))
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    steps, job = [line for line in lines if "step" in line], lines[-1]
    if "id" not in job:
        job = json.loads(subprocess.run([BIN / "client/fsdpctl", "--server", server, "get", "-o", "json"], check=True,
                                        capture_output=True, text=True).stdout)["jobs"][0]
    hot = steps[warm_up:] or steps
    seconds = statistics.median(step["step_seconds"] for step in hot)
    # Includes host work between steps; some steps may have no report.
    apart = [(int(b["unix_nanos"]) - int(a["unix_nanos"])) / (int(b["step"]) - int(a["step"])) for a, b in zip(hot, hot[1:])]
    ops = [op for step in hot for op in step.get("ops", [])]
    comm = sum(op.get("seconds", 0) for op in ops)
    exposed = sum(op.get("exposed_seconds", 0) for op in ops)
    return {
        "job": job["id"], "spec": pathlib.Path(spec).name, "steps": len(steps),
        # All digits of an fp32 number.
        **{names: [float(f"{step[name]:.9g}") for step in steps]
           for name, names in (("loss", "losses"), ("grad_norm", "grad_norms"))},
        "step_ms_median": round(1e3 * seconds, 2),
        "report_ms_median": round(statistics.median(apart or [0]) / 1e6, 3),
        "tokens_per_second": round(int(steps[-1]["tokens"]) / seconds),
        "exposed_ms_median": round(1e3 * statistics.median(step.get("exposed_seconds", 0) for step in hot), 2),
        "compute_ms_median": round(1e3 * statistics.median(step["compute_seconds"] for step in hot), 2),
        "timed": len(hot), "began_ns": int(hot[0]["unix_nanos"]), "ended_ns": int(hot[-1]["unix_nanos"]),
        "overlap": round(1 - exposed / comm, 3) if comm else None,
        "planned_bytes": int(job["memory_plan"]["peak_bytes"]), "peak_bytes": int(job["peak_bytes"]),
        "reserved_bytes": max(int(step["memory"]["reserved_bytes"]) for step in steps),  # Rank 0's.
        "steady_device_mallocs": int(job.get("steady_device_mallocs", 0)),
        "metrics": scrape(metrics, job["id"]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="+", metavar="SPEC")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--agents", type=int, default=1)
    parser.add_argument("--slots", type=int, default=2, help="ranks of each agent")
    parser.add_argument("--plugin-dir", type=pathlib.Path, help="directory of packages that specs name")
    parser.add_argument("--warm-up", type=int, default=2, help="steps that are not timed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fsdpd-jobs-") as directory:
        directory = pathlib.Path(directory)
        with cluster(directory, options.device, options.agents, options.slots, options.plugin_dir) as (server, metrics):
            for spec in options.specs:
                print(json.dumps(run(spec, server, metrics, directory, options.warm_up)), flush=True)


if __name__ == "__main__":
    main()
