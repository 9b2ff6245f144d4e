"""Job specs small enough that a step takes milliseconds on a CPU."""

import copy

from harness import stubs

_BASE = {
    "name": "tiny",
    "model": {"llama": {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "layers": 2, "heads": 4,
                        "kv_heads": 2}},
    "data": {"synthetic": {}, "sequence_length": 16},
    "train": {"steps": 5, "micro_batch": 1, "global_batch": 4, "seed": 1},
    "optimizer": {"adamw": {"lr": 1e-2}},
    "precision": {"compute": "fp32"},
    "resources": {"nodes": 2, "ranks_per_node": 2, "device": "cpu"},
}

# A job with this number of steps ends only when the test ends it.
ENDLESS = 10_000_000


def spec(steps=5, name="tiny", **sections):
    """The small spec. `sections` are merged one level deep, and None removes a field: spec(fsdp={"strategy":
    "no_shard"}, data={"synthetic": None, "tokens": [...]})."""
    made = copy.deepcopy(_BASE)
    made["name"] = name
    made["train"]["steps"] = steps
    for section, value in sections.items():
        is_whole = not isinstance(value, dict)
        made[section] = value if is_whole else _without_none({**made.get(section, {}), **value})
    return _without_none(made)


def _without_none(fields):
    return {name: value for name, value in fields.items() if value is not None}


def one_rank(**arguments):
    return spec(resources={"nodes": 1, "ranks_per_node": 1}, **arguments)


def corpus(path, tokens=8192):
    """A text with a pattern that a tiny model learns within a few steps."""
    line = b"the quick brown fox jumps over the lazy dog. "
    text = (line * (tokens // len(line) + 1))[:tokens]
    # A job may be reading it: rewriting would truncate it for a moment.
    if not path.exists() or path.read_bytes() != text:
        path.write_bytes(text)
    return path


def to_message(made):
    """The spec as a JobSpec message, for calls without fsdpctl. Enums have their short names, as in YAML."""
    return _fill(stubs.job.JobSpec(), made)


def _fill(message, fields):
    for name, value in fields.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        values = value if isinstance(value, (list, tuple)) else [value]
        if field.message_type and field.is_repeated:
            for each in values:
                _fill(getattr(message, name).add(), each)
        elif field.message_type:
            getattr(message, name).SetInParent()
            _fill(getattr(message, name), value)
        elif field.is_repeated:
            getattr(message, name).extend(values)
        else:
            setattr(message, name, _enum(field.enum_type, value) if field.enum_type else value)
    return message


def _enum(kind, short):
    # The zero value's name has the prefix: STRATEGY_UNSPECIFIED.
    return kind.values_by_name[kind.values_by_number[0].name.replace("UNSPECIFIED", short.upper())].number
