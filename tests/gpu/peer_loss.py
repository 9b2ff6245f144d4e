#!/usr/bin/env python3
"""Tests that a rank exits when its peer is killed or stopped inside a collective.

    tests/gpu/peer_loss.py SPEC.yaml        # --device cpu: the CPU version, over TCP

Two ranks train without end, on one agent (so that copy engines move data if the GPUs reach each other), or with --agents 2
on one agent each; with --graphs each step is a CUDA graph. The second rank gets SIGKILL, and the job must fail with that rank
as its cause. In a second run it gets SIGSTOP before the job is cancelled. Prints one JSON line per run with the transport that
rank 0 logged, and the seconds from the signal, or from the cancel, until no rank is left. The test requires that no rank is
left, in at most twice the target time (GONE_S), with the right cause and the expected transport. Needs the built programs
(FSDPD_BIN: their directory). tests/integration/test_failures.py tests the same on CPU ranks in every commit, except for the
times.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "perf"))
from run_jobs import BIN, cluster  # noqa: E402

GONE_S = 2 * 1  # A process exits within 1 s of its signal; a loaded machine may take twice that.
WAITS_S = 300  # Long enough to report the duration of a slow exit.


def ctl(server, *arguments):
    done = subprocess.run([BIN / "client/fsdpctl", "--server", server, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"fsdpctl {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def ranks():
    """Returns the pids of the ranks on this machine."""
    binary = os.path.realpath(BIN / "fsdp/fsdpd-rank")
    found = set()
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "exe") == binary:
                found.add(int(entry.name))
        except OSError:
            continue  # It ended, or is not ours.
    return found


def number_of(pid):
    """Returns a rank's number, from the log file that is its stdout."""
    return int(re.search(r"rank-(\d+)\.log$", os.readlink(f"/proc/{pid}/fd/1")).group(1))


def transports_of(pid):
    """Returns the transport and the step submission that a rank logged; graphs log nothing."""
    text = pathlib.Path(os.readlink(f"/proc/{pid}/fd/1")).read_text(errors="replace")
    return {"data": sorted(set(re.findall(r"data_path=(\w+)", text))), "each_instruction": "instruction by instruction" in text}


def wait(what, condition):
    deadline = time.monotonic() + WAITS_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within {WAITS_S} s")
        time.sleep(0.02)


def job_of(server, job_id):
    return json.loads(ctl(server, "get", job_id, "-o", "json"))


def run(server, spec, signum):
    job_id = json.loads(ctl(server, "submit", "-f", spec, "-o", "json"))["id"]
    wait("the job makes steps", lambda: int((job_of(server, job_id).get("last_step") or {}).get("step", 0)) >= 20)  # Beyond those that are not launched as graphs.
    before = ranks()
    ways = transports_of(min(before, key=number_of))
    os.kill(max(before, key=number_of), signum)
    began = time.monotonic()
    if signum == signal.SIGSTOP:
        time.sleep(2)  # The peer comes to wait for it; that is the situation, not a synchronisation.
        began = time.monotonic()
        ctl(server, "cancel", job_id)
    wait("no rank is left", lambda: not ranks() & before)
    seconds = time.monotonic() - began
    wait("the job has ended", lambda: job_of(server, job_id)["state"] in ("failed", "cancelled", "succeeded"))
    job = job_of(server, job_id)
    right = job["state"] == "cancelled" if signum == signal.SIGSTOP else (
        job["state"] == "failed" and job["failure"]["rank"] == 1 and job["failure"]["signal"] == signal.SIGKILL)
    reported = {"signal": signal.Signals(signum).name, **ways, "seconds_until_no_rank": round(seconds, 2), "state": job["state"],
            "failure": job.get("failure"), "right": right and seconds <= GONE_S}
    print(json.dumps(reported), flush=True)
    return reported


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", metavar="SPEC")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--agents", type=int, choices=[1, 2], default=1)
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--copy-engines", action="store_true", help="fail where kernels move the data")
    options = parser.parse_args()
    slots = 2 // options.agents
    with tempfile.TemporaryDirectory(prefix="fsdpd-peer-loss-") as directory:
        spec = yaml.safe_load(pathlib.Path(options.spec).read_text())
        spec["train"] |= {"steps": 1_000_000, "graphs": options.graphs}
        spec["resources"] = {"nodes": options.agents, "ranks_per_node": slots, "device": options.device}
        endless = pathlib.Path(directory) / "endless.yaml"
        endless.write_text(yaml.safe_dump(spec))
        with cluster(pathlib.Path(directory), options.device, options.agents, slots) as (server, _):
            reported = [run(server, endless, signum) for signum in (signal.SIGKILL, signal.SIGSTOP)]
    faults = [f"{each['signal']}: {each}" for each in reported if not each["right"]]
    if options.graphs and any(each["each_instruction"] for each in reported):
        faults.append("steps were not launched as graphs")
    if options.copy_engines and any(each["data"] != ["copy_engines"] for each in reported):
        faults.append("kernels moved the data")
    return "\n".join(faults)  # Empty: exit code 0.


if __name__ == "__main__":
    sys.exit(main() or 0)
