"""World 4 against PyTorch FSDP2: from the same weights, on the same tokens, ten steps of our engine and of
torch's fully_shard give the same losses and the same weights, to fp32 round-off.

Ours is //fsdp/engine:train_local (four ranks as threads); theirs is fsdp2_rank.py (four processes on Gloo). The
engine writes the batches that it reads, and both start from weights made here.
"""

import json
import math
import os
import subprocess
import sys

import numpy
import pytest
import torch
from google.protobuf import json_format
from llama import Llama

from harness.programs import ROOT, program
from harness.specs import to_message

WORLD, STEPS, GLOBAL_BATCH, MICRO_BATCH, SEQUENCE = 4, 10, 16, 2, 32
MODEL = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 160, "layers": 3, "heads": 4, "kv_heads": 2,
         "rope_theta": 10000.0, "norm_epsilon": 1e-5}
LR, WARMUP, FLOOR = 1e-2, 3, 0.1
# AdamW divides the mean of gradients by the root of their mean square plus this. At the usual 1e-8, where a gradient
# is nearly zero, that enlarges its round-off to any size; at 1e-5 weights can be compared as closely as losses.
EPSILON = 1e-5
# Clipping must bite in some steps and not in others, or one of its two branches is not compared.
CLIP_NORM = 1.0

# Programs of our engine that must all agree with the one run of FSDP2.
VARIANTS = {
    "optim_grads_params": {"strategy": "optim_grads_params"},
    "optim_grads_params, recompute": {"strategy": "optim_grads_params", "recompute": "full"},
    "no_shard": {"strategy": "no_shard"},
}


def job_spec(fsdp):
    return {
        "name": "parity",
        "model": {"llama": MODEL},
        "data": {"synthetic": {}, "sequence_length": SEQUENCE},
        "train": {"steps": STEPS, "micro_batch": MICRO_BATCH, "global_batch": GLOBAL_BATCH, "seed": 7},
        "optimizer": {"adamw": {"lr": LR, "betas": [0.9, 0.95], "eps": EPSILON, "weight_decay": 0.1},
                      "clip_norm": CLIP_NORM},
        "schedule": {"cosine": {"warmup_steps": WARMUP, "min_lr_ratio": FLOOR}},
        "precision": {"compute": "fp32"},
        "fsdp": fsdp,
        "resources": {"nodes": 1, "ranks_per_node": WORLD, "device": "cpu"},
    }


def learning_rate(step):
    """Of step 1, 2, ...: a linear rise to the peak, then half a cosine down to the floor."""
    if step < WARMUP:
        return LR * step / WARMUP
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return LR * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * progress)))


def run_ours(folder, made, *flags):
    path = folder / "job.json"
    path.write_text(json_format.MessageToJson(to_message(made)))
    done = subprocess.run([program("fsdp/engine/train_local"), "--spec", str(path), *map(str, flags)],
                          capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


def weights(path):
    return numpy.fromfile(path, dtype=numpy.float32)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The folder of what both start from: `weights`, made here, and `batches`, as the engine reads them."""
    folder = tmp_path_factory.mktemp("start")
    torch.manual_seed(11)
    # Norms too get random weights: at one they would all be alike.
    flat = [torch.randn(each.numel()) * (0.1 if each.dim() == 1 else 0.05) + (each.dim() == 1)
            for each in Llama(MODEL).parameters()]
    torch.cat(flat).numpy().tofile(folder / "weights")
    run_ours(folder, job_spec(VARIANTS["no_shard"]), "--weights", folder / "weights", "--dump-batches", folder / "batches")
    return folder


@pytest.fixture(scope="module")
def theirs(start):
    """(losses, weights) of PyTorch FSDP2."""
    job = {"model": MODEL, "steps": STEPS, "micro_batch": MICRO_BATCH, "global_batch": GLOBAL_BATCH,
           "sequence_length": SEQUENCE, "lr": LR, "betas": [0.9, 0.95], "eps": EPSILON, "weight_decay": 0.1,
           "clip_norm": CLIP_NORM, "learning_rates": [learning_rate(step) for step in range(1, STEPS + 1)],
           "rendezvous": str(start / "rendezvous"), "weights": str(start / "weights"),
           "batches": str(start / "batches"), "losses_out": str(start / "losses.json"),
           "weights_out": str(start / "weights.out")}
    (start / "job.json").write_text(json.dumps(job))
    command = [sys.executable, str(ROOT / "tests/parity/fsdp2_rank.py"), str(start / "job.json")]
    logs = [open(start / f"rank-{rank}.log", "w") for rank in range(WORLD)]
    ranks = [subprocess.Popen(command, stdout=log, stderr=log,
                              env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(WORLD)})
             for rank, log in enumerate(logs)]
    try:
        codes = [rank.wait(100) for rank in ranks]
    finally:
        for rank, log in zip(ranks, logs):
            rank.kill()
            rank.wait()
            log.close()
    assert not any(codes), "\n".join((start / f"rank-{rank}.log").read_text() for rank in range(WORLD))
    return json.loads((start / "losses.json").read_text()), weights(start / "weights.out")


@pytest.mark.parametrize("variant", VARIANTS)
def test_ten_losses_and_the_final_weights_agree(start, theirs, tmp_path, variant):
    their_losses, their_weights = theirs
    our_losses = run_ours(tmp_path, job_spec(VARIANTS[variant]), "--weights", start / "weights", "--dump-weights",
                          tmp_path / "weights")
    assert len(our_losses) == len(their_losses) == STEPS
    # A few units in the last place of an fp32 near 5.
    assert our_losses == pytest.approx(their_losses, rel=1e-6)
    # Of weights up to 0.3 that moved by up to 0.1. The last test shows what a mistake would do.
    numpy.testing.assert_allclose(weights(tmp_path / "weights"), their_weights, rtol=0, atol=1e-5)


def test_the_run_moves_the_weights(start, theirs):
    their_losses, their_weights = theirs
    assert numpy.abs(their_weights - weights(start / "weights")).max() > 1e-2
    assert len(set(their_losses)) == STEPS


def test_a_mistake_would_be_seen(start, tmp_path):
    """The tolerance is small enough: other weight decay alone is far outside of it."""
    made = job_spec(VARIANTS["no_shard"])
    run_ours(tmp_path, made, "--weights", start / "weights", "--dump-weights", tmp_path / "right")
    made["optimizer"]["adamw"]["weight_decay"] = 0.09
    run_ours(tmp_path, made, "--weights", start / "weights", "--dump-weights", tmp_path / "wrong")
    assert numpy.abs(weights(tmp_path / "right") - weights(tmp_path / "wrong")).max() > 5e-5
