"""Parity with PyTorch FSDP2 and FP8 products in plain PyTorch (fp8_layers.py). The gradients of one step from the same
weights on the same tokens are closer to each other than the effect of FP8, for each kind of matrix, routers and norms.
A recipe with one planted mistake is detected.

A bf16 number that the two round differently may round to another FP8 number. So the gradients differ by a quarter to a
half of the effect of FP8, not by zero. native_fp8_test, native_fp8_experts_test and native_linear_test compare single
products bit-exactly.
"""

import functools

import pytest
import torch
from fp8_layers import RECIPES
from fsdp2_rank import load
from models import build
from peer import run_peer
from setting import LLAMA, Setting, job_spec, read_weights, run_ours, their_job, write_start_weights

COUNT = 4
MODEL = {"llama": {**LLAMA["llama"], "experts": {"count": COUNT, "per_token": 2, "intermediate_size": 96, "dense_layers": 1,
                                                 "shared_intermediate_size": 32}}}
# What the names of a part's parameters have, in the peer.
PARTS = {"attention": ".attention.w", "dense layer": "layers.0.ffn.w", "experts": ".experts.", "beside experts": ".shared.",
         "routers": ".router", "norms": "_norm"}
# One step of AdamW whose epsilon is far above every gradient moves each weight by its gradient.
ONE_STEP = {"steps": 1, "lr": 1.0, "learning_rates": [1.0], "eps": 1.0, "weight_decay": 0.0}


def spec(world, compute, expert=1):
    made = job_spec(Setting(world, 1, False), {"strategy": "optim_grads_params"})
    made["model"] = MODEL
    made["precision"] = {"compute": compute, "grad_comm": "fp32"}
    made["train"]["steps"] = 1
    made["optimizer"] = {"adamw": {"lr": 1.0, "eps": 1.0, "weight_decay": 0.0}}
    made["parallel"] = {"expert": expert}
    del made["schedule"]
    return made


def write_start(path):
    """Makes expert choices robust: if scores were nearly equal, rounding would decide the expert. So the first numbers
    of a token's embedding select two experts with high scores in all layers. Embeddings are also large relative to the
    output of layers, so that rounding in one layer hardly changes the input of the next."""
    model = build(MODEL)
    write_start_weights(model.parameters(), path)
    load(model, path)
    word, loud = torch.arange(len(model.embedding.weight)), 40
    goes = torch.full((len(word), COUNT), -1.0)
    goes[word, word % COUNT] = 1
    goes[word, (word + 1 + word // COUNT % (COUNT - 1)) % COUNT] = 1
    with torch.no_grad():
        model.embedding.weight[:, :COUNT] += 0.3 * goes
        model.embedding.weight *= loud
        for layer in model.layers[MODEL["llama"]["experts"]["dense_layers"]:]:
            layer.ffn.router.weight[:, :COUNT] += 0.5 * torch.eye(COUNT)
        torch.cat([each.flatten() for each in model.parameters()]).numpy().tofile(path)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fp8")
    write_start(directory / "llama")
    run_ours(directory, spec(1, "fp32"), directory / "llama", "--dump-batches", directory / "batches")
    return directory


def by_part(start, after):
    """Returns the gradients, from the change of weights, concatenated by part."""
    named = list(build(MODEL).named_parameters())
    moved = torch.from_numpy(read_weights(start / "llama") - after).split([each.numel() for _, each in named])
    return {part: torch.cat([gradient for (name, _), gradient in zip(named, moved, strict=True) if fragment in name])
            for part, fragment in PARTS.items()}


@pytest.fixture(scope="module")
def ours(start, tmp_path_factory):
    """ours(compute, world): gradients by part; with `expert`, from that many expert-parallel ranks."""
    @functools.lru_cache(maxsize=None)
    def of(compute, world, expert=1):
        directory = tmp_path_factory.mktemp("ours")
        return by_part(start, run_ours(directory, spec(world, compute, expert), start / "llama").weights)
    return of


@pytest.fixture(scope="module")
def theirs(start):
    """theirs(recipe, world): the same for the peer."""
    @functools.lru_cache(maxsize=None)
    def trained(world):
        recipes = ["bf16", "fp8"] if world == 1 else ["bf16", *RECIPES]
        jobs = [{**their_job(Setting(world, 1, False), start, f"{recipe} {world}", "cpu", "bf16"), **ONE_STEP, "model": MODEL,
                 "fp8": None if recipe == "bf16" else recipe} for recipe in recipes]
        run_peer(jobs, world, "cpu", start, f"world-{world}")
        return {recipe: by_part(start, read_weights(job["weights_out"])) for recipe, job in zip(recipes, jobs, strict=True)}
    return lambda recipe, world: trained(world)[recipe]


def apart(one, other):
    return ((one - other).norm() / other.norm()).item()


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("world", [1, 2])
def test_gradients_match_fp8_products(ours, theirs, world, part):
    exact, fp8 = ours("bf16", world)[part], ours("fp8", world)[part]
    effect, between = apart(fp8, exact), apart(fp8, theirs("fp8", world)[part])
    print(f"{part}: FP8 changes gradients by {effect:.4f}; bf16 jobs are {apart(exact, theirs('bf16', world)[part]):.4f} apart, "
          f"fp8 jobs {between:.4f}")
    assert between < 0.6 * effect


@pytest.mark.parametrize("part, near, far", [("experts", 1, 2), ("attention", 2, 1), ("beside experts", 2, 1)])
def test_expert_rows_of_two_ranks_round_like_one(ours, theirs, part, near, far):
    ours_among = ours("fp8", 2, expert=2)[part]
    to_near, to_far = (apart(ours_among, theirs("fp8", world)[part]) for world in (near, far))
    print(f"{part}: {to_near:.4f} from those of {near} of the peer's ranks, {to_far:.4f} from those of {far}")
    assert to_far > 1.2 * to_near


@pytest.mark.parametrize("part", ["attention", "experts"])
@pytest.mark.parametrize("mistake", ["one scale", "scales of columns", "scales left out"])
def test_detects_planted_mistake(ours, theirs, part, mistake):
    assert_seen(ours, theirs, part, mistake)


@pytest.mark.parametrize("mistake", ["columns of all experts", "experts weighed last"])
def test_detects_planted_mistake_with_experts(ours, theirs, mistake):
    assert_seen(ours, theirs, "experts", mistake)


def assert_seen(ours, theirs, part, mistake):
    fp8 = ours("fp8", 2)[part]
    right, wrong = (apart(fp8, theirs(recipe, 2)[part]) for recipe in ("fp8", mistake))
    print(f"{part}: {right:.4f} apart, with the peer's {mistake} {wrong:.4f}")
    assert wrong > 1.2 * right
