"""Tests of `fsdpctl ckpt convert` from and to Megatron-Core's torch_dist, which PyTorch's DCP writes here in Megatron-
Core's layout. Also uses Megatron-Core itself if it is installed (it is not a dependency: see docs/checkpoints.md)."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from models import build
from setting import (
    BETAS, EPSILON, GLOBAL_BATCH, MODELS, STEPS, Setting, assert_agree, job_spec, run_ours, write_start_weights,
)
from test_checkpoint import same
from test_convert import convert, ctl, load, logits, model_of

from harness.programs import ROOT, program

DONE = 12  # Steps of STEPS.
MEGATRON = importlib.util.find_spec("megatron") and importlib.util.find_spec("psutil")
LLAMA_LAYER = {"self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
               "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
               "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
               "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
               "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
               "mlp.linear_fc2.weight": "mlp.down_proj.weight"}
GPT2_LAYER = {"self_attention.linear_qkv.layer_norm_weight": "ln_1.weight", "self_attention.linear_qkv.layer_norm_bias": "ln_1.bias",
              "self_attention.linear_proj.bias": "attn.c_proj.bias", "mlp.linear_fc1.layer_norm_weight": "ln_2.weight",
              "mlp.linear_fc1.layer_norm_bias": "ln_2.bias", "mlp.linear_fc1.bias": "mlp.c_fc.bias",
              "mlp.linear_fc2.bias": "mlp.c_proj.bias"}
GPT2_TRANSPOSED = {"self_attention.linear_proj.weight": "attn.c_proj.weight", "mlp.linear_fc1.weight": "mlp.c_fc.weight",
                   "mlp.linear_fc2.weight": "mlp.c_proj.weight"}


def by_group(queries, keys, values, config):
    """Interleaves queries of a group of heads with its key and value, group by group."""
    groups = getattr(config, "num_key_value_heads", config.num_attention_heads)
    parts = [each.reshape(groups, -1, *each.shape[1:]) for each in (queries, keys, values)]
    return torch.cat(parts, dim=1).flatten(0, 1)


def layer_of(state, prefix, config):
    """Returns a layer with Megatron-Core's names and layout."""
    gpt2 = config.model_type == "gpt2"
    inside = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    layer = {}
    for kind in ("weight", "bias"):
        if gpt2:
            whole = inside[f"attn.c_attn.{kind}"]
            layer[f"self_attention.linear_qkv.{kind}"] = by_group(*(whole.T if kind == "weight" else whole).chunk(3), config)
        elif f"self_attn.q_proj.{kind}" in inside:
            each = [inside[f"self_attn.{letter}_proj.{kind}"] for letter in "qkv"]
            layer[f"self_attention.linear_qkv.{kind}"] = by_group(*each, config)
    if not gpt2:
        layer["mlp.linear_fc1.weight"] = torch.cat([inside["mlp.gate_proj.weight"], inside["mlp.up_proj.weight"]])
    names = GPT2_LAYER if gpt2 else LLAMA_LAYER
    layer |= {megatrons: inside[theirs] for megatrons, theirs in names.items() if theirs in inside}
    return layer | {megatrons: inside[theirs].T.contiguous() for megatrons, theirs in GPT2_TRANSPOSED.items() if gpt2}


def megatron_state(model, stacked):
    state, config = model.state_dict(), model.config
    gpt2 = config.model_type == "gpt2"
    layers = [layer_of(state, f"transformer.h.{number}." if gpt2 else f"model.layers.{number}.", config)
              for number in range(config.num_hidden_layers)]
    ends = {"embedding.word_embeddings.weight": "wte.weight", "embedding.position_embeddings.weight": "wpe.weight",
            "decoder.final_layernorm.weight": "ln_f.weight", "decoder.final_layernorm.bias": "ln_f.bias"} if gpt2 else {
            "embedding.word_embeddings.weight": "embed_tokens.weight", "decoder.final_layernorm.weight": "norm.weight"}
    made = {megatrons: state[("transformer." if gpt2 else "model.") + theirs] for megatrons, theirs in ends.items()}
    if not config.tie_word_embeddings:
        made["output_layer.weight"] = state["lm_head.weight"]
    for name in layers[0]:
        if stacked:
            made[f"decoder.layers.{name}"] = torch.stack([layer[name] for layer in layers])
        else:
            made |= {f"decoder.layers.{number}.{name}": layer[name] for number, layer in enumerate(layers)}
    return made


@pytest.fixture(params=["llama 3.1", "qwen2", "qwen3", "gpt2"], scope="module")
def saved(request, tmp_path_factory):
    """(model, its Hugging Face directory, native checkpoint converted from it)"""
    directory, model = tmp_path_factory.mktemp("saved"), model_of(request.param)
    model.save_pretrained(directory / "hf")
    convert(directory / "hf", directory / "native", "--to", "fsdp_dtensor")
    return model, directory / "hf", directory / "native"


@pytest.mark.parametrize("stacked", [True, False], ids=["layers along an axis", "each layer for itself"])
def test_reads_torch_dist(saved, stacked, tmp_path):
    model, hf, native = saved
    state = megatron_state(model, stacked)
    dcp.save({**state, "rng_state.tracker": torch.ones(3)}, checkpoint_id=tmp_path / "theirs", no_dist=True)
    (tmp_path / "theirs/metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    done = convert(tmp_path / "theirs", tmp_path / "native", "--to", "fsdp_dtensor", "--config", hf / "config.json")
    assert "note: omitted" in done.stderr
    assert ctl("diff", native, tmp_path / "native").returncode == 0
    same_model = ctl("diff", tmp_path / "theirs", hf)
    assert same_model.returncode == 0 and "rng_state" in same_model.stderr, same_model.stdout
    convert(tmp_path / "theirs", tmp_path / "hf", "--to", "hf", "--config", hf / "config.json", "--dtype", "float32")
    assert torch.equal(logits(load(tmp_path / "hf")), logits(model))


@pytest.mark.parametrize("stacked", [True, False], ids=["layers along an axis", "each layer for itself"])
def test_reads_optimizer_state(saved, stacked, tmp_path):
    """In the layout of a mixed-precision optimizer: main parameters next to the bfloat16 model, and a single step count
    as a tensor in common.pt, next to classes that are not unpickled."""
    model, hf, native = saved
    main = megatron_state(model, stacked)
    state = {name: tensor.to(torch.bfloat16) for name, tensor in main.items()}
    for what, factor in (("fp32_param", 1), ("exp_avg", 2), ("exp_avg_sq", 3)):
        state |= {f"optimizer.state.{what}.{name}": tensor * factor for name, tensor in main.items()}
    dcp.save(state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    (tmp_path / "theirs/metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    torch.save({"args": argparse.Namespace(dtype=torch.bfloat16), "iteration": 9, "opt_param_scheduler": {"num_steps": 72},
                "optimizer": {"optimizer": {"param_groups": [], "state": {"common_step": torch.tensor(8.0)}}}},
               tmp_path / "theirs/common.pt")
    convert(tmp_path / "theirs", tmp_path / "native", "--to", "fsdp_dtensor", "--config", hf / "config.json")
    ours, expected = torch_state(tmp_path / "native"), torch_state(native)
    for name in [name for name in expected if name != "fsdpd.spec"]:
        inner = name.removeprefix("model.module.")
        same(ours.pop(name), expected[name])
        for what, factor in (("exp_avg", 2), ("exp_avg_sq", 3)):
            same(ours.pop(f"optimizer.state.module.module.module.{inner}.{what}"), expected[name] * factor)
        assert ours.pop(f"optimizer.state.module.module.module.{inner}.step") == 8
    assert ours.pop("fsdpd.spec") == expected["fsdpd.spec"]
    assert ours == {"iteration": 9, "checkpoint_version": 3.0, "opt_param_scheduler.num_steps": 72, "fsdpd.samples": 72,
                    "fsdpd.steps_taken": 8}


def test_writes_torch_dist(saved, tmp_path):
    model, hf, native = saved
    convert(native, tmp_path / "out", "--to", "torch_dist", "--config", hf / "config.json", "--shard-bytes", "100KB")
    expected = megatron_state(model, stacked=True)
    read = {name: torch.empty_like(tensor) for name, tensor in expected.items()}
    dcp.load(read, checkpoint_id=tmp_path / "out", no_dist=True)
    names = dcp.FileSystemReader(tmp_path / "out").read_metadata().state_dict_metadata
    assert names.keys() == expected.keys() and len(list((tmp_path / "out").glob("*.distcp"))) > 1
    for name, tensor in read.items():
        same(tensor, expected[name])
    assert torch.load(tmp_path / "out/common.pt", weights_only=True)["checkpoint_version"] == 3.0
    assert json.loads((tmp_path / "out/metadata.json").read_text())["sharded_backend"] == "torch_dist"
    assert ctl("verify", tmp_path / "out").returncode == 0
    convert(tmp_path / "out", tmp_path / "back", "--to", "fsdp_dtensor", "--config", hf / "config.json")
    assert ctl("diff", native, tmp_path / "back").returncode == 0


def test_rounds_on_request(saved, tmp_path):
    model, hf, native = saved
    convert(native, tmp_path / "out", "--to", "torch_dist", "--config", hf / "config.json", "--dtype", "bfloat16")
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in megatron_state(model, stacked=True).items()}
    read = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    dcp.load(read, checkpoint_id=tmp_path / "out", no_dist=True)
    for name, tensor in read.items():
        same(tensor, tensors[name])


def torch_state(directory):
    """Returns every tensor and value of a checkpoint, read by torch."""
    names = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
    state = {name: torch.empty(of.size, dtype=of.properties.dtype) if hasattr(of, "size") else None for name, of in names.items()}
    dcp.load(state, checkpoint_id=directory, no_dist=True)
    return state


def equal(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        if torch.is_tensor(value):
            same(value, second[name])
        else:
            assert value == second[name], name


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(its start, its spec, the Result of an uninterrupted run, the checkpoint after DONE steps)"""
    directory = tmp_path_factory.mktemp("trained")
    setting = Setting(2, 1, True, "llama")
    write_start_weights(build(MODELS["llama"]).parameters(), directory / "start")
    spec = job_spec(setting, {"strategy": "optim_grads_params"})
    result = run_ours(directory, {**spec, "checkpoint": {"dir": str(directory / "runs"), "every_steps": DONE}}, directory / "start")
    (directory / "job.yaml").write_text(json.dumps(spec))
    return directory, spec, result, directory / f"runs/iter_{DONE:07d}"


def test_optimizer_state_round_trip(trained, tmp_path):
    """Through a directory with Megatron-Core's names, which torch reads, back to a bit-identical checkpoint."""
    directory, _, _, native = trained
    spec = ["--spec", directory / "job.yaml"]
    done = convert(native, tmp_path / "theirs", "--to", "torch_dist", "--shard-bytes", "200KB", *spec)
    assert "left out" not in done.stderr
    names = dcp.FileSystemReader(tmp_path / "theirs").read_metadata().state_dict_metadata
    model = {name for name in names if not name.startswith("optimizer.state.")}
    for what in ("param", "exp_avg", "exp_avg_sq"):
        assert {f"optimizer.state.{what}.{name}" for name in model} < names.keys()
    assert len(names) == 4 * len(model)
    common = torch.load(tmp_path / "theirs/common.pt", weights_only=True)
    assert common["iteration"] == DONE and common["opt_param_scheduler"]["num_steps"] == DONE * GLOBAL_BATCH
    groups = common["optimizer"]["optimizer"]["param_groups"]
    assert [(group["step"], group["betas"], group["eps"], group["wd_mult"]) for group in groups] == [
        (DONE, tuple(BETAS), EPSILON, wd_mult) for wd_mult in (1, 0)]
    assert common["content_metadata"]["distrib_optim_sharding_type"] == "fully_reshardable"
    assert ctl("verify", tmp_path / "theirs").returncode == 0
    convert(tmp_path / "theirs", tmp_path / "back", "--to", "fsdp_dtensor", *spec)
    first, second = torch_state(native), torch_state(tmp_path / "back")
    assert first.pop("fsdpd.spec") == "" and "heads" in second.pop("fsdpd.spec")  # A job of the service has one itself.
    equal(first, second)


@pytest.mark.parametrize("train, batch", [({"global_batch": 6}, 6), ({}, 4)])
def test_scheduler_counts_samples_without_global_batch(trained, tmp_path, train, batch):
    """Regression: all lengths were 0, and Megatron-LM would train at the minimum learning rate."""
    _, spec, _, native = trained
    warmup = spec["schedule"]["cosine"]["warmup_steps"]
    (tmp_path / "job.yaml").write_text(json.dumps({**spec, "train": {"steps": 9, "micro_batch": 2, **train}}))
    convert(native, tmp_path / "theirs", "--to", "torch_dist", "--spec", tmp_path / "job.yaml")
    scheduler = torch.load(tmp_path / "theirs/common.pt", weights_only=True)["opt_param_scheduler"]
    assert (scheduler["lr_decay_steps"], scheduler["lr_warmup_steps"]) == (9 * batch, warmup * batch)


def test_documented_commands_work(trained, tmp_path):
    directory, _, _, native = trained
    (tmp_path / "runs/9").mkdir(parents=True)
    (tmp_path / "runs/9/iter_0001000").symlink_to(native)
    (tmp_path / "job.yaml").symlink_to(directory / "job.yaml")
    lines = (ROOT / "docs/checkpoints.md").read_text().splitlines()
    reported = [(line.removeprefix("$ fsdpctl ").split(), answer) for line, answer in zip(lines, lines[1:])
            if line.startswith("$ fsdpctl ckpt convert") and "megatron" in line]
    assert len(reported) == 2
    for command, answer in reported:
        done = subprocess.run([program("client/fsdpctl"), *command], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0 and not done.stderr, done.stderr
        assert done.stdout.split()[0] == answer.split()[0] and done.stdout.split()[-1] == answer.split()[-1]
    equal({name: value for name, value in torch_state(native).items() if name != "fsdpd.spec"},
          {name: value for name, value in torch_state(tmp_path / "back").items() if name != "fsdpd.spec"})


def test_training_resumes_after_round_trip(trained, tmp_path):
    directory, spec, whole, native = trained
    job = ["--spec", directory / "job.yaml"]
    convert(native, tmp_path / "theirs", "--to", "torch_dist", "--dtype", "bfloat16", *job)
    convert(tmp_path / "theirs", tmp_path / "back", "--to", "fsdp_dtensor", *job)
    resumed = run_ours(tmp_path, {**spec, "checkpoint": {"load": str(tmp_path / "back")}}, directory / "start")
    assert_agree(resumed, type(whole)(whole.losses[DONE:], whole.weights), STEPS - DONE)


MEGATRON_LOGITS = Path(__file__).with_name("megatron_rank.py")


@pytest.mark.skipif(not MEGATRON, reason="needs megatron-core and psutil, which are not in the project's environment")
@pytest.mark.timeout(400)  # Each start of Megatron-Core imports torch three times.
@pytest.mark.parametrize("way", ["read", "write"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_megatron_core_computes_equal_logits(name, way, tmp_path):
    """`write`: it loads a converted checkpoint; `read`: its checkpoint is converted."""
    model = model_of({"llama": "mistral"}.get(name, name))
    model.save_pretrained(tmp_path / "hf")
    config = tmp_path / "hf/config.json"

    def megatron(*arguments):
        subprocess.run([sys.executable, MEGATRON_LOGITS, *map(str, arguments)], check=True, capture_output=True,
                       env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})

    if way == "write":
        convert(tmp_path / "hf", tmp_path / "out", "--to", "torch_dist")
        megatron("load", config, tmp_path / "out", tmp_path / "logits.pt")
    else:
        megatron("save", config, tmp_path / "out", tmp_path / "logits.pt")
        convert(tmp_path / "out", tmp_path / "theirs", "--to", "hf", "--config", config, "--dtype", "float32")
        model = load(tmp_path / "theirs")
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), logits(model), rtol=0, atol=2e-5)


MEGATRON_OPTIMIZER = Path(__file__).with_name("megatron_optimizer_rank.py")
THEIR_CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
                "num_key_value_heads": 2, "intermediate_size": 96, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                "vocab_size": 256, "tie_word_embeddings": False}
THEIR_LAYER = {"input_layernorm.weight": "attention_norm", "self_attention.linear_proj.weight": "attention.wo",
               "pre_mlp_layernorm.weight": "ffn_norm", "mlp.linear_fc2.weight": "ffn.w2"}


def ours_of(states):
    """Returns the state of Megatron-Core's optimizer by our names and in our layout."""
    ours = {}
    for name, state in states.items():
        for what, tensor in state.items():
            if not name.startswith("decoder.layers."):
                known = {"embedding.word_embeddings.weight": "embedding.weight", "output_layer.weight": "head.output",
                         "decoder.final_layernorm.weight": "head.norm"}
                ours[known[name], what] = tensor
                continue
            number, inner = name.removeprefix("decoder.layers.").split(".", 1)
            if inner == "self_attention.linear_qkv.weight":
                groups = tensor.reshape(2, 4, 16, 64)  # Of each: two heads of queries, one of keys, one of values.
                parts = {"attention.wq": groups[:, :2], "attention.wk": groups[:, 2:3], "attention.wv": groups[:, 3:]}
                parts = {known: part.reshape(-1, 64) for known, part in parts.items()}
            elif inner == "mlp.linear_fc1.weight":
                parts = dict(zip(("ffn.w1", "ffn.w3"), tensor.chunk(2)))
            else:
                parts = {THEIR_LAYER[inner]: tensor}
            ours |= {(f"layer.{number}.{known}", what): part for known, part in parts.items()}
    return ours


def megatrons_optimizer(way, kind, directory, out, config):
    subprocess.run([sys.executable, MEGATRON_OPTIMIZER, way, kind, config, directory, out], check=True, capture_output=True,
                   env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    return torch.load(out)


@pytest.mark.skipif(not MEGATRON, reason="needs megatron-core and psutil, which are not in the project's environment")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["fully_reshardable", "plain"])
def test_training_resumes_from_megatron_core_optimizer(kind, tmp_path):
    """Main parameters and moments equal those of its optimizer bit by bit, and again after it loaded a checkpoint
    converted from ours. Then it continues training."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(THEIR_CONFIG))
    held = megatrons_optimizer("save", kind, tmp_path / "theirs", tmp_path / "held.pt", config)
    convert(tmp_path / "theirs", tmp_path / "native", "--to", "fsdp_dtensor", "--config", config)
    native, expected = torch_state(tmp_path / "native"), ours_of(held["states"])
    state = "optimizer.state.module.module.module."
    for (name, what), tensor in expected.items():
        same(native.pop(f"model.module.{name}" if what == "param" else f"{state}{name}.{what}"), tensor)
    assert {native.pop(f"{state}{name}.step").item() for name, what in expected if what == "param"} == {held["steps"]} == {3}
    assert native.pop("iteration") == 3 and native.pop("fsdpd.samples") == 6
    assert "heads" in native.pop("fsdpd.spec")
    assert native == {"checkpoint_version": 3.0, "opt_param_scheduler.num_steps": 6, "fsdpd.steps_taken": 3}
    (tmp_path / "job.yaml").write_text(json.dumps(
        {"name": "x", "model": {"hf_config": str(config)}, "train": {"steps": 9},
         "optimizer": {"adamw": {"lr": 1e-2, "betas": [0.9, 0.999]}}}))
    convert(tmp_path / "native", tmp_path / "again", "--to", "torch_dist", "--dtype", "bfloat16", "--spec", tmp_path / "job.yaml")
    again = megatrons_optimizer("load", "fully_reshardable", tmp_path / "again", tmp_path / "again.pt", config)
    assert again["steps"] == 3 and again["states"].keys() == held["states"].keys()
    for name, state in held["states"].items():
        for what, tensor in state.items():
            same(again["states"][name][what], tensor)


@pytest.mark.skipif(not MEGATRON, reason="needs megatron-core and psutil, which are not in the project's environment")
@pytest.mark.timeout(200)
def test_rejects_megatron_core_buckets(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(THEIR_CONFIG))
    megatrons_optimizer("save", "dp_reshardable", tmp_path / "theirs", tmp_path / "held.pt", config)
    refused = ctl("convert", tmp_path / "theirs", tmp_path / "native", "--to", "fsdp_dtensor", "--config", config)
    assert refused.returncode == 9 and not (tmp_path / "native").exists()
    (line,) = refused.stderr.splitlines()
    assert "optimizer.distributed.dp_group_idx_0." in line and "--dist-ckpt-optim-fully-reshardable" in line
    convert(tmp_path / "theirs", tmp_path / "native", "--to", "fsdp_dtensor", "--config", config, "--no-optimizer")
