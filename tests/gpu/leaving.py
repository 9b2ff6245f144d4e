#!/usr/bin/env python3
"""Tests that a cancelled GPU job saves first, and that another job resumes from its checkpoint.

    tests/gpu/leaving.py SPEC.yaml [--ranks 2]        # --device cpu: the CPU version, over TCP

The job trains without end. It is cancelled with a grace period of a minute; then `submit --from` trains five more steps.
Prints one JSON line: the duration of the cancel, the saved step, and the losses before and after it. The test requires that
the checkpoint is that of the last step of any rank, and that the second job starts after it. Needs the built programs
(FSDPD_BIN: their directory). tests/integration/test_leaving.py has more tests on CPU ranks in every commit.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

import yaml
from peer_loss import ctl, job_of, wait

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "perf"))
from run_jobs import cluster  # noqa: E402

GRACE_S, MORE_STEPS = 60, 5


def submit(server, directory, spec, *flags):
    path = pathlib.Path(directory) / "job.yaml"
    path.write_text(yaml.safe_dump(spec))
    return json.loads(ctl(server, "submit", "-f", path, *flags, "-o", "json"))["id"]


def last_step(job):
    return int((job.get("last_step") or {}).get("step", 0))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", metavar="SPEC")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fsdpd-leaving-") as directory:
        spec = yaml.safe_load(pathlib.Path(options.spec).read_text())
        spec["train"]["steps"] = 1_000_000
        spec["resources"] = {"nodes": 1, "ranks_per_node": options.ranks, "device": options.device}
        spec["checkpoint"] = {"dir": f"{directory}/first"}
        with cluster(pathlib.Path(directory), options.device, agents=1, slots=options.ranks) as (server, _):
            first = submit(server, directory, spec)
            wait("the job makes steps", lambda: last_step(job_of(server, first)) >= 5)
            began = time.monotonic()
            ctl(server, "cancel", first, "--grace", GRACE_S, "--wait")
            seconds = time.monotonic() - began
            job = job_of(server, first)
            saved = int(job["checkpoints"][-1]["step"]) if job.get("checkpoints") else 0
            reported = {"cancel_seconds": round(seconds, 2), "state": job["state"], "last_step": last_step(job),
                    "saved": job.get("checkpoints", [])[-1:], "loss": job["last_step"]["loss"]}
            right = saved > 0 and saved == last_step(job) and job["state"] == "cancelled"
            if right:
                spec["train"]["steps"] = saved + MORE_STEPS
                del spec["checkpoint"]
                second = submit(server, directory, spec, "--from", first)
                wait("the second job has ended", lambda: job_of(server, second)["state"] in ("failed", "succeeded"))
                job = job_of(server, second)
                reported.update(second=job["state"], restored=job.get("restored"), loss_after=job["last_step"]["loss"])
                right = job["state"] == "succeeded" and int(job["restored"]["step"]) == saved
    print(json.dumps({**reported, "right": right}), flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
