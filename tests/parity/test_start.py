"""Tests of jobs that start from checkpoints of transformers, FSDP2 and torchtitan without a conversion, and of exports
for transformers: same losses from the same weights, and same logits of the export."""

import json
import subprocess

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
from google.protobuf import json_format
from setting import GLOBAL_BATCH, SEQUENCE, STEPS, assert_agree, run_message
from test_convert import TORCHTITAN, load as load_directory, logits, model_of
from test_transformers import job, load, parameters, train

from harness.programs import program


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def start_of(model, directory):
    """Returns a weights file for `train`, and one of zeros, from which a job would train that loads nothing."""
    flat = torch.cat([each.detach().flatten() for each in parameters(model)]).numpy()
    flat.tofile(directory / "start")
    numpy.zeros_like(flat).tofile(directory / "zeros")
    return directory / "start", directory / "zeros"


def job_from(directory, model, source):
    message = job(directory / "spec", model.config)
    message.checkpoint.load = str(source)
    return message


@pytest.mark.parametrize("name", ["llama 3.1", "qwen2", "qwen3", "deepseek v3 dense", "gpt2"])
def test_trains_from_and_exports_transformers_models(name, tmp_path):
    model = model_of(name)
    start, zeros = start_of(model, tmp_path)
    model.save_pretrained(tmp_path / "hf", max_shard_size="100KB")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1
    message = job_from(tmp_path, model, tmp_path / "hf")
    message.checkpoint.dir, message.checkpoint.export = str(tmp_path / "run"), "hf"
    ours = run_message(tmp_path, message, zeros, "--dump-batches", tmp_path / "batches")
    batches = torch.from_numpy(numpy.fromfile(tmp_path / "batches", dtype=numpy.int64))
    assert_agree(ours, train(model.train(), start, batches.reshape(STEPS, 2, GLOBAL_BATCH, SEQUENCE)))
    load(model, torch.from_numpy(ours.weights))
    assert torch.equal(logits(load_directory(tmp_path / "run/hf")), logits(model.eval()))
    exported = json.loads((tmp_path / "run/hf/config.json").read_text())
    assert exported.get("dtype", exported.get("torch_dtype")) == "float32"
    assert exported["architectures"] == model.config.architectures


def in_pairs(matrix, heads):
    """Converts queries and keys to torchtitan's layout, in which dimensions that rotate together are adjacent."""
    return matrix.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()


def titans(model):
    state = {}
    for name, tensor in model.state_dict().items():
        heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
        turned = next((count for end, count in heads.items() if name.endswith(f"{end}.weight")), 0)
        for theirs, titan in TORCHTITAN.items():
            name = name.replace(theirs, titan)
        state[name] = in_pairs(tensor, turned) if turned else tensor.clone()
    return state


@pytest.mark.parametrize("kind", ["fsdp2", "torchtitan"])
def test_trains_from_foreign_dcp_checkpoint(kind, tmp_path):
    model = model_of("mistral")
    _, zeros = start_of(model, tmp_path)
    model.save_pretrained(tmp_path / "hf")
    step = {"optimizer": {"exp_avg": torch.ones(3)}, "train_state": {"step": 4}}
    state = {"app": model.state_dict()} if kind == "fsdp2" else titans(model)
    dcp.save({**state, **step}, checkpoint_id=tmp_path / "theirs", no_dist=True)
    of_hf, of_dcp = (run_message(tmp_path, job_from(tmp_path, model, tmp_path / source), zeros)
                     for source in ("hf", "theirs"))
    assert of_dcp.losses == of_hf.losses and len(of_hf.losses) == STEPS
    assert numpy.array_equal(of_dcp.weights, of_hf.weights)


def refusal(directory, message):
    (directory / "job.json").write_text(json_format.MessageToJson(message))
    done = subprocess.run([program("fsdp/engine/train_local"), "--spec", directory / "job.json"], capture_output=True,
                          text=True, timeout=100)
    assert done.returncode != 0 and not done.stdout
    return done.stderr.splitlines()


def test_rejects_other_model_with_each_field(tmp_path):
    model = model_of("qwen3")
    model.save_pretrained(tmp_path / "hf")
    message = job_from(tmp_path, model, tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    for group in ("rope_parameters", "rope_scaling"):  # Newer files have it there.
        config.pop(group, None)
    (tmp_path / "hf/config.json").write_text(json.dumps({**config, "rope_theta": 500.0, "rms_norm_eps": 1e-4,
                                                         "num_attention_heads": 8, "head_dim": 16}))
    lines = refusal(tmp_path, message)
    assert lines[0].endswith("does not match this job's model:")
    assert lines[1:] == ["  config.json: heads: 8 there, and 4 in this job",
                         "  config.json: head_size: 16 there, and 32 in this job",
                         "  config.json: rope_theta: 500 there, and 1000000 in this job",
                         "  config.json: norm_epsilon: 0.0001 there, and 1e-06 in this job",
                         f"  set `model: {{hf_config: {tmp_path}/hf/config.json}}` in the spec to use that model"]
