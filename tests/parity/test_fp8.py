"""Against PyTorch FSDP2 with FP8 products spelt out in plain PyTorch (fp8_layers.py): gradients of one step from the same weights,
on the same tokens, are nearer to each other than what FP8 changes of them; and a recipe that is wrong in one place is seen.

A bf16 number that the two round apart may be rounded to another FP8 number, and what follows from it likewise: so gradients of the
two are apart by two thirds of what FP8 changes, and not by nothing. Each product by itself, to the last bit of its roundings, is
native_fp8_test's and native_linear_test's.
"""

import functools

import numpy
import pytest
import torch
from models import build
from setting import MODELS, Setting, job_spec, run_ours, run_theirs, write_start_weights

SETTING = Setting(2, 1, False)
# One step of AdamW whose epsilon is far above every gradient moves each weight by its gradient.
ONE_STEP = {"steps": 1, "lr": 1.0, "learning_rates": [1.0], "eps": 1.0, "weight_decay": 0.0}


def spec(compute):
    made = job_spec(SETTING, {"strategy": "optim_grads_params"})
    made["precision"] = {"compute": compute, "grad_comm": "fp32"}
    made["train"]["steps"] = 1
    made["optimizer"] = {"adamw": {"lr": 1.0, "eps": 1.0, "weight_decay": 0.0}}
    del made["schedule"]
    return made


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fp8")
    write_start_weights(build(MODELS["llama"]).parameters(), folder / "llama")
    run_ours(folder, spec("fp32"), folder / "llama", "--dump-batches", folder / "batches")
    return folder


@pytest.fixture(scope="module")
def gradient(start, tmp_path_factory):
    """gradient(whose, of): of all matrices of layers, in a row."""
    @functools.lru_cache(maxsize=None)
    def of(whose, compute):
        folder = tmp_path_factory.mktemp(f"{whose}-{compute}")
        if whose == "ours":
            after = run_ours(folder, spec(compute), start / "llama").weights
        else:
            for file in ("llama", "batches"):
                (folder / file).symlink_to(start / file)
            fp8 = None if compute == "bf16" else compute
            after = run_theirs(folder, [SETTING], compute="bf16", more={**ONE_STEP, "fp8": fp8})[SETTING].weights
        moved = torch.from_numpy(numpy.fromfile(start / "llama", dtype=numpy.float32) - after)
        sizes = [each.numel() for each in build(MODELS["llama"]).parameters()]
        parts = dict(zip((name for name, _ in build(MODELS["llama"]).named_parameters()), moved.split(sizes), strict=True))
        return torch.cat([part for name, part in parts.items() if ".w" in name])
    return of


def apart(one, other):
    return ((one - other).norm() / other.norm()).item()


def test_gradients_are_those_of_products_in_fp8(gradient):
    ours = gradient("ours", "fp8")
    effect = apart(ours, gradient("ours", "bf16"))
    print(f"FP8 changes gradients by {effect:.3f}; bf16 jobs are {apart(gradient('ours', 'bf16'), gradient('theirs', 'bf16')):.4f} apart, "
          f"fp8 jobs {apart(ours, gradient('theirs', 'fp8')):.4f}")
    assert apart(ours, gradient("theirs", "fp8")) < 0.8 * effect


@pytest.mark.parametrize("mistake", ["one scale", "scales of columns", "scales left out"])
def test_a_mistake_would_be_seen(gradient, mistake):
    ours, theirs = gradient("ours", "fp8"), gradient("theirs", "fp8")
    assert apart(ours, gradient("theirs", mistake)) > 1.15 * apart(ours, theirs)
