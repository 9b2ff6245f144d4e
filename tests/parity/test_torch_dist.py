"""`fsdpctl ckpt convert` from and to Megatron-Core's torch_dist, written here by PyTorch's DCP in Megatron-Core's layout;
and by Megatron-Core itself where the package is there (it is not among the project's: see docs/checkpoints.md).
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from test_checkpoint import same
from test_convert import convert, ctl, load, logits, model_of

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
    """Queries of a group of heads, then its key and its value, then the next group's."""
    groups = getattr(config, "num_key_value_heads", config.num_attention_heads)
    parts = [each.reshape(groups, -1, *each.shape[1:]) for each in (queries, keys, values)]
    return torch.cat(parts, dim=1).flatten(0, 1)


def layer_of(state, prefix, config):
    """One layer as Megatron-Core names and lays it out."""
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
    """(a model, its Hugging Face folder, the native checkpoint that was made of it)."""
    folder, model = tmp_path_factory.mktemp("saved"), model_of(request.param)
    model.save_pretrained(folder / "hf")
    convert(folder / "hf", folder / "native", "--to", "fsdp_dtensor")
    return model, folder / "hf", folder / "native"


@pytest.mark.parametrize("stacked", [True, False], ids=["layers along an axis", "each layer for itself"])
def test_torch_dist_is_read(saved, stacked, tmp_path):
    model, hf, native = saved
    state = megatron_state(model, stacked)
    moments = {f"optimizer.state.exp_avg.{name}": tensor for name, tensor in state.items()}
    dcp.save({**state, **moments}, checkpoint_id=tmp_path / "theirs", no_dist=True)
    (tmp_path / "theirs/metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    done = convert(tmp_path / "theirs", tmp_path / "native", "--to", "fsdp_dtensor", "--config", hf / "config.json")
    assert "note: left out" in done.stderr
    assert ctl("diff", native, tmp_path / "native").returncode == 0
    same_model = ctl("diff", tmp_path / "theirs", hf)
    assert same_model.returncode == 0 and "optimizer.state." in same_model.stderr, same_model.stdout
    convert(tmp_path / "theirs", tmp_path / "hf", "--to", "hf", "--config", hf / "config.json", "--dtype", "float32")
    assert torch.equal(logits(load(tmp_path / "hf")), logits(model))


def test_torch_dist_is_written(saved, tmp_path):
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


def test_numbers_are_rounded_where_that_is_asked_for(saved, tmp_path):
    model, hf, native = saved
    convert(native, tmp_path / "out", "--to", "torch_dist", "--config", hf / "config.json", "--dtype", "bfloat16")
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in megatron_state(model, stacked=True).items()}
    read = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    dcp.load(read, checkpoint_id=tmp_path / "out", no_dist=True)
    for name, tensor in read.items():
        same(tensor, tensors[name])


MEGATRON_LOGITS = Path(__file__).with_name("megatron_rank.py")


@pytest.mark.skipif(not MEGATRON, reason="needs megatron-core and psutil, which are not in the project's environment")
@pytest.mark.timeout(400)  # Each start of Megatron-Core imports torch three times.
@pytest.mark.parametrize("way", ["read", "write"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_megatron_core_computes_the_same(name, way, tmp_path):
    """`write`: it loads what was converted for it; `read`: what it saved is converted."""
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
