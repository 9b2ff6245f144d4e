"""Parity with PyTorch FSDP2: from the same weights on the same tokens, twenty steps of the engine and of fully_shard
have the same losses and weights up to fp32 rounding. Programs with the same summation order have equal bits."""

import functools

import numpy
import pytest
from models import build
from setting import GLOBAL_BATCH, MODELS, SEQUENCE, STEPS, WEIGHT_TOLERANCE, Setting, assert_agree, job_spec
from setting import read_weights, run_ours, run_theirs, write_start_weights

WORLDS, ACCUMULATIONS = (1, 2, 4), (1, 3)
STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
FSDP = {
    **{strategy: {"strategy": strategy} for strategy in STRATEGIES},
    # Replicas of the shard group; and those that share the optimizer's state too. World 4 has room for both axes.
    "hsdp": {"strategy": "optim_grads_params", "outer": {"size": 2, "strategy": "no_shard"}},
    "hfsdp": {"strategy": "optim_grads_params", "outer": {"size": 2, "strategy": "optim"}},
    # The same computation with other programs.
    "recompute full": {"strategy": "optim_grads_params", "recompute": "full"},
    "recompute selective": {"strategy": "optim_grads_params", "recompute": "selective"},
    "keep gathered": {"strategy": "optim_grads_params", "keep_gathered": True},
    "no prefetch": {"strategy": "optim_grads_params", "prefetch_bytes": 0},
}
SETTINGS = [Setting(world, accumulation, clip) for world in WORLDS for accumulation in ACCUMULATIONS
            for clip in (False, True)]


def settings_with(fsdp):
    return [setting for setting in SETTINGS if setting.world == 4 or "outer" not in FSDP[fsdp]]


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """Directory with the start of both engines: weights by model name, created here, and `batches`, as the engine reads
    them."""
    directory = tmp_path_factory.mktemp("start")
    for name, model in MODELS.items():
        write_start_weights(build(model).parameters(), directory / name)
    run_ours(directory, job_spec(Setting(1, 1, False), FSDP["no_shard"]), directory / "llama", "--dump-batches",
             directory / "batches")
    return directory


@pytest.fixture(scope="session")
def ours(start, tmp_path_factory):
    """ours(setting, FSDP strategy) is the Result of our engine; each runs once."""
    @functools.lru_cache(maxsize=None)
    def run(setting, fsdp):
        return run_ours(tmp_path_factory.mktemp("ours"), job_spec(setting, FSDP[fsdp]), start / setting.model)
    return run


@pytest.fixture(scope="session")
def theirs(start):
    """theirs(setting) is the Result of PyTorch FSDP2; settings with the same world size run in one start."""
    @functools.lru_cache(maxsize=None)
    def run_world(world):
        settings = [setting for setting in SETTINGS + OTHER_MODELS if setting.world == world]
        return run_theirs(start, settings)
    return lambda setting: run_world(setting.world)[setting]


OTHER_MODELS = [Setting(2, 3, True, "qwen"), Setting(2, 3, True, "gpt2")]


@pytest.mark.parametrize("setting, fsdp", [
    pytest.param(setting, fsdp, id=f"{setting}, {fsdp}") for fsdp in (*STRATEGIES, "hsdp", "hfsdp")
    for setting in settings_with(fsdp)])
def test_losses_and_weights_match_fsdp2(ours, theirs, setting, fsdp):
    assert_agree(ours(setting, fsdp), theirs(setting))


@pytest.mark.parametrize("setting", OTHER_MODELS, ids=str)
@pytest.mark.parametrize("fsdp", ["no_shard", "optim_grads_params"])
def test_other_models_match_fsdp2(ours, theirs, setting, fsdp):
    assert_agree(ours(setting, fsdp), theirs(setting))


def assert_same_bits(results):
    first, *others = results
    for other in others:
        assert other.losses == first.losses
        assert other.weights.tobytes() == first.weights.tobytes()


# Two programs give the same bits where they add the same numbers in the same order. With one micro-batch that is so
# for all strategies: transports add in rank order, as all-reduce and as reduce-scatter. With several, no_shard and
# optim add over micro-batches first (within the matrix products, even), the others over ranks first. The norm of
# clipping is a sum of sums over shards, and no_shard has other shards unless the world is one.
SAME_BITS = {
    Setting(4, 1, False): [STRATEGIES, ("hsdp", "hfsdp")],
    Setting(4, 3, False): [("no_shard", "optim"), ("optim_grads", "optim_grads_params"), ("hsdp", "hfsdp")],
    Setting(4, 1, True): [("optim", "optim_grads", "optim_grads_params")],
    Setting(4, 3, True): [("optim_grads", "optim_grads_params")],
    Setting(2, 1, False): [STRATEGIES],
    Setting(2, 3, True): [("optim_grads", "optim_grads_params", "recompute full", "recompute selective",
                           "keep gathered", "no prefetch")],
    Setting(1, 1, True): [STRATEGIES],
    Setting(1, 3, True): [("no_shard", "optim"), ("optim_grads", "optim_grads_params")],
}


@pytest.mark.parametrize("setting, group", [
    pytest.param(setting, group, id=f"{setting}: {', '.join(group)}") for setting, groups in SAME_BITS.items()
    for group in groups])
def test_same_summation_order_gives_equal_bits(ours, setting, group):
    assert_same_bits([ours(setting, fsdp) for fsdp in group])


def test_repeated_run_gives_equal_bits(ours, start, tmp_path):
    setting = Setting(4, 3, True)
    assert_same_bits([ours(setting, "hfsdp"), run_ours(tmp_path, job_spec(setting, FSDP["hfsdp"]), start / "llama")])


def test_batches_do_not_depend_on_world_size(start, tmp_path):
    for setting in (Setting(4, 1, False), Setting(2, 3, False)):
        run_ours(tmp_path, job_spec(setting, FSDP["no_shard"]), start / "llama", "--dump-batches", tmp_path / "batches")
        assert (tmp_path / "batches").read_bytes() == (start / "batches").read_bytes()
    assert (start / "batches").stat().st_size == STEPS * 2 * GLOBAL_BATCH * SEQUENCE * 8


def test_clipping_is_active_in_some_steps(ours):
    assert (ours(Setting(1, 1, True), "no_shard").weights != ours(Setting(1, 1, False), "no_shard").weights).any()


def test_training_changes_weights(ours, start):
    result = ours(Setting(1, 1, True), "no_shard")
    assert numpy.abs(result.weights - read_weights(start / "llama")).max() > 1e-2
    assert len(set(result.losses)) == STEPS


def test_detects_planted_mistake(ours, start, tmp_path):
    """The tolerance is tight enough: another weight decay is far outside of it."""
    setting = Setting(1, 1, True)
    wrong = run_ours(tmp_path, job_spec(setting, FSDP["no_shard"], decay=0.09), start / "llama")
    assert numpy.abs(ours(setting, "no_shard").weights - wrong.weights).max() > 5 * WEIGHT_TOLERANCE
