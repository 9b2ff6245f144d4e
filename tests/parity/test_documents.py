"""Parity of packed documents with PyTorch on single documents: from the same weights, ten steps of the engine on packed
samples and of plain PyTorch on one document after the other have the same losses and weights, with masked targets. The
gradients of one step match too. Planted mistakes are far outside the tolerances. With data.packing documents, a step
over all samples has the loss and gradients of all whole documents, which PyTorch reads from the file.

Rotary embeddings depend only on relative positions, so no number here shows whether positions restart with each document;
fsdp/data/batches_test.cc tests that.
"""

import functools
import pathlib

import numpy
import pytest
import torch
from fsdp2_rank import load, optimizer
from models import build
from peer import cosine_rate
from setting import BETAS, DECAY, EPSILON, FLOOR, LLAMA, LOSS_TOLERANCE, LR, QWEN, WARMUP, WEIGHT_TOLERANCE
from setting import read_weights, run_ours, write_start_weights
from torch.nn import functional as F

STEPS, GLOBAL_BATCH, SEQUENCE, END, CLIP_NORM = 10, 12, 32, 9, 1.0
MODELS = {"llama": LLAMA, "qwen": QWEN}
FSDP = {
    "one rank": (1, 4, {"strategy": "no_shard"}),
    "two ranks": (2, 3, {"strategy": "optim_grads_params"}),
    "two ranks, recompute": (2, 6, {"strategy": "optim_grads_params", "recompute": "full"}),
    "two replicas": (2, 1, {"strategy": "no_shard"}),
}
torch.set_num_threads(1)  # Documents are small, and threads would wait for each other longer than they compute.
GRADIENT_TOLERANCE = 2e-6  # Of gradients near 0.01 to 1.


def counts(token):
    """The mask is a function of the token only, so that the peer needs no position in the file."""
    return token % 3 != 1


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Weights by model name, tokens with documents of 1 to 40 tokens, the mask, and the batches."""
    made = tmp_path_factory.mktemp("documents")
    for name, model in MODELS.items():
        write_start_weights(build(model).parameters(), made / name)
    random = numpy.random.default_rng(3)
    documents = [numpy.append(random.integers(10, 256, size), END) for size in random.integers(0, 40, 400)]
    tokens = numpy.concatenate(documents).astype("<u2")
    tokens.tofile(made / "tokens.u16")
    counts(tokens).astype(numpy.uint8).tofile(made / "mask.u8")
    run_ours(made, spec(made, "llama", "one rank"), made / "llama", "--dump-batches", made / "batches")
    return made


def spec(directory, model, fsdp, steps=STEPS, **sections):
    world, micro_batch, how = FSDP[fsdp]
    return {
        "name": "documents",
        "model": MODELS[model],
        "data": {"tokens": [{"path": str(directory / "tokens.u16"), "mask": str(directory / "mask.u8"), "type": "u16"}],
                 "sequence_length": SEQUENCE, "document_end_token": END},
        "train": {"steps": steps, "micro_batch": micro_batch, "global_batch": GLOBAL_BATCH, "seed": 7},
        "optimizer": {"adamw": {"lr": LR, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY}, "clip_norm": CLIP_NORM},
        "schedule": {"cosine": {"warmup_steps": WARMUP, "min_lr_ratio": FLOOR}},
        "precision": {"compute": "fp32"},
        "fsdp": how,
        "resources": {"nodes": 1, "ranks_per_node": world, "device": "cpu"},
        **sections,
    }


def batches(directory):
    """(tokens, targets) by step, as the engine's ranks read them."""
    read = numpy.fromfile(directory / "batches", dtype=numpy.int64).reshape(STEPS, 2, GLOBAL_BATCH, SEQUENCE)
    return torch.from_numpy(read)


def pieces(tokens, apart):
    """Returns the documents of a sample, or the whole sample if documents are not separated."""
    ends = [place + 1 for place in range(SEQUENCE - 1) if apart and tokens[place] == END]
    return list(zip([0, *ends], [*ends, SEQUENCE], strict=True))


def targets_of(tokens, last, over_ends):
    """Targets are the next tokens, except for the last one, which only the file has."""
    targets = torch.cat((tokens[1:], last[None]))
    keep = counts(targets) & (targets >= 0)
    return targets.where(keep if over_ends else keep & (tokens != END), torch.tensor(-100))


def loss_sum(model, tokens, targets):
    """Sums the loss over the targets of one document, which the model sees from position 0."""
    x = model.embedding(tokens[None])
    for layer in model.layers:
        x = layer(x)
    return F.cross_entropy(model.head(x)[0].float(), targets, ignore_index=-100, reduction="sum")


def step_loss(model, batch, apart=True, over_ends=False):
    """Returns the mean over the targets of all samples; its gradients are those of a step."""
    samples = [(tokens, targets_of(tokens, targets[-1], over_ends)) for tokens, targets in zip(*batch, strict=True)]
    counted = sum(int((targets != -100).sum()) for _, targets in samples)
    total = 0.0
    for tokens, targets in samples:
        for begin, end in pieces(tokens, apart):
            loss = loss_sum(model, tokens[begin:end], targets[begin:end]) / counted
            loss.backward()
            total += loss.item()
    return total


def fresh(directory, name):
    model = build(MODELS[name])
    load(model, directory / name)
    return model


@pytest.fixture(scope="module")
def theirs(directory):
    """theirs(model): (losses, final weights) of PyTorch on single documents."""
    @functools.lru_cache(maxsize=None)
    def train(name):
        model = fresh(directory, name)
        adamw = optimizer(model, {"lr": LR, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY})
        losses = []
        for step, batch in enumerate(batches(directory), 1):
            adamw.param_groups[0]["lr"] = adamw.param_groups[1]["lr"] = LR * cosine_rate(step, WARMUP, STEPS, FLOOR)
            adamw.zero_grad()
            losses.append(step_loss(model, batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            adamw.step()
        return losses, flat(model.parameters())
    return train


def flat(tensors):
    return torch.cat([each.detach().flatten() for each in tensors]).numpy()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fsdp", FSDP)
def test_packed_samples_train_like_single_documents(directory, theirs, tmp_path, model, fsdp):
    ours = run_ours(tmp_path, spec(directory, model, fsdp), directory / model)
    losses, weights = theirs(model)
    assert len(ours.losses) == len(set(losses)) == STEPS
    numpy.testing.assert_allclose(ours.losses, losses, rtol=LOSS_TOLERANCE, atol=0)
    numpy.testing.assert_allclose(ours.weights, weights, rtol=0, atol=WEIGHT_TOLERANCE)


def gradients(directory, model, **faults):
    made = fresh(directory, model)
    loss = step_loss(made, batches(directory)[0], **faults)
    return loss, flat(each.grad for each in made.parameters())


def our_gradients(directory, model, fsdp, tmp_path):
    """Returns the change of weights by one SGD step with a learning rate of 1."""
    made = spec(directory, model, fsdp, steps=1, optimizer={"sgd": {"lr": 1.0}}, schedule={"constant": {}})
    ours = run_ours(tmp_path, made, directory / model)
    return ours.losses[0], read_weights(directory / model) - ours.weights


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fsdp", ["one rank", "two ranks"])
def test_gradients_match_single_documents(directory, tmp_path, model, fsdp):
    (our_loss, ours), (loss, theirs) = our_gradients(directory, model, fsdp, tmp_path), gradients(directory, model)
    assert our_loss == pytest.approx(loss, rel=LOSS_TOLERANCE)
    assert numpy.abs(theirs).max() > 1e-2
    numpy.testing.assert_allclose(ours, theirs, rtol=0, atol=GRADIENT_TOLERANCE)


@pytest.mark.parametrize("fault", [{"apart": False}, {"over_ends": True}], ids=["tokens see other documents",
                                                                              "a document is told from another's end"])
def test_detects_planted_mistake(directory, tmp_path, fault):
    our_loss, ours = our_gradients(directory, "llama", "one rank", tmp_path)
    loss, theirs = gradients(directory, "llama", **fault)
    assert abs(our_loss - loss) > 100 * LOSS_TOLERANCE * loss
    assert numpy.abs(ours - theirs).max() > 100 * GRADIENT_TOLERANCE


def whole_documents(directory, too_long):
    """Token tensors of the file's documents of two tokens or more."""
    tokens, most = numpy.fromfile(directory / "tokens.u16", "<u2").astype(numpy.int64), SEQUENCE + 1
    documents = numpy.split(tokens, numpy.flatnonzero(tokens == END)[:-1] + 1)
    handled = {
        "truncate": [document[:most] for document in documents],
        "drop": [document for document in documents if len(document) <= most],
        "split": [document[begin:begin + most] for document in documents for begin in range(0, len(document), SEQUENCE)],
    }[too_long]
    return [torch.from_numpy(document) for document in handled if len(document) > 1]


def best_fit_decreasing(lengths):
    """Free tokens of each sample."""
    free = []
    for length in sorted(lengths, reverse=True):
        fitting = [each for each in free if each >= length]
        if fitting:
            free.remove(min(fitting))
        free.append((min(fitting) if fitting else SEQUENCE + 1) - length)
    return free


@pytest.mark.parametrize(("too_long", "fsdp"), [("truncate", "one rank"), ("split", "two ranks"), ("drop", "two replicas"),
                                                ("split", "two ranks, recompute")])
def test_epoch_of_packed_documents_is_all_whole_documents(directory, tmp_path, too_long, fsdp):
    documents = whole_documents(directory, too_long)
    samples, steps = len(best_fit_decreasing([len(document) for document in documents])), 5
    made = spec(directory, "llama", fsdp, steps=steps)
    made["data"] |= {"packing": "documents", "too_long": too_long}
    made["train"] |= {"global_batch": samples, "micro_batch": 1}
    if samples % made["resources"]["ranks_per_node"]:  # All samples, and the first one of the next epoch.
        made["resources"]["ranks_per_node"] = 1
    ours = run_ours(tmp_path, made, directory / "llama", "--dump-batches", tmp_path / "batches")
    model = fresh(directory, "llama")
    adamw = optimizer(model, {"lr": LR, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY})
    targets = [document[1:].where(counts(document[1:]), torch.tensor(-100)) for document in documents]
    counted, losses = sum(int((each != -100).sum()) for each in targets), []
    for step in range(1, steps + 1):
        adamw.param_groups[0]["lr"] = adamw.param_groups[1]["lr"] = LR * cosine_rate(step, WARMUP, steps, FLOOR)
        adamw.zero_grad()
        losses.append(0.0)
        for document, target in zip(documents, targets, strict=True):
            loss = loss_sum(model, document[:-1], target) / counted
            loss.backward()
            losses[-1] += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        adamw.step()
    numpy.testing.assert_allclose(ours.losses, losses, rtol=LOSS_TOLERANCE, atol=0)
    numpy.testing.assert_allclose(ours.weights, flat(model.parameters()), rtol=0, atol=WEIGHT_TOLERANCE)
    read = numpy.fromfile(tmp_path / "batches", dtype=numpy.int64).reshape(steps, 2, samples, SEQUENCE)
    assert (read[:, 1] != -100).sum() == steps * counted


def test_samples_cover_tested_cases(directory):
    read = batches(directory)
    tokens, targets = read[:, 0].reshape(-1, SEQUENCE), read[:, 1].reshape(-1, SEQUENCE)
    assert {len(pieces(sample, True)) for sample in tokens} >= {1, 2, 3}
    assert any(end - begin == 1 for sample in tokens for begin, end in pieces(sample, True)), "a document of one token"
    expected = torch.stack([targets_of(sample, own[-1], False) for sample, own in zip(tokens, targets, strict=True)])
    assert torch.equal(targets, expected)
    assert pathlib.Path(directory / "mask.u8").stat().st_size * 2 == pathlib.Path(directory / "tokens.u16").stat().st_size
