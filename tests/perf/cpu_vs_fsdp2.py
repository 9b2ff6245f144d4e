#!/usr/bin/env python3
"""Compares step times on CPU of fsdpd-rank over TCP and PyTorch FSDP2 over Gloo, both as processes.

    .python/bin/python tests/perf/cpu_vs_fsdp2.py [--rounds 3] [--micro-batch 1] [--sequence 128]

A tiny Llama, fully sharded, two ranks, fp32, one thread per rank, AdamW with clipping. Both sides have the same initial weights
and tokens, and their losses are compared before any time is printed. Rounds alternate between the two, so that both see the same
state of the machine. FSDP2 has LibTorch's fused AdamW, and its loop does not reduce the loss. The faster of two attention
implementations counts for it (LibTorch's operator, or plain products, which may be faster on CPU). Prints one JSON line. The
ratio (theirs over ours; goal 1.5) decides nothing. Needs //fsdp:fsdpd-rank and //fsdp/engine:train_local built (FSDPD_BIN:
their directory).
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "parity"), str(TESTS / "perf")]

import torch  # noqa: E402
from google.protobuf import json_format  # noqa: E402
from rank_processes import run_job  # noqa: E402

from harness.programs import program  # noqa: E402
from harness.specs import to_message  # noqa: E402

GOAL = 1.5
FSDP2 = {"fused attention": True, "plain attention": False}
WORLD = 2
# The preset `tiny`, spelt out for the reference.
MODEL = {"vocab_size": 256, "hidden_size": 128, "intermediate_size": 384, "layers": 4, "heads": 4, "kv_heads": 2,
         "rope_theta": 10000.0, "norm_epsilon": 1e-5}
LR, BETAS, EPSILON, DECAY, CLIP_NORM = 1e-3, [0.9, 0.95], 1e-5, 0.1, 1.0
WARM_UP_STEPS = 10  # Not timed: caches fill, connections are made.


def job_spec(options, lr=LR):
    return to_message({
        "name": "perf", "model": {"llama": MODEL},
        "data": {"synthetic": {}, "sequence_length": options.sequence},
        "train": {"steps": options.steps, "micro_batch": options.micro_batch,
                  "global_batch": options.micro_batch * WORLD, "seed": 3},
        "optimizer": {"adamw": {"lr": lr, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY},
                      "clip_norm": CLIP_NORM},
        "precision": {"compute": "fp32"}, "fsdp": {"strategy": "optim_grads_params"},
        "resources": {"nodes": 1, "ranks_per_node": WORLD, "device": "cpu"}})


def their_job(options, directory, variant):
    return {"model": {"llama": {**MODEL, "fused_attention": FSDP2[variant]}}, "steps": options.steps,
            "micro_batch": options.micro_batch, "global_batch": options.micro_batch * WORLD,
            "sequence_length": options.sequence, "lr": LR, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY,
            "clip_norm": CLIP_NORM, "learning_rates": [LR] * options.steps, "fused": True,
            "weights": str(directory / "weights"), "batches": str(directory / "batches"),
            "rendezvous": str(directory / f"{variant}.rendezvous")}


def write_start(options, directory):
    """Writes the start of fsdpd-rank: weights that a learning rate near zero leaves unchanged, and the tokens."""
    (directory / "start.json").write_text(json_format.MessageToJson(job_spec(options, lr=1e-30)))
    subprocess.run([program("fsdp/engine/train_local"), "--spec", directory / "start.json", "--dump-weights",
                    directory / "weights", "--dump-batches", directory / "batches"], check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def fsdp2_ranks(options, directory, variant):
    """Yields a function that trains once and returns rank 0's answer. Its processes wait between calls."""
    job = directory / f"{variant}.json"
    job.write_text(json.dumps(their_job(options, directory, variant)))
    ranks = [subprocess.Popen([sys.executable, TESTS / "perf/fsdp2_timed_rank.py", job], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE if rank == 0 else None,
                              env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(WORLD), "OMP_NUM_THREADS": "1",
                                   "PYTHONPATH": str(TESTS / "parity")}) for rank in range(WORLD)]

    def train():
        for rank in ranks:
            print(file=rank.stdin, flush=True)
        line = ranks[0].stdout.readline()
        if not line:
            raise RuntimeError("FSDP2 ended; its words are above")
        return json.loads(line)

    try:
        yield train
    finally:
        for rank in ranks:
            rank.stdin.close()
        for rank in ranks:
            rank.wait(30)


def step_seconds(ends):
    return [b - a for a, b in zip(ends[WARM_UP_STEPS:], ends[WARM_UP_STEPS + 1:])]


def check_losses(ours, theirs):
    worst = max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True))
    # Round-off grows with the steps; a mistake is orders of magnitude larger.
    if worst > 1e-4:
        sys.exit(f"the losses differ by {worst:.1e}: these are not the same trainings, and no times are told")
    return worst


def measure(options, directory):
    write_start(options, directory)
    ours, theirs, difference, last = [], {variant: [] for variant in FSDP2}, 0, []
    with contextlib.ExitStack() as stack:
        train = {variant: stack.enter_context(fsdp2_ranks(options, directory, variant)) for variant in FSDP2}
        for _ in range(options.rounds):
            last = run_job(job_spec(options), WORLD, directory)[0]
            ours += step_seconds([each.unix_nanos / 1e9 for each in last])
            for variant, times in theirs.items():
                answer = train[variant]()
                difference = max(difference, check_losses([each.loss for each in last], answer["losses"]))
                times += step_seconds(answer["ends"])
    theirs_ms = {variant: median_ms(times) for variant, times in theirs.items()}
    return {"what": "cpu_vs_fsdp2", "world": WORLD, "micro_batch": options.micro_batch, "sequence": options.sequence,
            "steps_timed": len(ours), "torch": torch.__version__, "loss_difference": difference,
            "ours_step_ms": median_ms(ours), "ours_compute_ms": median_ms([each.compute_seconds for each in last]),
            "ours_exposed_ms": median_ms([each.exposed_seconds for each in last]), "fsdp2_step_ms": theirs_ms,
            "ratio": round(min(theirs_ms.values()) / median_ms(ours), 3), "goal": GOAL}


def median_ms(seconds):
    return round(1e3 * statistics.median(seconds), 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="of a round")
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=128)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fsdpd-perf-") as directory:
        print(json.dumps(measure(options, pathlib.Path(directory))))


if __name__ == "__main__":
    main()
