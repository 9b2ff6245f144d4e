"""Converts a job spec for both engines: JSON for train_local, and a job of tests/parity/fsdp2_rank.py for PyTorch
FSDP2."""

import copy
import json
import subprocess
import sys

from harness import stubs
from harness.programs import program
from peer import cosine_rate

# Fields of a resolved spec that the peer's reference model and loop have no word for.
_UNKNOWN_TO_PEER = ("model.llama.rope_scaling", "optimizer.sgd", "optimizer.groups", "schedule.linear", "schedule.wsd",
                    "train.frozen", "train.on_spike", "train.on_nonfinite", "data.ignore_index",
                    "data.document_end_token", "checkpoint.load")
_NEARLY_ZERO = 1e-30  # A rate that leaves weights as they were.


def field(spec, path):
    for name in path.split("."):
        spec = spec.get(name) if isinstance(spec, dict) else None
    return spec


def resolved(path):
    """Returns the spec of a file with all defaults of our plan; exits if the peer does not support it."""
    done = subprocess.run([program("client/fsdpctl"), "plan", "--offline", "-o", "json", "-f", path], text=True,
                          stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(done.returncode)
    spec = json.loads(done.stdout)["resolved"]
    faults = list(_unknown_to_peer(spec))
    if faults:
        sys.exit("\n".join(f"{path}: {fault}" for fault in faults))
    return spec


def _unknown_to_peer(spec):
    model = field(spec, "model.llama")
    if not model:
        yield "model: spell out model.llama"
    elif model["head_size"] * model["heads"] != model["hidden_size"]:
        yield "model.llama.head_size: the peer's is hidden_size / heads"
    yield from (f"{name}: the peer has nothing like it" for name in _UNKNOWN_TO_PEER if field(spec, name))
    yield from (f"data.tokens[{i}].mask: the peer has nothing like it"
                for i, file in enumerate(field(spec, "data.tokens") or []) if file.get("mask"))
    for name, types in (("compute", ("fp32", "bf16")), ("main_params", ("fp32",)), ("main_grads", ("fp32",)),
                        ("grad_comm", ("fp32", "bf16")), ("moments", ("fp32",))):
        if spec["precision"][name] not in types:
            yield f"precision.{name}: the peer knows {' and '.join(types)}"


def _warm_up(spec):
    """Returns (warm-up steps, the last step's fraction of the peak rate)."""
    cosine, constant = field(spec, "schedule.cosine"), field(spec, "schedule.constant")
    if cosine is not None:
        return cosine.get("warmup_steps", 0), cosine.get("min_lr_ratio", 0)
    return (constant or {}).get("warmup_steps", 0), 1


def peer_job(spec):
    """Returns the job for fsdp2_rank.py without files."""
    train, adamw, precision = spec["train"], spec["optimizer"]["adamw"], spec["precision"]
    warm_up, floor = _warm_up(spec)
    return {"compute": precision["compute"], "reduce": precision["grad_comm"],
            "model": {"llama": {**spec["model"]["llama"], "fused_attention": True}},
            **{name: train[name] for name in ("steps", "micro_batch", "global_batch")},
            "sequence_length": spec["data"]["sequence_length"], **adamw,
            "clip_norm": spec["optimizer"].get("clip_norm", 0),
            "learning_rates": [adamw["lr"] * cosine_rate(step, warm_up, train["steps"], floor)
                               for step in range(1, train["steps"] + 1)]}


def _as_proto(value, message=stubs.job.JobSpec.DESCRIPTOR):
    """Full enum names, as in protobuf's JSON; YAML and fsdpctl have short ones."""
    whole = {}
    for name, each in value.items():
        field_of = message.fields_by_name[name]
        if field_of.enum_type:
            unspecified = field_of.enum_type.values[0].name
            whole[name] = unspecified if each == "auto" else unspecified.removesuffix("UNSPECIFIED") + each.upper()
        elif field_of.message_type and not field_of.message_type.GetOptions().map_entry:
            many = isinstance(each, list)
            reported = [_as_proto(one, field_of.message_type) for one in (each if many else [each])]
            whole[name] = reported if many else reported[0]
        else:
            whole[name] = each
    return whole


def write_start(spec, device, directory):
    """Writes the start and data of our engine for the peer: directory/weights and directory/batches."""
    whole, first = directory / "whole.json", directory / "first.json"
    whole.write_text(json.dumps(_as_proto(spec)))
    still = copy.deepcopy(spec)
    still["train"]["steps"], still["optimizer"]["adamw"]["lr"], still["schedule"] = 1, _NEARLY_ZERO, {}
    first.write_text(json.dumps(_as_proto(still)))
    for flags in (["--spec", whole, "--dump-batches", directory / "batches", "--only-batches"],
                  ["--spec", first, "--dump-weights", directory / "weights"]):
        subprocess.run([program("fsdp/engine/train_local"), "--device", device, *flags], check=True,
                       stdout=subprocess.DEVNULL)
