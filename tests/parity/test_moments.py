"""Tests of FP8 moments (precision.moments: fp8), with the format reimplemented from docs/memory.md: those of a
checkpoint, read by PyTorch, are close to the fp32 moments of the same job, and PyTorch's AdamW resumes from them as the
engine does."""

import numpy
import pytest
import torch
from models import build
from setting import MODELS, STEPS, Setting, assert_agree, job_spec, run_ours, run_theirs, write_start_weights
from test_resume import SHARDED, names_in, rest
from test_resume import DONE as RESUMED_AFTER
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save


def numbers(least, most):
    """All non-negative values: two mantissa bits, and below the smallest exponent the same step size."""
    small = [q * 2.0 ** (least - 2) for q in range(4)]
    return numpy.array(small + [q * 2.0 ** (e - 2) for e in range(least, most + 1) for q in range(4, 8)])


NUMBERS = {"exp_avg": numbers(-28, 2), "exp_avg_sq": numbers(-58, 4)}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    directory = tmp_path_factory.mktemp("start")
    write_start_weights(build(MODELS["llama"]).parameters(), directory / "llama")
    run_ours(directory, job_spec(Setting(1, 1, False), {"strategy": "no_shard"}), directory / "llama", "--dump-batches",
             directory / "batches")
    return directory


def spec_of(moments, world=3, **checkpoint):
    return {**job_spec(Setting(world, 1, True), SHARDED), "precision": {"compute": "fp32", "moments": moments},
            "checkpoint": checkpoint}


def tensors_in(checkpoint):
    whole = checkpoint / "whole.pt"
    dcp_to_torch_save(checkpoint, whole)
    return torch.load(whole, weights_only=False)


def after_a_step(start, tmp_path, moments):
    runs = tmp_path / moments
    run_ours(tmp_path, spec_of(moments, dir=str(runs), every_steps=1, keep_last=STEPS), start / "llama")
    return tensors_in(runs / "iter_0000001")


def flat(tensors, moment):
    return torch.cat([tensor.flatten().double() for key, tensor in tensors.items() if key.endswith("." + moment)]).numpy()


def test_checkpoint_moments_are_near_fp32(start, tmp_path):
    exact, rounded = (after_a_step(start, tmp_path, moments) for moments in ("fp32", "fp8"))
    assert exact.keys() == rounded.keys()
    for moment, known in NUMBERS.items():
        assert {tensor.dtype for key, tensor in rounded.items() if key.endswith("." + moment)} == {torch.bfloat16}
        want, got = flat(exact, moment), flat(rounded, moment)
        sign, want, got = numpy.sign(want), numpy.abs(want), got * numpy.sign(want)
        above = numpy.searchsorted(known, want)  # The least that is not below it.
        high, low = known[above], known[numpy.maximum(above - (known[above] != want), 0)]
        if moment == "exp_avg_sq":
            low = numpy.where((low == 0) & (want > 0), high, low)
        assert (flat(rounded, moment)[sign == 0] == 0).all()
        assert numpy.isin(got[sign != 0], known).all()
        assert ((got == low) | (got == high))[sign != 0].all()
        between = high > low
        parts = ((want - low) / numpy.where(between, high - low, 1))[between]
        ups = (got == high)[between]
        # Each goes up as often as it is above: in the mean of over a hundred thousand.
        assert len(parts) > 1e5
        assert abs(ups.mean() - parts.mean()) < 5 * numpy.sqrt((parts * (1 - parts)).mean() / len(parts))
    # The step itself is computed before moments are rounded.
    for key in (key for key in exact if key.startswith("model.")):
        assert torch.equal(exact[key], rounded[key])


def test_fsdp2_adamw_resumes_from_moments(start, tmp_path):
    runs = tmp_path / "runs"
    run_ours(tmp_path, spec_of("fp8", dir=str(runs), every_steps=RESUMED_AFTER), start / "llama")
    checkpoint = runs / f"iter_{RESUMED_AFTER:07d}"
    ours = run_ours(tmp_path, spec_of("fp32", load=str(checkpoint)), start / "llama")
    on_two = Setting(2, 1, True)
    theirs = run_theirs(start, [on_two], more={"load": str(checkpoint), "done": RESUMED_AFTER, "names": names_in(checkpoint)})
    assert_agree(ours, theirs[on_two], STEPS - RESUMED_AFTER)
    whole = run_ours(tmp_path, spec_of("fp32"), start / "llama")
    with pytest.raises(AssertionError):  # Which hangs on what was rounded.
        assert_agree(rest(whole), theirs[on_two], STEPS - RESUMED_AFTER)
