"""Tests of `fsdpctl ckpt convert` and `diff` against transformers, safetensors and torch.distributed.checkpoint, with
models created from their configurations without downloads. Comparisons are bit-exact."""

import json
import shutil
import subprocess

import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_checkpoint import make, read_ours, same, write_ours
from test_transformers import CONFIGS, GPT2_LAYER, LLAMA_LAYER, has_experts, parameters

from harness.programs import ROOT, program

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Our names, in the order in which test_transformers.py hands a model's parameters to our engine.
LLAMA_NAMES = {"input_layernorm": "attention_norm", "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk",
               "self_attn.v_proj": "attention.wv", "self_attn.q_norm": "attention.q_norm",
               "self_attn.k_norm": "attention.k_norm", "self_attn.q_a_proj": "attention.wq_a",
               "self_attn.kv_a_proj_with_mqa": "attention.wkv_a", "self_attn.q_a_layernorm": "attention.q_a_norm",
               "self_attn.q_b_proj": "attention.wq_b", "self_attn.kv_a_layernorm": "attention.kv_a_norm",
               "self_attn.kv_b_proj": "attention.wkv_b", "self_attn.o_proj": "attention.wo",
               "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn.w1", "mlp.up_proj": "ffn.w3",
               "mlp.down_proj": "ffn.w2"}
GPT2_NAMES = {"ln_1": "attention_norm", "attn.c_attn": "attention.wqkv", "attn.c_proj": "attention.wo", "ln_2": "ffn_norm",
              "mlp.c_fc": "ffn.w1", "mlp.c_proj": "ffn.w2"}


def ctl(*arguments):
    return subprocess.run([program("client/fsdpctl"), "ckpt", *map(str, arguments)], capture_output=True, text=True)


def convert(*arguments):
    done = ctl("convert", *arguments)
    assert done.returncode == 0, done.stderr
    return done


def model_of(name):
    config = CONFIGS[name]
    config.architectures = [transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():  # Norms and biases too: where they start they are alike.
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def logits(model):
    with torch.no_grad():
        return model(torch.arange(24).reshape(2, 12) % 256).logits


def load(directory):
    """Loads a model like a user; no parameter may be missing, unexpected or newly initialized."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager",
                                                                    output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def our_names(model):
    """Returns our name of each of test_transformers.parameters(model), which the engine trains."""
    gpt2 = model.config.model_type == "gpt2"
    names = ["embedding.weight", *(["embedding.positions"] if gpt2 else [])]
    layers = model.base_model.h if gpt2 else model.base_model.layers
    for number, layer in enumerate(layers):
        within = dict(layer.named_modules())
        for module in (each for each in (GPT2_LAYER if gpt2 else LLAMA_LAYER) if each in within):
            ours = f"layer.{number}.{(GPT2_NAMES if gpt2 else LLAMA_NAMES)[module]}"
            norm = "layernorm" in module or "_norm" in module or "ln_" in module
            bias = getattr(within[module], "bias", None) is not None
            names.append(f"{ours}.weight" if norm and bias else ours)
            if bias:
                names.append(f"{ours}.bias" if norm else ours.replace(".w", ".b"))
    names += ["head.norm.weight", "head.norm.bias"] if gpt2 else ["head.norm"]
    return names if model.config.tie_word_embeddings else [*names, "head.output"]


@pytest.fixture(params=CONFIGS, scope="module")
def saved(request, tmp_path_factory):
    """(model, directory saved by transformers, native checkpoint converted from it)"""
    directory, model = tmp_path_factory.mktemp("saved"), model_of(request.param)
    model.save_pretrained(directory / "hf")
    convert(directory / "hf", directory / "native", "--to", "fsdp_dtensor", "--shard-bytes", "100KB")
    return model, directory / "hf", directory / "native"


def test_native_tensors_match_engine(saved, tmp_path):
    model, _, native = saved
    if has_experts(model.config):
        pytest.skip("experts are one tensor here and many there: what comes back compares them")
    tensors, values = read_ours(native, tmp_path / "read")
    expected = {f"model.module.{name}": parameter.detach()
                for name, parameter in zip(our_names(model), parameters(model), strict=True)}
    assert tensors.keys() == expected.keys() and values == {"fsdpd.spec": "a string"}
    for name, tensor in tensors.items():
        same(tensor, expected[name])
    assert len(list(native.glob("*.distcp"))) > 1 and ctl("verify", native).returncode == 0


def test_converted_transformers_model_is_complete_and_equal(saved, tmp_path):
    model, hf, native = saved
    model.save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    for directory in (hf, tmp_path / "shards"):
        done = ctl("verify", directory)
        assert done.returncode == 0 and done.stdout.endswith(": intact\n"), done.stderr
        done = ctl("diff", native, directory)
        assert done.returncode == 0 and done.stdout.startswith("equal: ") and done.stdout.endswith(" parameters\n"), done.stderr
    next((tmp_path / "shards").glob("*-00002-of-*.safetensors")).unlink()
    assert ctl("verify", tmp_path / "shards").returncode == 9


@pytest.mark.parametrize("shard_bytes", ["5GB", "150KB"])
def test_round_trip_keeps_logits(saved, shard_bytes, tmp_path):
    model, hf, native = saved
    convert(native, tmp_path / "back", "--to", "hf", "--config", hf / "config.json", "--dtype", "float32", "--shard-bytes",
            shard_bytes)
    files = list((tmp_path / "back").glob("*.safetensors"))
    assert len(files) > 1 if shard_bytes == "150KB" else [file.name for file in files] == ["model.safetensors"]
    # Sums of experts' products round by where tensors lie.
    torch.testing.assert_close(logits(load(tmp_path / "back")), logits(model), rtol=0,
                               atol=1e-5 if has_experts(model.config) else 0)
    assert ctl("diff", hf, tmp_path / "back").returncode == 0
    with safe_open(files[0], framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", None])
def test_rounds_like_torch(saved, dtype, tmp_path):
    model, hf, native = saved
    convert(native, tmp_path / "out", "--to", "hf", "--config", hf / "config.json", *(["--dtype", dtype] if dtype else []))
    requested = DTYPES[dtype or "bfloat16"]
    # DeepSeek's own files have selection biases in float32 too: they change by less than the precision of bfloat16.
    expected = {name: tensor if name.endswith("e_score_correction_bias") else tensor.to(requested)
                for name, tensor in load_file(hf / "model.safetensors").items()}
    written = load_file(tmp_path / "out/model.safetensors")
    assert written.keys() == expected.keys()
    for name, tensor in written.items():
        same(tensor, expected[name])
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").dtype == requested


def spec_of(model, directory):
    """Returns a job with explicit sizes of the model."""
    job = directory / "asked.yaml"
    job.write_text(json.dumps({"name": "x", "model": {"hf_config": str(directory / "hf/config.json")},
                               "data": {"synthetic": {}}}))
    done = subprocess.run([program("client/fsdpctl"), "plan", "--offline", "-o", "json", "-f", job, "--set",
                           "data.sequence_length=16", "--set", "train.steps=1", "--set", "train.global_batch=1",
                           "--set", "resources.device=cpu"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    resolved = json.loads(done.stdout)["resolved"]["model"]
    job.write_text(json.dumps({"name": "x", "model": resolved}))
    return job


def test_sizes_come_from_job_spec(saved, tmp_path):
    model, hf, native = saved
    shutil.copytree(hf, tmp_path / "hf")
    convert(native, tmp_path / "out", "--to", "hf", "--spec", spec_of(model, tmp_path), "--dtype", "float32")
    assert torch.equal(logits(load(tmp_path / "out")), logits(model))


@pytest.mark.parametrize("wrapped", [False, True], ids=["state at the top", "state under model"])
def test_reads_fsdp2_checkpoint_of_transformers_model(saved, wrapped, tmp_path):
    model, hf, native = saved
    state = model.state_dict()
    step = {"optimizer": {"state": {name: {"exp_avg": tensor} for name, tensor in state.items()}}, "step": 3}
    if wrapped:  # Whose name is the shorter one.
        step["ema"] = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.save({**step, **({"model": state} if wrapped else state)}, checkpoint_id=tmp_path / "theirs", no_dist=True)
    done = convert(tmp_path / "theirs", tmp_path / "native", "--to", "fsdp_dtensor", "--config", hf / "config.json")
    assert "note: omitted" in done.stderr and ("ema." if wrapped else "optimizer.state.") in done.stderr
    assert ctl("diff", native, tmp_path / "native").returncode == 0
    convert(tmp_path / "theirs", tmp_path / "hf", "--to", "hf", "--config", hf / "config.json", "--dtype", "float32")
    assert torch.equal(logits(load(tmp_path / "hf")), logits(model))


TORCHTITAN = {"model.embed_tokens": "tok_embeddings", "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk",
              "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo", "input_layernorm": "attention_norm",
              "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
              "mlp.down_proj": "feed_forward.w2", "model.norm": "norm", "lm_head": "output", "model.layers": "layers"}


def rotate_pairs(x, theta):
    """Rotary embeddings as in torchtitan: adjacent dimensions are a complex number. x: [b, s, heads, d]."""
    size = x.shape[-1]
    frequency = 1.0 / theta ** (torch.arange(0, size, 2).float() / size)
    turns = torch.polar(torch.ones(x.shape[1], size // 2), torch.outer(torch.arange(x.shape[1]).float(), frequency))
    return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * turns[None, :, None]).flatten(3)


def rotate_halves(x, theta):
    half = x.shape[-1] // 2
    angle = torch.outer(torch.arange(x.shape[1]).float(), theta ** (-torch.arange(half).float() / half))[None, :, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), dim=-1)


def test_reads_torchtitan_llama_checkpoint(tmp_path):
    model = model_of("mistral")
    state = {}
    for name, tensor in model.state_dict().items():
        for theirs, titans in TORCHTITAN.items():
            name = name.replace(theirs, titans)
        state[name] = tensor.clone()
    model.config.save_pretrained(tmp_path)
    dcp.save({**state, "train_state.step": torch.tensor(4)}, checkpoint_id=tmp_path / "theirs", no_dist=True)
    convert(tmp_path / "theirs", tmp_path / "hf", "--to", "hf", "--config", tmp_path / "config.json", "--dtype", "float32")
    converted = load_file(tmp_path / "hf/model.safetensors")
    heads = {"q_proj": 4, "k_proj": 2}
    for name, tensor in model.state_dict().items():
        turned = next((count for end, count in heads.items() if name.endswith(f"{end}.weight")), 0)
        if not turned:
            same(converted[name], tensor)
            continue
        # Scores of the same input: what torchtitan turns in pairs is what we turn in halves.
        x = torch.randn(1, 7, 64)
        theirs = rotate_pairs((x @ tensor.T).unflatten(-1, (turned, -1)), 100.0).transpose(1, 2)
        ours = rotate_halves((x @ converted[name].T).unflatten(-1, (turned, -1)), 100.0).transpose(1, 2)
        torch.testing.assert_close(theirs @ theirs.transpose(-1, -2), ours @ ours.transpose(-1, -2), rtol=0, atol=1e-4)
        assert not torch.equal(converted[name], tensor)


def test_reads_older_files(tmp_path):
    """GPT-2's own file has names without "transformer.", masks, and the tied head."""
    model = model_of("gpt2")
    model.save_pretrained(tmp_path / "new")
    old = {name.removeprefix("transformer."): tensor for name, tensor in load_file(tmp_path / "new/model.safetensors").items()}
    (tmp_path / "old").mkdir()
    shutil.copy(tmp_path / "new/config.json", tmp_path / "old")
    save_file({**old, "h.0.attn.bias": torch.ones(1, 1, 4, 4), "lm_head.weight": old["wte.weight"].clone()},
              tmp_path / "old/model.safetensors")
    for name in ("old", "new"):
        convert(tmp_path / name, tmp_path / f"{name}.native", "--to", "fsdp_dtensor")
    assert ctl("diff", tmp_path / "old.native", tmp_path / "new.native").returncode == 0


def test_reports_mismatched_model_and_writes_nothing(tmp_path):
    model_of("qwen2").save_pretrained(tmp_path / "hf")
    state = load_file(tmp_path / "hf/model.safetensors")
    state["model.layers.3.mlp.up_proj.weight"] = torch.ones(2, 2)
    state["model.norm.weight"] = torch.ones(3)
    state["model.layers.0.mlp.up_proj.weight"] = state["model.layers.0.mlp.up_proj.weight"].to(torch.int64)
    del state["model.layers.1.self_attn.q_proj.bias"]
    save_file(state, tmp_path / "hf/model.safetensors")
    done = ctl("convert", tmp_path / "hf", tmp_path / "out", "--to", "fsdp_dtensor")
    assert done.returncode == 9 and not done.stdout
    assert sorted(line.split(": ", 2)[2] for line in done.stderr.splitlines()) == [
        "model.layers.0.mlp.up_proj.weight: wrong dtype (got int64, want a floating-point type) [CHECKPOINT_CORRUPT]",
        "model.layers.1.self_attn.q_proj.bias: is missing [CHECKPOINT_CORRUPT]",
        "model.layers.3.mlp.up_proj.weight: is not in the model [CHECKPOINT_CORRUPT]",
        "model.norm.weight: wrong shape (got [3], want [64]) [CHECKPOINT_CORRUPT]"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]


def test_rejects_unsupported_config(tmp_path):
    model_of("mistral").save_pretrained(tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    (tmp_path / "hf/config.json").write_text(json.dumps({**config, "hidden_act": "relu"}))
    done = ctl("convert", tmp_path / "hf", tmp_path / "out", "--to", "fsdp_dtensor")
    assert done.returncode == 3 and "config.json:1:" in done.stderr and "hidden_act 'relu'" in done.stderr


def test_diff_reports_location_and_amount(tmp_path):
    tensors = {"model.w": make(torch.float32, (5, 7)).nan_to_num(), "model.b": torch.ones(4, dtype=torch.bfloat16),
               "only": torch.ones(2)}
    write_ours(tmp_path / "a", tensors, 2, tmp_path)
    changed = {"model.w": tensors["model.w"].clone(), "model.b": torch.ones(4), "other": torch.ones(2)}
    changed["model.w"][1, 2] = 0
    write_ours(tmp_path / "b", changed, 3, tmp_path, {"iteration": 5})
    assert ctl("diff", tmp_path / "a", tmp_path / "a").returncode == 0
    done = ctl("diff", tmp_path / "a", tmp_path / "b", "-o", "json")
    assert done.returncode == 10
    found = {each["name"]: each for each in json.loads(done.stdout)["differences"]}
    assert found.keys() == {"model.w", "model.b", "only", "other", "iteration"}
    assert found["model.w"]["different_values"] == 1
    assert found["model.w"]["max_difference"] == pytest.approx(abs(tensors["model.w"][1, 2].item()))
    assert (found["model.b"]["first"], found["model.b"]["second"]) == ("bfloat16 [4]", "float32 [4]")
    assert found["model.b"]["max_difference"] == 0 and found["model.b"]["different_values"] == 0
    assert (found["only"]["first"], found["only"]["second"]) == ("float32 [2]", "")
    assert (found["iteration"]["first"], found["iteration"]["second"]) == ("1234567890123", "5")


def test_documented_commands_work(tmp_path):
    """Runs them with directories of the documented names."""
    model = model_of("llama 3.1")
    model.save_pretrained(tmp_path / "Llama-3.1-8B")
    document = (ROOT / "docs/checkpoints.md").read_text()
    commands = [line.removeprefix("$ fsdpctl ").split() for line in document.splitlines()
                if line.startswith(("$ fsdpctl ckpt convert", "$ fsdpctl ckpt diff")) and "megatron" not in line]
    assert [command[1] for command in commands] == ["convert", "convert", "diff"]

    def run(command):
        return subprocess.run([program("client/fsdpctl"), *command], capture_output=True, text=True, cwd=tmp_path)

    first = run(commands[0])
    assert first.returncode == 0 and first.stdout.startswith("start: 30 tensors, ") and first.stdout.endswith(", float32\n")
    tensors, _ = read_ours(tmp_path / "start", tmp_path / "read")
    for job in (7, 8):
        directory = tmp_path / f"runs/{job}/iter_0001000"
        directory.parent.mkdir(parents=True)
        optimizer = {f"optimizer.state.module.module.module.embedding.weight.{name}": torch.ones(3)
                     for name in ("exp_avg", "exp_avg_sq", "step", "zeros")}
        both = {**tensors, **optimizer}
        if job == 8:
            both["model.module.layer.0.ffn_norm"] = both["model.module.layer.0.ffn_norm"] + 1
            del both["model.module.layer.1.ffn.w1"]
        write_ours(directory, both, 2, tmp_path, {"iteration": 1000 + job - 7})
    second = run(commands[1])
    assert second.returncode == 0, second.stderr
    shown = next(line for line in document.splitlines() if line.startswith("runs/7/iter_0001000: note:"))
    assert second.stderr == shown.replace("870 more", "1 more") + "\n"
    assert second.stdout.startswith("out: 30 tensors, ") and second.stdout.endswith(", bfloat16\n")
    third = run(commands[2])
    assert third.returncode == 10
    lines = third.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["iteration", "model.module.layer.0.ffn_norm",
                                                        "model.module.layer.1.ffn.w1"]
    assert "1 in 64 values" in lines[2] and lines[-1] == "3 differ, 32 are equal"
