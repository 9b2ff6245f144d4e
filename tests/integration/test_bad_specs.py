"""Tests of invalid specs: every violation is reported with field, reason and fix before anything runs.

Each kind of semantic violation is tested through fsdpctl (exit code 3, file and line) and through plain gRPC
(google.rpc.BadRequest, decoded here in Python).
"""

import json
import re

import grpc
import pytest
from google.rpc import error_details_pb2

from harness.cluster import fsdpctl
from harness.programs import ROOT
from harness.specs import spec, to_message
from harness.stubs import coordinator, plan
from integration.test_api import details

LLAMA = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "layers": 2, "heads": 4, "kv_heads": 2}


def llama(**changes):
    return {"model": {"llama": {**LLAMA, **changes}}}


def tokens(**file):
    return {"data": {"synthetic": None, "tokens": [{"path": "/data/x.bin", **file}]}}


# What is wrong -> (sections of the spec, the field that is to blame).
FAULTS = {
    "a name with a capital": ({"name": "Tiny"}, "name"),
    "a name that is too long": ({"name": "a" * 41}, "name"),
    "no name": ({"name": ""}, "name"),
    "no model": ({"model": None}, "model"),
    "an unknown preset": ({"model": {"llama": None, "preset": "llama3-9b"}}, "model.preset"),
    "no vocabulary": (llama(vocab_size=0), "model.llama.vocab_size"),
    "a negative width": (llama(hidden_size=-32), "model.llama.hidden_size"),
    "no layers": (llama(layers=0), "model.llama.layers"),
    "no feed-forward width": (llama(intermediate_size=0), "model.llama.intermediate_size"),
    "heads that do not divide the width": (llama(heads=5, kv_heads=5), "model.llama.heads"),
    "kv heads that do not divide heads": (llama(kv_heads=3), "model.llama.kv_heads"),
    "heads of an odd size": (llama(hidden_size=12, heads=4), "model.llama.heads"),
    "a rope scaling that shrinks": (llama(rope_scaling={"factor": 0.5}), "model.llama.rope_scaling.factor"),
    "a GPT-2 without positions": ({"model": {"llama": None, "gpt2": {"vocab_size": 9, "hidden_size": 8, "layers": 1,
                                                                     "heads": 2}}}, "model.gpt2.positions"),
    "a negative norm epsilon": (llama(norm_epsilon=-1e-5), "model.llama.norm_epsilon"),
    "a negative rope base": (llama(rope_theta=-1.0), "model.llama.rope_theta"),
    "no data": ({"data": None}, "data"),
    "two sources of data": ({"data": {"tokens": [{"path": "/data/x.bin"}]}}, "data"),
    "no sequence length": ({"data": {"sequence_length": 0}}, "data.sequence_length"),
    "a token file without a path": (tokens(path=""), "data.tokens[0].path"),
    "text for a smaller vocabulary": ({**llama(vocab_size=100), **tokens(type="u8")}, "data.tokens[0]"),
    "a negative weight of a file": (tokens(weight=-1.0), "data.tokens[0].weight"),
    "synthetic tokens outside the vocabulary": ({"data": {"synthetic": {"vocab": 257}}}, "data.synthetic.vocab"),
    "a mask that is the tokens": (tokens(mask="/data/x.bin"), "data.tokens[0].mask"),
    "an end of documents outside the vocabulary": ({"data": {"document_end_token": 256}}, "data.document_end_token"),
    "documents in samples that ranks share": ({"data": {"document_end_token": 1}, "parallel": {"context": 2}},
                                              "data.document_end_token"),
    "documents for a GPT-2": ({"model": {"llama": None, "gpt2": {"vocab_size": 9, "hidden_size": 8, "layers": 1,
                                                                 "heads": 2, "positions": 16}},
                               "data": {"document_end_token": 1}}, "data.document_end_token"),
    "no steps": ({"train": {"steps": 0}}, "train.steps"),
    "a negative micro-batch": ({"train": {"micro_batch": -1}}, "train.micro_batch"),
    "a global batch that ranks cannot share": ({"train": {"global_batch": 6}}, "train.global_batch"),
    "a negative learning rate": ({"optimizer": {"adamw": {"lr": -1e-3}}}, "optimizer.adamw.lr"),
    "one beta": ({"optimizer": {"adamw": {"betas": [0.9]}}}, "optimizer.adamw.betas"),
    "a beta of one": ({"optimizer": {"adamw": {"betas": [0.9, 1.0]}}}, "optimizer.adamw.betas"),
    "a negative epsilon": ({"optimizer": {"adamw": {"eps": -1e-8}}}, "optimizer.adamw.eps"),
    "a negative weight decay": ({"optimizer": {"adamw": {"weight_decay": -0.1}}}, "optimizer.adamw.weight_decay"),
    "a negative clip norm": ({"optimizer": {"clip_norm": -1.0}}, "optimizer.clip_norm"),
    "a warm-up longer than the run": ({"schedule": {"cosine": {"warmup_steps": 10}}}, "schedule.cosine.warmup_steps"),
    "a final rate above the peak": ({"schedule": {"linear": {"min_lr_ratio": 1.5}}}, "schedule.linear.min_lr_ratio"),
    "main parameters in bf16": ({"precision": {"main_params": "bf16"}}, "precision.main_params"),
    "whole gradients in bf16": ({"precision": {"main_grads": "bf16"}, "fsdp": {"strategy": "optim"}},
                                "precision.main_grads"),
    "two optimizers": ({"optimizer": {"adamw": {}, "sgd": {"lr": 0.1}}}, "optimizer"),
    "a group that matches nothing": ({"optimizer": {"groups": [{"params": ["*.bias"]}]}}, "optimizer.groups[0].params"),
    "evaluation of nothing": ({"train": {"evaluation": {"every_steps": 2}}}, "train.evaluation"),
    "everything frozen": ({"train": {"frozen": ["*"]}}, "train.frozen"),
    "an outer axis of nothing sharded": ({"fsdp": {"outer": {"size": 2}, "strategy": "no_shard"}}, "fsdp.outer.size"),
    "a negative prefetch": ({"fsdp": {"prefetch_bytes": -1}}, "fsdp.prefetch_bytes"),
    "an outer axis that does not divide the ranks": ({"fsdp": {"outer": {"size": 3}}}, "fsdp.outer.size"),
    "tensor parallelism of a negative size": ({"parallel": {"tensor": -2}}, "parallel.tensor"),
    "more pipeline stages than ranks": ({"parallel": {"pipeline": 8}}, "parallel.pipeline"),
    "a negative number of nodes": ({"resources": {"nodes": -1}}, "resources.nodes"),
    "more ranks than can be": ({"resources": {"nodes": 100000}}, "resources"),
    "a memory budget that nothing fits": ({"resources": {"memory_budget_bytes": 1000}}, "resources.memory_budget_bytes"),
    "a negative number of attempts": ({"restart": {"max_attempts": -1}}, "restart.max_attempts"),
    "an interval without a checkpoint directory": ({"checkpoint": {"every_steps": 5}}, "checkpoint.every_steps"),
    "a negative interval of checkpoints": ({"checkpoint": {"dir": "/runs/x", "every_steps": -1}},
                                           "checkpoint.every_steps"),
    "minutes without a checkpoint directory": ({"checkpoint": {"every_minutes": 5}}, "checkpoint.every_minutes"),
    "a directory for checkpoints that are never written": ({"checkpoint": {"dir": "/runs/x", "on_end": False}},
                                                        "checkpoint.dir"),
    "an unknown checkpoint format": ({"checkpoint": {"format": "pickle"}}, "checkpoint.format"),
    "gradients that cross the wire in fp16": ({"precision": {"grad_comm": "fp16"}}, "precision.grad_comm"),
    "a negative seed": ({"train": {"seed": -1}}, "train.seed"),
    "a negative warm-up": ({"schedule": {"constant": {"warmup_steps": -1}}}, "schedule.constant.warmup_steps"),
    "a step to be traced that the job has not": ({"telemetry": {"trace_steps": [6]}}, "telemetry.trace_steps[0]"),
    "steps to be traced in no order": ({"telemetry": {"trace_steps": [2, 2]}}, "telemetry.trace_steps[1]"),
    "more steps to be traced than may be": ({"telemetry": {"trace_steps": list(range(1, 18))}},
                                            "telemetry.trace_steps"),
    "samples longer than the model is for": ({**llama(positions=16), "data": {"sequence_length": 17}},
                                             "data.sequence_length"),
    "a variable that NCCL does not know": ({"env": [{"name": "NCCL_DEBUGG", "value": "INFO"}]}, "env[0].name"),
    "a variable that no agent allows": ({"env": [{"name": "LD_PRELOAD", "value": "/tmp/x.so"}]}, "env[0].name"),
    "a variable that is the agent's": ({"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}, "env[0].name"),
    "a variable twice": ({"env": [{"name": "NCCL_ALGO"}, {"name": "NCCL_ALGO"}]}, "env[1].name"),
    # What is written counts: a zero is no default.
    "a learning rate of zero": ({"optimizer": {"adamw": {"lr": 0}}}, "optimizer.adamw.lr"),
    "an epsilon of zero": ({"optimizer": {"adamw": {"eps": 0}}}, "optimizer.adamw.eps"),
    "no nodes": ({"resources": {"nodes": 0}}, "resources.nodes"),
    "no ranks": ({"resources": {"ranks_per_node": 0}}, "resources.ranks_per_node"),
    "no memory": ({"resources": {"memory_budget_bytes": 0}}, "resources.memory_budget_bytes"),
    "a micro-batch of nothing": ({"train": {"micro_batch": 0}}, "train.micro_batch"),
    "a global batch of nothing": ({"train": {"global_batch": 0}}, "train.global_batch"),
    "no attempt": ({"restart": {"max_attempts": 0}}, "restart.max_attempts"),
    "an outer axis of nothing": ({"fsdp": {"outer": {"size": 0}}}, "fsdp.outer.size"),
    "a token file without weight": (tokens(weight=0), "data.tokens[0].weight"),
}


def covers(field, wanted):
    """True if a violation of `field` is about `wanted` or a field inside it."""
    return field == wanted or field.startswith((wanted + ".", wanted + "["))


@pytest.mark.parametrize("what", FAULTS)
def test_api_error_has_field_reason_and_fix(shared, what):
    sections, wanted = FAULTS[what]
    message = to_message(spec(**sections))
    with pytest.raises(grpc.RpcError) as raised:
        shared.api().SubmitJob(coordinator.SubmitJobRequest(spec=message), timeout=60)
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT, raised.value
    violations = details(raised.value, error_details_pb2.BadRequest).field_violations
    assert any(covers(each.field, wanted) and each.description for each in violations), violations

    faults = [fault for fault in shared.api().ValidateJob(coordinator.ValidateJobRequest(spec=message), timeout=60).violations
              if fault.severity == plan.SEVERITY_ERROR]
    assert {fault.field for fault in faults} == {each.field for each in violations}
    assert all(fault.rule and fault.reason and fault.fix for fault in faults), faults


@pytest.mark.parametrize("what", FAULTS)
def test_fsdpctl_error_has_file_line_and_field(shared, what):
    sections, wanted = FAULTS[what]
    result = shared.ctl("submit", "-f", shared.write_spec(spec(**sections), "bad.yaml")).expect(3)
    assert not result.out, "stdout is for data"
    errors = [line for line in result.err.splitlines() if re.search(r"bad\.yaml(:\d+){0,2}: error: ", line)]
    assert any(wanted in line for line in errors), result


# Text that is no spec at all, and what must be said about it, on which line.
TEXTS = {
    "an unknown field": ("name: a\ntrain: {stpes: 5}\n", 2, "stpes.*steps"),
    "an unknown section": ("name: a\nfsdpp: {}\n", 2, "fsdpp.*fsdp"),
    "a word where a number belongs": ("name: a\ntrain: {steps: many}\n", 2, "many"),
    "a fraction where a whole number belongs": ("name: a\ntrain:\n  steps: 1.5\n", 3, "1.5"),
    "a number that does not fit": ("name: a\ntrain:\n  steps: 99999999999999999999\n", 3, "steps"),
    "not a number": ("name: a\noptimizer:\n  clip_norm: .nan\n", 3, "clip_norm"),
    "an unknown strategy": ("name: a\nfsdp:\n  strategy: zero3\n", 3, "zero3.*optim_grads_params"),
    "a list where a section belongs": ("name: a\ntrain: [1, 2]\n", 2, "train"),
    "a section where a list belongs": ("name: a\ndata:\n  tokens: {path: x}\n", 3, "tokens"),
    "the same key twice": ("name: a\nname: b\n", 2, "name"),
    "two sources of a model": ("name: a\nmodel:\n  preset: tiny\n  llama: {layers: 1}\n", 4, "llama.*preset|preset.*llama"),
    "a size in an unknown unit": ("name: a\nresources:\n  memory_budget_bytes: 3parsec\n", 3, "3parsec"),
    "a tab for an indent": ("name: a\ntrain:\n\tsteps: 5\n", 3, "tab|cannot start any token"),
    "an open bracket": ("name: a\ntrain: {steps: 5\n", None, "."),
    "a bare word": ("hello\n", 1, "."),
    "nothing": ("", None, "empty|nothing|required|missing"),
    "a list of specs": ("- name: a\n- name: b\n", 1, "."),
    "bytes that are no text": ("name: \udcff\udcfe\n", None, "."),
    "an alias bomb": ("a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\nname: *c\n", None, "."),
    "endless nesting": ("name: " + "[" * 5000 + "\n", None, "."),
}


@pytest.mark.parametrize("what", TEXTS)
@pytest.mark.parametrize("command", ["validate", "submit", "plan"])
def test_rejects_invalid_text_at_its_line(shared, command, what):
    text, line, words = TEXTS[what]
    path = shared.directory / "bad.yaml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    result = shared.ctl(command, "-f", path).expect(3)
    place = rf"bad\.yaml:{line}:\d+: error: " if line else r"bad\.yaml(:\d+){0,2}: error: "
    assert re.search(place + rf".*({words})", result.err, re.IGNORECASE), result


def test_reports_all_faults_together(shared):
    made = spec(name="Tiny", train={"steps": 0}, optimizer={"adamw": {"lr": -1.0}}, **llama(kv_heads=3))
    result = shared.ctl("validate", "-f", shared.write_spec(made, "bad.yaml")).expect(3)
    for field in ("name", "train.steps", "optimizer.adamw.lr", "model.llama.kv_heads"):
        assert field in result.err, f"{field} is missing in\n{result}"


def test_reports_text_rule_and_memory_faults_together(shared):
    made = spec(name="Tiny", resources={"memory_budget_bytes": 1000}, optimizer={"adamw": {"lr": 0, "epz": 1e-8}},
                train={"steps": "many"})
    result = shared.ctl("validate", "-f", shared.write_spec(made, "bad.yaml"), "-o", "json").expect(3)
    faults = {fault["field"]: fault for fault in json.loads(result.out)["violations"] if fault["severity"] == "error"}
    assert set(faults) == {"name", "resources.memory_budget_bytes", "optimizer.adamw.lr", "optimizer.adamw.epz",
                           "train.steps"}, result
    assert all(fault["line"] > 0 and fault["column"] > 0 and fault["file"].endswith("bad.yaml")
               for fault in faults.values()), result


def test_fault_has_line_of_file(shared):
    text = shared.write_spec(spec()).read_text().splitlines()
    line = next(number for number, each in enumerate(text, 1) if "micro_batch" in each)
    text[line - 1] = "  micro_batch: -7"
    result = shared.ctl("submit", "-f", shared.write_spec("\n".join(text) + "\n", "bad.yaml")).expect(3)
    assert re.search(rf"bad\.yaml:{line}:\d+: error: .*train\.micro_batch", result.err), result


def test_accepts_valid_spec(shared):
    shared.ctl("validate", "-f", shared.write_spec(spec())).expect(0)


def test_readme_transcript_matches_validate(tmp_path):
    (text, command, output), = re.findall(
        r"^```yaml\n(# bad\.yaml\n(?:.+\n)+)```\n\n<!--.*-->\n```sh\nfsdpctl (.+)\n```\n\n```\n((?:.+\n)+)```",
        (ROOT / "README.md").read_text(), re.MULTILINE)
    (tmp_path / "bad.yaml").write_text(text)
    result = fsdpctl(*command.split(), cwd=tmp_path).expect(3)
    assert result.out == "" and result.err == output
    assert len(re.findall(r": error: ", result.err)) == 3
