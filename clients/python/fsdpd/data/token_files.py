"""Token files, as in data.tokens of a spec, and FILE.json next to one, which describes its origin."""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy

from fsdpd.faults import Fault

DTYPES = {"u8": "<u1", "u16": "<u2", "u32": "<u4"}
MEGATRON = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
FORMAT = 1  # Version of the description.
# Number of tokens at the start of a file that are read to guess its type.
GUESS_TOKENS = 1 << 20


@dataclass
class TokenFile:
    path: pathlib.Path  # As in a spec: without .bin and .idx for type megatron.
    type: str
    known_by: str  # Source of the type: a flag, a description, a name, a guess.
    ids: Any
    mask: Any = None
    mask_path: pathlib.Path | None = None
    description: dict[str, Any] = field(default_factory=dict)  # Empty if there is no FILE.json.
    faults: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return len(self.ids)


def description_of(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(path.name + ".json")


def open_tokens(path: pathlib.Path, asked_type: str | None, asked_mask: pathlib.Path | None) -> TokenFile:
    """Opens a token file. A damaged file is opened as far as possible; its errors are in `faults`."""
    stem = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    pair = stem.with_name(stem.name + ".bin"), stem.with_name(stem.name + ".idx")
    if asked_type == "megatron" or (asked_type is None and pair[1].is_file() and pair[0].is_file()):
        file = TokenFile(stem, "megatron", "its index", *megatron_ids(*pair))
    else:
        description = read_description(path)
        kind, known_by = (asked_type, "--type") if asked_type else type_of(path, description)
        file = TokenFile(path, kind, known_by, mapped(path, kind), description=description)
        torn = path.stat().st_size % numpy.dtype(DTYPES[kind]).itemsize
        if torn:
            file.faults.append(f"{path}: size is not a multiple of the token size (got {path.stat().st_size} bytes, "
                               f"{numpy.dtype(DTYPES[kind]).itemsize} per token; the last token starts at byte "
                               f"{path.stat().st_size - torn})")
    if not file.tokens:
        raise Fault(f"{path}: contains no tokens")
    beside = file.description.get("mask")
    file.mask_path = asked_mask or (path.parent / beside if beside else None)
    if file.mask_path:
        file.mask = mapped(file.mask_path, "u8")
        if len(file.mask) != file.tokens:
            file.faults.append(f"{file.mask_path}: has {len(file.mask)} bytes, want one for each of the {file.tokens} "
                               f"tokens of {path}")
            file.mask = None
    return file


def mapped(path: pathlib.Path, kind: str) -> Any:
    with open(path, "rb") as file:
        if file.read(6) == b"\x93NUMPY":
            raise Fault(f"{path}: .npy files are not supported; write the array without a header: tokens.tofile(PATH)")
    dtype = numpy.dtype(DTYPES[kind])
    count = path.stat().st_size // dtype.itemsize
    return numpy.memmap(path, dtype, "r", shape=(count,)) if count else numpy.zeros(0, dtype)


def type_of(path: pathlib.Path, description: dict[str, Any]) -> tuple[str, str]:
    if description:
        return description["type"], description_of(path).name
    if path.suffix[1:] in DTYPES:
        return path.suffix[1:], "its name"
    size = path.stat().st_size
    if size % 2:
        return "u8", "a guess: an odd number of bytes"
    halves = mapped(path, "u16")[:GUESS_TOKENS]
    # The upper halves of 32-bit ids are small (ids below 2^20), while few ids of a 16-bit vocabulary are below 16.
    if size % 4 == 0 and (halves[1::2] < 16).mean() > 0.99 and halves[0::2].max(initial=0) > 15:
        return "u32", "a guess: every other 16 bits are small"
    return "u16", "a guess"


def read_description(path: pathlib.Path) -> dict[str, Any]:
    beside = description_of(path)
    if not beside.is_file():
        return {}
    try:
        found = json.loads(beside.read_text())
    except ValueError:
        return {}
    # Another program may write a file with this name.
    if not isinstance(found, dict) or found.get("fsdpd_tokens") != FORMAT or found.get("type") not in DTYPES:
        return {}
    return found


def megatron_ids(bin_path: pathlib.Path, idx_path: pathlib.Path) -> tuple[Any]:
    """Maps the ids of a Megatron file. Assumes that sequences have no gaps, as all writers do;
    fsdp/data/megatron_index.h checks it."""
    with open(idx_path, "rb") as index:
        head = index.read(34)
        if len(head) < 34 or head[:9] != b"MMIDIDX\0\0":
            raise Fault(f"{idx_path}: is not an index of Megatron")
        version, code, sequences, _ = struct.unpack("<QBQQ", head[9:])
        if version != 1 or code not in MEGATRON:
            raise Fault(f"{idx_path}: version {version} with ids of type {code} is not supported (want version 1 with type "
                        f"{', '.join(map(str, MEGATRON))})")
        if idx_path.stat().st_size < 34 + 12 * sequences:
            raise Fault(f"{idx_path}: is too short for the lengths and offsets of its {sequences} sequences")
        lengths = numpy.fromfile(index, "<i4", sequences)
    tokens, dtype = int(lengths.sum(dtype="i8")), numpy.dtype(MEGATRON[code])
    if bin_path.stat().st_size < tokens * dtype.itemsize:
        raise Fault(f"{bin_path}: has {bin_path.stat().st_size} bytes, want {tokens} tokens of {dtype.itemsize} bytes as "
                    "in its index")
    return (numpy.memmap(bin_path, dtype, "r", shape=(tokens,)) if tokens else numpy.zeros(0, dtype),)


def sha256_of(ids: Any) -> str:
    done = hashlib.sha256()
    for begin in range(0, len(ids), 1 << 22):
        done.update(ids[begin:begin + (1 << 22)].tobytes())
    return done.hexdigest()


def quoted(path: object) -> str:
    text = str(path)
    return text if re.fullmatch(r"[\w./-]*[A-Za-z/][\w./-]*", text) else json.dumps(text)


def entry(path: object, kind: str, mask: object) -> str:
    beside = f", mask: {quoted(mask)}" if mask else ""
    return f"{{path: {quoted(path)}{beside}, type: {kind}}}"


def spec_lines(train: str, validation: str | None, end: int | None, vocabulary: int) -> str:
    """Returns the lines for a job's spec. `vocabulary` is the number of ids."""
    lines = [f"# model: vocab_size at least {vocabulary}", "data:", f"  tokens: [{train}]"]
    if validation:
        lines.append(f"  validation: [{validation}]")
    if end is not None:
        lines.append(f"  document_end_token: {end}")
    if end is not None and "mask: " in train:  # A stream would split examples.
        lines.append("  packing: documents")
    return "\n".join(lines) + "\n"
