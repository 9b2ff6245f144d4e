"""Tests of exported PyTorch models that fsdpd does not know: `fsdpctl model export`, then two ranks without Python, against
the same module in a plain PyTorch loop on the same batches."""

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
LOSS_TOLERANCE = 1e-5   # Per token.
WEIGHT_TOLERANCE = 1e-3  # Relative norm of each tensor.
SETTING = Setting(world=2, accumulation=1, clip=True)
MODULES = ["alibi", "conv_mixer", "two_streams", "dense_experts"]
SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 8, "pad_token_id": 0}
# Published families, by the config class of transformers.
FAMILIES = {
    "gemma2": ("Gemma2Config", {"sliding_window": 8, "query_pre_attn_scalar": 8}),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 8, "query_pre_attn_scalar": 8, "sliding_window_pattern": 2}),
    "phi3": ("Phi3Config", {}),
    "olmo2": ("Olmo2Config", {}),
    "glm4": ("Glm4Config", {}),
    "falcon": ("FalconConfig", {"new_decoder_architecture": True, "num_kv_heads": 2, "hidden_dropout": 0.0}),
    "starcoder2": ("Starcoder2Config", {"residual_dropout": 0.0}),
    "cohere": ("CohereConfig", {}),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "mamba2": ("Mamba2Config", {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 8}),
}
# Sliding windows, soft caps and tied embeddings.
EVERY_COMMIT = ["gemma2"]


def config_of(family):
    kind, own = FAMILIES[family]
    return getattr(transformers, kind)(**{**SMALL, **own}, use_cache=False)


def export(directory, *source, setting=SETTING):
    package = directory / "model.fsdpd"
    command = [sys.executable, "-m", "fsdpd.model", "export", *source, "--sequence-length", SEQUENCE, "--micro-batch-size",
               setting.micro_batch, "--dtype", "fp32", "--device", "cpu", "--recompute", "none", "-o", package]
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


def train(model, names, start, batches):
    """A plain training loop; returns the losses, and the weights by name."""
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
        loss = torch.nn.functional.cross_entropy(logits_of(model, tokens).flatten(0, 1).float(), targets.flatten())
        adamw.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        adamw.step()
        losses.append(loss.item())
    return losses, {name: params[name].detach() for name in names}


def assert_trains_like(model, package, directory, **fsdp):
    model = model.float().train()
    names = list(names_of(package))
    generator = torch.Generator().manual_seed(3)
    params = dict(model.named_parameters())
    start = directory / "start"
    torch.cat([torch.randn(params[name].numel(), generator=generator) * 0.05 + (params[name].dim() == 1)
               for name in names]).numpy().tofile(start)
    made = job_spec(SETTING, fsdp or {"strategy": "optim_grads_params"})
    made["model"], made["train"]["steps"] = {"package": {"path": str(package)}}, STEPS
    ours = run_ours(directory, made, start, "--dump-batches", directory / "batches")
    batches = torch.from_numpy(numpy.fromfile(directory / "batches", dtype=numpy.int64))
    losses, weights = train(model, names, start, batches.reshape(STEPS, 2, GLOBAL_BATCH, SEQUENCE))
    numpy.testing.assert_allclose(ours.losses, losses, rtol=0, atol=LOSS_TOLERANCE)
    trained = torch.from_numpy(ours.weights).split([weights[name].numel() for name in names])
    for name, values in zip(names, trained, strict=True):
        difference = (values.view_as(weights[name]) - weights[name]).norm() / weights[name].norm()
        assert difference <= WEIGHT_TOLERANCE, (name, difference)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.nightly)
                                  for each in MODULES])
def test_module_trains_like_pytorch(name, tmp_path):
    package = export(tmp_path, f"{exported_models.__file__}:{name}")
    assert_trains_like(getattr(exported_models, name)(), package, tmp_path)


@pytest.mark.parametrize("family", [pytest.param(each, marks=[] if each in EVERY_COMMIT else pytest.mark.nightly)
                                    for each in FAMILIES])
def test_published_family_trains_like_transformers(family, tmp_path):
    config = config_of(family)
    config.save_pretrained(tmp_path / "hf")
    package = export(tmp_path, "--hf", tmp_path / "hf")
    # Attention of transformers drops the soft cap of scores with sdpa; Mamba has no attention.
    eager = getattr(config, "attn_logit_softcapping", None) or family == "mamba2"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager" if eager else "sdpa")
    assert_trains_like(model, package, tmp_path)
