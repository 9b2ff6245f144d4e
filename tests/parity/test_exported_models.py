"""Tests of exported PyTorch models that fsdpd does not know: `fsdpctl model export`, then two ranks without Python, against
the same module in a plain PyTorch loop on the same batches."""

import functools
import json
import os
import subprocess
import sys
import zipfile

import exported_models
import numpy
import pytest
import torch
import transformers
from peer import cosine_rate
from setting import BETAS, CLIP_NORM, DECAY, EPSILON, FLOOR, GLOBAL_BATCH, LR, SEQUENCE, WARMUP, Setting, job_spec, run_ours

from harness import wheel

# An export compiles eight libraries, of about ten seconds of one core each, while other tests run.
pytestmark = pytest.mark.timeout(1700)

STEPS = 50
DOCUMENT_END = 5
LOSS_TOLERANCE = 1e-5   # Per token.
WEIGHT_TOLERANCE = 1e-3  # Relative norm of each tensor.
SETTING = Setting(world=2, accumulation=2, clip=True)
SHARDED = {"fsdp": {"strategy": "optim_grads_params"}}
REPLICAS = {"fsdp": {"strategy": "optim_grads_params", "outer": {"size": 2}}, "resources": {"ranks_per_node": 4}}
STAGES = {"fsdp": {"strategy": "no_shard"}, "parallel": {"pipeline": 2}}
# Short documents: one of twelve tokens ends one.
PACKED = {"data": {"synthetic": {"vocab": 12}, "document_end_token": DOCUMENT_END}}
MODULES = ["alibi", "conv_mixer", "two_streams", "dense_experts"]
SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 8, "pad_token_id": 0}
# Published families, by the config class of transformers. None: without this field.
FAMILIES = {
    "gemma2": ("Gemma2Config", {"sliding_window": 8, "query_pre_attn_scalar": 8}),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 8, "query_pre_attn_scalar": 8, "sliding_window_pattern": 2}),
    "phi3": ("Phi3Config", {}),
    "olmo2": ("Olmo2Config", {}),
    "glm4": ("Glm4Config", {}),
    "falcon": ("FalconConfig", {"new_decoder_architecture": True, "num_kv_heads": 2, "hidden_dropout": 0.0, "head_dim": None}),
    "starcoder2": ("Starcoder2Config", {"residual_dropout": 0.0}),
    "cohere": ("CohereConfig", {}),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "mamba2": ("Mamba2Config", {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 8}),
}
# Sliding windows, soft caps and tied embeddings.
EVERY_COMMIT = ["gemma2"]


def config_of(family, **changed):
    kind, own = FAMILIES[family]
    fields = {name: value for name, value in {**SMALL, **own, **changed}.items() if value is not None}
    return getattr(transformers, kind)(**fields, use_cache=False)


def export(directory, *source, dtype="fp32", recompute="none", documents=False):
    package = directory / "model.fsdpd"
    command = [sys.executable, "-m", "fsdpd.model", "export", *source, "--sequence-length", SEQUENCE, "--micro-batch-size",
               SETTING.micro_batch, "--dtype", dtype, "--device", "cpu", "--recompute", recompute, "-o", package,
               *(["--documents"] if documents else [])]
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, timeout=1500,
                          env={**os.environ, "PYTHONPATH": str(wheel.installed())})
    assert done.returncode == 0, done.stderr
    return package


def names_of(package):
    """Names of the parameters in PyTorch, in the order of weight files."""
    with zipfile.ZipFile(package) as archive:
        model = json.loads(archive.read("manifest.json"))["model"]
    for unit in model["units"]:
        for param in model["graphs"][int(unit.get("graph", 0))].get("params", []):
            yield f"{unit['module']}.{param['name']}" if unit.get("module") else param["name"]


def logits_of(model, tokens):
    out = model(tokens)
    return out if isinstance(out, torch.Tensor) else out.logits


def logits_by_document(model, tokens):
    """Runs the model on one document at a time, without position ids."""
    def documents(row):
        ends = [int(end) + 1 for end in (row == DOCUMENT_END).nonzero() if end + 1 < len(row)]
        return row.tensor_split(ends)
    return torch.stack([torch.cat([logits_of(model, each[None])[0] for each in documents(row)]) for row in tokens])


def train(model, names, start, batches, dtype=torch.float32, logits_of=logits_of):
    """A plain training loop that computes in `dtype`; returns the losses, and the weights by name."""
    params = dict(model.named_parameters())
    assert list(sorted(names)) == sorted(params)
    flat = torch.from_numpy(numpy.fromfile(start, dtype=numpy.float32))
    with torch.no_grad():
        for name, values in zip(names, flat.split([params[name].numel() for name in names]), strict=True):
            params[name].copy_(values.view_as(params[name]))
    decayed = [each for each in params.values() if each.dim() >= 2]
    others = [each for each in params.values() if each.dim() < 2]
    adamw = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
                              lr=LR, betas=BETAS, eps=EPSILON)
    losses = []
    for step, (tokens, targets) in enumerate(batches, 1):
        for group in adamw.param_groups:
            group["lr"] = LR * cosine_rate(step, WARMUP, len(batches), FLOOR)
        cast = {name: each.to(dtype) for name, each in params.items()}
        logits = logits_of(functools.partial(torch.func.functional_call, model, cast), tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        adamw.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        adamw.step()
        losses.append(loss.item())
    return losses, {name: params[name].detach() for name in names}


def start_weights(model, names, path):
    """Random matrices, and vectors near those of the constructor: scales of 1, or of 0 where Gemma adds 1."""
    generator = torch.Generator().manual_seed(3)
    params = dict(model.named_parameters())
    with torch.no_grad():
        torch.cat([torch.randn(params[name].numel(), generator=generator) * 0.05
                   + (params[name].flatten() if params[name].dim() == 1 else 0) for name in names]).numpy().tofile(path)


def run_package(package, directory, start, changed, *flags):
    made = job_spec(SETTING, {})
    made["model"], made["train"]["steps"] = {"package": {"path": str(package)}}, STEPS
    for section, fields in changed.items():
        made[section] = {**made.get(section, {}), **fields}
    return run_ours(directory, made, start, *flags)


def assert_trains_like(model, package, directory, *jobs, loss_tolerance=LOSS_TOLERANCE, dtype=torch.float32, logits_of=logits_of):
    """Each job (sections of its spec), against a plain loop on the batches of the first."""
    model = model.train()
    names = list(names_of(package))
    start_weights(model, names, directory / "start")
    losses = weights = None
    for job in jobs:
        flags = ["--dump-batches", directory / "batches"] if losses is None else []
        ours = run_package(package, directory, directory / "start", job, *flags)
        if losses is None:
            batches = torch.from_numpy(numpy.fromfile(directory / "batches", dtype=numpy.int64))
            losses, weights = train(model, names, directory / "start", batches.reshape(STEPS, 2, GLOBAL_BATCH, SEQUENCE), dtype,
                                    logits_of)
        numpy.testing.assert_allclose(ours.losses, losses, rtol=0, atol=loss_tolerance, err_msg=str(job))
        if dtype != torch.float32:
            continue
        trained = torch.from_numpy(ours.weights).split([weights[name].numel() for name in names])
        for name, values in zip(names, trained, strict=True):
            difference = (values.view_as(weights[name]) - weights[name]).norm() / weights[name].norm()
            assert difference <= WEIGHT_TOLERANCE, (job, name, difference)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.nightly)
                                  for each in MODULES])
def test_module_trains_like_pytorch(name, tmp_path):
    package = export(tmp_path, f"{exported_models.__file__}:{name}")
    # Its units pass on hidden states of several sizes.
    assert_trains_like(getattr(exported_models, name)().float(), package, tmp_path, SHARDED,
                       *([] if name == "two_streams" else [STAGES]))


@pytest.mark.parametrize("family", [pytest.param(each, marks=[] if each in EVERY_COMMIT else pytest.mark.nightly)
                                    for each in FAMILIES])
def test_published_family_trains_like_transformers(family, tmp_path):
    config = config_of(family)
    config.save_pretrained(tmp_path / "hf")
    # Initial values of Mamba's time steps are logarithms of random numbers.
    values = ["--initial-values", "data"] if family == "mamba2" else []
    package = export(tmp_path, "--hf", tmp_path / "hf", *values)
    assert_trains_like(transformers_model(config), package, tmp_path, SHARDED, REPLICAS, STAGES)
    if family in EVERY_COMMIT:
        runs = [run_package(package, tmp_path, tmp_path / "start", {**SHARDED, "train": {"deterministic": True}}) for _ in range(2)]
        assert runs[0].losses == runs[1].losses and (runs[0].weights == runs[1].weights).all()


def transformers_model(config):
    # Attention of transformers drops the soft cap of scores with sdpa; Mamba has no attention.
    eager = getattr(config, "attn_logit_softcapping", None) or config.model_type == "mamba2"
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager" if eager else "sdpa").float()


@pytest.mark.parametrize("family, layers", [
    ("gemma2", 1), *(pytest.param(family, 2, marks=pytest.mark.nightly) for family in ("gemma3", "phi3"))])
def test_documents_train_like_single_documents(family, layers, tmp_path):
    config = config_of(family, num_hidden_layers=layers)
    config.save_pretrained(tmp_path / "hf")
    package = export(tmp_path, "--hf", tmp_path / "hf", recompute="none,full", documents=True)
    full = {"fsdp": {**SHARDED["fsdp"], "recompute": "full"}}
    assert_trains_like(transformers_model(config), package, tmp_path, *({**job, **PACKED} for job in (SHARDED, full, STAGES)),
                       logits_of=logits_by_document)
    # Without documents, positions count from 0 in each sample.
    assert_trains_like(transformers_model(config), package, tmp_path, SHARDED, STAGES)


@pytest.mark.nightly
def test_recompute_modes_train_like_transformers(tmp_path):
    config = config_of("gemma2")
    config.save_pretrained(tmp_path / "hf")
    package = export(tmp_path, "--hf", tmp_path / "hf", recompute="none,selective,full")
    modes = [{"fsdp": {"strategy": "optim_grads", "recompute": mode}} for mode in ("none", "selective", "full")]
    assert_trains_like(transformers_model(config), package, tmp_path, *modes)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype, tolerance", [("bf16", 0.02), ("fp16", 0.004)])
def test_half_precision_trains_like_transformers(dtype, tolerance, tmp_path):
    config = config_of("gemma2")
    config.save_pretrained(tmp_path / "hf")
    package = export(tmp_path, "--hf", tmp_path / "hf", dtype=dtype)
    job = {"fsdp": {"strategy": "optim_grads_params"}, "precision": {"compute": dtype}}
    assert_trains_like(transformers_model(config), package, tmp_path, job, {**job, **STAGES}, loss_tolerance=tolerance,
                       dtype={"bf16": torch.bfloat16, "fp16": torch.float16}[dtype])
