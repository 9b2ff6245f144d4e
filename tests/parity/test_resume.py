"""Tests of resuming in the other engine: FSDP2 resumes from our checkpoint and our engine from FSDP2's, with the losses
and weights of an uninterrupted run."""

import pytest
from models import build
from setting import MODELS, STEPS, Setting, assert_agree, job_spec, run_ours, run_theirs, write_start_weights
from torch.distributed.checkpoint import FileSystemReader

DONE = 12
SHARDED = {"strategy": "optim_grads_params"}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    directory = tmp_path_factory.mktemp("start")
    for name, model in MODELS.items():
        write_start_weights(build(model).parameters(), directory / name)
    run_ours(directory, job_spec(Setting(1, 1, False), {"strategy": "no_shard"}), directory / "llama", "--dump-batches",
             directory / "batches")
    return directory


def saving(setting, runs, fsdp=SHARDED):
    return {**job_spec(setting, fsdp), "checkpoint": {"dir": str(runs), "every_steps": DONE}}


def names_in(checkpoint):
    """Returns the parameters in the order of their `step` entries."""
    keys = FileSystemReader(str(checkpoint)).read_metadata().state_dict_metadata
    prefix, suffix = "optimizer.state.module.module.module.", ".step"
    return [key[len(prefix):-len(suffix)] for key in keys if key.startswith(prefix) and key.endswith(suffix)]


def rest(result):
    return type(result)(result.losses[DONE:], result.weights)


@pytest.mark.parametrize("model", MODELS)
def test_fsdp2_resumes_from_fsdpd_checkpoint(start, tmp_path, model):
    ours = run_ours(tmp_path, saving(Setting(4, 1, True, model), tmp_path / "runs"), start / model)
    checkpoint = tmp_path / "runs" / f"iter_{DONE:07d}"
    on_two = Setting(2, 1, True, model)
    theirs = run_theirs(start, [on_two], more={"load": str(checkpoint), "done": DONE, "names": names_in(checkpoint)})
    assert_agree(rest(ours), theirs[on_two], STEPS - DONE)


@pytest.mark.parametrize("model", MODELS)
def test_fsdpd_resumes_from_fsdp2_checkpoint(start, tmp_path, model):
    run_ours(tmp_path, saving(Setting(1, 1, True, model), tmp_path / "runs"), start / model)
    names = names_in(tmp_path / "runs" / f"iter_{DONE:07d}")
    on_two, saved = Setting(2, 3, True, model), tmp_path / "fsdp2"
    theirs = run_theirs(start, [on_two], more={"save": str(saved), "done": DONE, "names": names})[on_two]
    for setting, fsdp in ((Setting(4, 1, True, model), SHARDED), (Setting(1, 3, True, model), {"strategy": "no_shard"})):
        spec = {**job_spec(setting, fsdp), "checkpoint": {"load": str(saved)}}
        assert_agree(run_ours(tmp_path, spec, start / model), rest(theirs), STEPS - DONE)


def test_resume_without_optimizer_is_detected(start, tmp_path):
    """Proves that the comparisons above depend on moments, steps and the position in the data."""
    setting = Setting(2, 1, False)
    whole = run_ours(tmp_path, saving(setting, tmp_path / "runs"), start / "llama")
    spec = {**job_spec(setting, SHARDED), "checkpoint": {"load": str(tmp_path / "runs" / f"iter_{DONE:07d}"),
                                                         "load_optimizer": False}}
    fresh = run_ours(tmp_path, spec, start / "llama")
    with pytest.raises(AssertionError):
        assert_agree(type(fresh)(fresh.losses[:STEPS - DONE], fresh.weights), rest(whole), STEPS - DONE)
