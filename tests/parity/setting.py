"""Common setting of both engines: models, sizes, optimizer, schedule, the start of each engine, and the tolerances.

Our engine is //fsdp/engine:train_local (ranks as threads). The peer is fsdp2_rank.py (ranks as processes on Gloo).
"""

import os
import subprocess
from dataclasses import dataclass

import numpy
import torch
from google.protobuf import json_format
from models import build
from peer import cosine_rate, run_peer

from harness.programs import program
from harness.specs import to_message

# Every world and accumulation divides the batch, so all settings train on the same samples.
STEPS, GLOBAL_BATCH, SEQUENCE = 20, 12, 24
LLAMA = {"llama": {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 160, "layers": 3, "heads": 4,
                   "kv_heads": 2, "rope_theta": 10000.0, "norm_epsilon": 1e-5}}
# Biases, norms of queries and keys, and tied embeddings together: no published model has all of them.
QWEN = {"llama": {**LLAMA["llama"], "attention_bias": True, "qk_norm": True, "tied_embeddings": True}}
GPT2 = {"gpt2": {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 256, "layers": 3, "heads": 4,
                 "positions": 32, "norm_epsilon": 1e-5}}
LR, BETAS, DECAY, WARMUP, FLOOR = 1e-2, [0.9, 0.95], 0.1, 3, 0.1
# AdamW divides the mean of gradients by the root of their mean square plus this. At the usual 1e-8, where a gradient
# is nearly zero, that enlarges its round-off to any size; at 1e-5 weights can be compared as closely as losses.
EPSILON = 1e-5
# Clipping must bite in some steps and not in others, or one of its two branches is not compared.
CLIP_NORM = 1.0
# A loss is near 5.6, where fp32 has a step of 8.5e-8 of it; FSDP2 at other worlds and accumulations differs from itself
# by up to 2.6e-7, ours from it by no more.
LOSS_TOLERANCE = 1e-6
# Where a gradient is near zero, AdamW turns its round-off d into d x rate / EPSILON a step: 1e-9 into 1e-6. FSDP2
# differs from itself by up to 5e-6, ours from it by up to 1e-5, once by 2.3e-5 in one of 168,512 weights, of weights
# that move by more than 0.1. A weight decay that is wrong by a tenth moves one by 4e-4 (test_detects_planted_mistake).
WEIGHT_TOLERANCE = 6e-5


@dataclass(frozen=True)
class Setting:
    """Everything that affects the result except rounding. `model`: a key of MODELS."""

    world: int
    accumulation: int
    clip: bool
    model: str = "llama"

    @property
    def micro_batch(self):
        return GLOBAL_BATCH // (self.world * self.accumulation)

    def __str__(self):
        return f"{self.model} world {self.world} x {self.accumulation}{' clipped' if self.clip else ''}"


MODELS = {"llama": LLAMA, "qwen": QWEN, "gpt2": GPT2}


def job_spec(setting, fsdp, decay=DECAY):
    return {
        "name": "parity",
        "model": MODELS[setting.model],
        "data": {"synthetic": {}, "sequence_length": SEQUENCE},
        "train": {"steps": STEPS, "micro_batch": setting.micro_batch, "global_batch": GLOBAL_BATCH, "seed": 7},
        "optimizer": {"adamw": {"lr": LR, "betas": BETAS, "eps": EPSILON, "weight_decay": decay},
                      "clip_norm": CLIP_NORM if setting.clip else 0.0},
        "schedule": {"cosine": {"warmup_steps": WARMUP, "min_lr_ratio": FLOOR}},
        "precision": {"compute": "fp32"},
        "fsdp": fsdp,
        "resources": {"nodes": 1, "ranks_per_node": setting.world, "device": "cpu"},
    }


def learning_rate(step):
    return LR * cosine_rate(step, WARMUP, STEPS, FLOOR)


@dataclass
class Result:
    losses: list
    weights: numpy.ndarray


def read_weights(path):
    return numpy.fromfile(path, dtype=numpy.float32)


def write_start_weights(parameters, path):
    torch.manual_seed(11)
    # Norms and biases too get random weights: where they all start they would be alike.
    flat = [torch.randn(each.numel()) * (0.1 if each.dim() == 1 else 0.05) + (each.dim() == 1) for each in parameters]
    torch.cat(flat).numpy().tofile(path)


def assert_agree(our, their, steps=STEPS):
    assert len(our.losses) == len(their.losses) == steps
    numpy.testing.assert_allclose(our.losses, their.losses, rtol=LOSS_TOLERANCE, atol=0)
    numpy.testing.assert_allclose(our.weights, their.weights, rtol=0, atol=WEIGHT_TOLERANCE)


def run_ours(directory, made, start, *flags):
    """Trains the spec from the weights file `start`; returns the Result."""
    return run_message(directory, to_message(made), start, *flags)


def run_message(directory, message, start, *flags):
    spec, weights = directory / "job.json", directory / "weights.out"
    spec.write_text(json_format.MessageToJson(message))
    command = [program("fsdp/engine/train_local"), "--spec", spec, *(["--weights", start] if start else []), "--dump-weights", weights,
               *flags]
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, timeout=100,
                          env={"OMP_NUM_THREADS": "1", **os.environ})
    assert done.returncode == 0, done.stderr
    return Result([float(line) for line in done.stdout.split()], read_weights(weights))


def their_job(setting, directory, number, device, compute):
    return {"device": device, "compute": compute, "model": MODELS[setting.model], "steps": STEPS,
            "micro_batch": setting.micro_batch, "global_batch": GLOBAL_BATCH, "sequence_length": SEQUENCE, "lr": LR,
            "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY, "clip_norm": CLIP_NORM if setting.clip else 0.0,
            "learning_rates": [learning_rate(step) for step in range(1, STEPS + 1)],
            "weights": str(directory / setting.model), "batches": str(directory / "batches"),
            "curves_out": str(directory / f"{number}.curves"), "weights_out": str(directory / f"{number}.weights")}


def run_theirs(directory, settings, device="cpu", compute="fp32", more=None):
    """Trains settings with the same world size from directory/MODEL on directory/batches; returns {setting: Result}.
    `more` is added to each job (fsdp2_rank.py)."""
    world, = {setting.world for setting in settings}
    name = f"world-{world}.{compute}"
    jobs = [{**their_job(setting, directory, f"{name}.{number}", device, compute), **(more or {})}
            for number, setting in enumerate(settings)]
    curves = run_peer(jobs, world, device, directory, name)
    return {setting: Result(each["losses"], read_weights(job["weights_out"]))
            for setting, job, each in zip(settings, jobs, curves, strict=True)}
