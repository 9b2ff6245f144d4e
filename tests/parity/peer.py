"""The peer of the comparisons, PyTorch FSDP2: starts its ranks (fsdp2_rank.py), and computes the learning-rate schedule
independently of the engine."""

import concurrent.futures
import json
import math
import os
import pathlib
import subprocess
import sys

RANK = pathlib.Path(__file__).with_name("fsdp2_rank.py")


def cosine_rate(step, warmup, steps, floor):
    """Learning rates of steps 1, 2, ... as fractions of the peak: linear warm-up, then half a cosine to the minimum."""
    if step < warmup:
        return step / warmup
    progress = (step - warmup) / (steps - warmup)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def run_peer(jobs, world, device, directory, name, patience_seconds=1000):
    """Trains jobs (fsdp2_rank.py) one after the other in one start named `name`; returns their curves_out."""
    path, rendezvous = directory / f"{name}.json", directory / f"{name}.rendezvous"
    rendezvous.unlink(missing_ok=True)  # Of a start that failed: its keys would be met.
    path.write_text(json.dumps({"rendezvous": str(rendezvous), "device": device, "jobs": jobs}))
    _run_ranks([sys.executable, str(RANK), str(path)], world, [directory / f"{name}.rank-{rank}.log" for rank in range(world)],
               patience_seconds)
    return [json.loads(pathlib.Path(job["curves_out"]).read_text()) for job in jobs]


def _run_ranks(command, world, logs, patience_seconds):
    ranks = []
    with concurrent.futures.ThreadPoolExecutor(world) as waiting:
        try:
            for rank, log in enumerate(logs):
                with open(log, "w", encoding="utf-8") as out:
                    ranks.append(subprocess.Popen(command, stdout=out, stderr=out,
                                                  env={"OMP_NUM_THREADS": "1", **os.environ, "RANK": str(rank),
                                                       "WORLD_SIZE": str(world)}))
            # As they end: one that failed leaves the others in a collective for minutes.
            ended = concurrent.futures.as_completed([waiting.submit(rank.wait) for rank in ranks], patience_seconds)
            assert not any(each.result() for each in ended), "\n".join(log.read_text() for log in logs)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
