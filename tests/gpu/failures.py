#!/usr/bin/env python3
"""Tests that a GPU job survives a hang, a kill and a coordinator crash, and resumes from its checkpoints each time.

    tests/gpu/failures.py SPEC.yaml [--ranks 2]        # --device cpu: the CPU version, over TCP

The job trains without end and saves. After its first checkpoint the last rank gets SIGSTOP: the hang must be reported with
that rank. After a save of the next attempt a rank gets SIGKILL: it must be the cause. In the third attempt the coordinator
gets SIGKILL and is started again: no rank may exit. Prints one JSON line per failure with the seconds until it was reported,
until the attempt had no ranks (after the report of the hang, or after the kill), and until the next attempt made a step.
The test requires the right cause, a resumed job, and that the first time (KNOWN_S) and the second (GONE_S) are at most twice
the target. Needs the built programs (FSDPD_BIN: their directory). tests/integration/test_hangs.py and test_failures.py test
the same on CPU ranks in every commit, except for the times.
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

import yaml
from leaving import last_step, submit
from peer_loss import GONE_S, job_of, number_of, ranks, wait

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "perf"))
from run_jobs import BIN, cluster, start  # noqa: E402

KNOWN_S = 2 * 60  # A hang is known within 60 s; a machine with other work may take twice that.


def saved_step(job):
    return max((int(each["step"]) for each in job.get("checkpoints", [])), default=0)


def end_rank(server, job_id, attempt, signum):
    """Stops or kills a rank of a job that has saved in this attempt; returns the measured times and states."""
    before = saved_step(job_of(server, job_id))
    wait(f"attempt {attempt} has saved", lambda: saved_step(job_of(server, job_id)) > before)
    of_attempt = ranks()
    victim = max(of_attempt, key=number_of)
    rank, began = number_of(victim), time.monotonic()
    os.kill(victim, signum)
    wait("the fault is known", lambda: (job_of(server, job_id).get("failure") or {}).get("attempt") == attempt)
    known = time.monotonic()
    wait("no rank of the attempt is left", lambda: not ranks() & of_attempt)
    gone = time.monotonic()
    failure = job_of(server, job_id)["failure"]
    wait("the next attempt makes steps", lambda: job_of(server, job_id)["attempt"] > attempt and
         last_step(job_of(server, job_id)) > int((job_of(server, job_id).get("restored") or {}).get("step", 1 << 60)))
    hang = failure.get("hang", {})
    known_s, gone_s = known - began, gone - (known if signum == signal.SIGSTOP else began)
    right = (failure["rank"] == rank and bool(hang) == (signum == signal.SIGSTOP) and known_s <= KNOWN_S
             and gone_s <= GONE_S)
    print(json.dumps({
        "signal": signal.Signals(signum).name, "known_seconds": round(known_s, 2), "gone_seconds": round(gone_s, 2),
        "next_step_seconds": round(time.monotonic() - gone, 2), "error": failure.get("error"), "hang": hang.get("kind"),
        "places": hang.get("places"), "right": right}), flush=True)
    return right


def lose_the_coordinator(server, directory, job_id):
    training = ranks()
    pid = next(int(entry.name) for entry in pathlib.Path("/proc").glob("[0-9]*")
               if (entry / "cmdline").exists() and f"{directory}/state".encode() in (entry / "cmdline").read_bytes())
    job = job_of(server, job_id)
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    daemon, _ = start([BIN / "coordinator/fsdpd-coordinator", "--insecure", "--listen", server, "--state-dir",
                       directory / "state"], directory, "again")
    wait("a step after it is told", lambda: last_step(job_of(server, job_id)) > last_step(job) + 1)
    seconds = time.monotonic() - began
    after = job_of(server, job_id)
    right = ranks() == training and after["attempt"] == job["attempt"] and after["state"] == "running"
    print(json.dumps({"signal": "SIGKILL of the coordinator", "next_step_told_seconds": round(seconds, 2), "right": right}), flush=True)
    return daemon, right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", metavar="SPEC")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fsdpd-failures-") as name:
        directory = pathlib.Path(name)
        spec = yaml.safe_load(pathlib.Path(options.spec).read_text())
        spec["train"]["steps"] = 1_000_000
        spec["resources"] = {"nodes": 1, "ranks_per_node": options.ranks, "device": options.device}
        spec["checkpoint"] = {"dir": f"{directory}/run", "every_steps": options.every, "keep_last": 2}
        spec["restart"] = {"max_attempts": 5}
        with cluster(directory, options.device, agents=1, slots=options.ranks) as (server, _):
            job_id = submit(server, directory, spec)
            results = [end_rank(server, job_id, 1, signal.SIGSTOP), end_rank(server, job_id, 2, signal.SIGKILL)]
            daemon, right = lose_the_coordinator(server, directory, job_id)
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)
    return 0 if all([*results, right]) else 1


if __name__ == "__main__":
    sys.exit(main())
