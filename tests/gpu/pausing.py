#!/usr/bin/env python3
"""Tests that a paused GPU job commits its checkpoint and frees the memory of its GPUs.

    tests/gpu/pausing.py SPEC.yaml [--ranks 2]

The job is paused, resumed, and paused again while another process allocates memory on its first GPU, which must be reported
with node, GPU and size. Prints one JSON line per pause with the duration of `pause --wait`. Needs the built programs
(FSDPD_BIN: their directory), and PyTorch with CUDA for the other process. agent/ranks/freed_memory_test.cc and
agent/ranks/rank_supervisor_test.cc test the interpretation of NVML's readings in every commit.
"""

import argparse
import contextlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import yaml
from leaving import last_step, submit
from peer_loss import BIN, ctl, job_of, wait

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "perf"))
from run_jobs import cluster  # noqa: E402

TAKES = "import sys, torch; held = torch.empty(2 << 30, dtype=torch.uint8, device='cuda:0'); torch.cuda.synchronize(); print('takes', flush=True); sys.stdin.read()"


@contextlib.contextmanager
def another_process():
    with subprocess.Popen([sys.executable, "-c", TAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "takes\n"
        yield
        process.stdin.close()


def pause(server, job_id, words):
    began = time.monotonic()
    done = subprocess.run([BIN / "client/fsdpctl", "--server", server, "pause", job_id, "--wait"], capture_output=True, text=True)
    job = job_of(server, job_id)
    right = job["state"] == "paused" and re.search(words, job["reason"]) is not None
    print(json.dumps({"pause_seconds": round(time.monotonic() - began, 2), "exit": done.returncode, "pause": job.get("pause"),
                      "reason": job["reason"], "right": right}), flush=True)
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", metavar="SPEC")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fsdpd-pausing-") as directory:
        spec = yaml.safe_load(pathlib.Path(options.spec).read_text())
        spec["train"]["steps"] = 1_000_000
        spec["resources"] = {"nodes": 1, "ranks_per_node": options.ranks, "device": "cuda"}
        spec["checkpoint"] = {"dir": f"{directory}/run"}
        with cluster(pathlib.Path(directory), "cuda", agents=1, slots=options.ranks) as (server, _):
            job_id = submit(server, directory, spec)
            wait("the job makes steps", lambda: last_step(job_of(server, job_id)) >= 3)
            free = "memory of its GPU is released" if options.ranks == 1 else f"memory of its {options.ranks} GPUs is released"
            right = pause(server, job_id, free)
            before = last_step(job_of(server, job_id))
            ctl(server, "resume", job_id)
            wait("it goes on", lambda: last_step(job_of(server, job_id)) > before + 2)
            with another_process():
                right &= pause(server, job_id, r"not free: node-0 cuda:0 2\.\d+ GiB$")
            ctl(server, "cancel", job_id, "--wait")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
