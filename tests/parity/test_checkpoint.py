"""Tests of checkpoints against PyTorch: torch.distributed.checkpoint reads the output of fsdp/checkpoint and vice
versa, and torch.save would write the same bytes. Comparisons are bit-exact."""

import collections
import io
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import SerializationFormat
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from harness.programs import ROOT, program

RANK = ROOT / "tests/parity/dcp_rank.py"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64,
          "int64": torch.int64, "int32": torch.int32, "uint8": torch.uint8, "bool": torch.bool,
          "float8_e4m3fn": torch.float8_e4m3fn, "uint16": torch.uint16}


def ours(*arguments, input=""):
    done = subprocess.run([program("fsdp/checkpoint/testing/dcp_program"), *map(str, arguments)], input=input.encode(),
                          capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def sizes(numbers):
    return ",".join(map(str, numbers)) or "-"


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def make(dtype, shape, seed=0):
    """Returns a tensor of random bits, including NaNs."""
    count = int(numpy.prod(shape, dtype=int))
    drawn = numpy.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, dtype=numpy.uint8)
    return of_bytes((drawn % 2 if dtype == torch.bool else drawn).tobytes(), dtype, shape)


def of_bytes(numbers, dtype, shape):
    tensor = torch.empty(shape, dtype=dtype)
    if numbers:
        tensor.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(numbers), dtype=torch.uint8))
    return tensor


def raw(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def same(first, second):
    assert first.dtype == second.dtype and first.shape == second.shape
    assert raw(first) == raw(second)


TENSORS = {
    "model.w": make(torch.float32, (5, 7)),
    "model.b": make(torch.bfloat16, (11,), 1),
    "model.cube": make(torch.int64, (2, 3, 4), 2),
    "optimizer.step": make(torch.float32, (), 3),
    "model.none": make(torch.float32, (0, 4), 4),
    **{f"type.{name}": make(dtype, (3, 2), 5) for name, dtype in DTYPES.items()},
}


def write_ours(directory, tensors, cuts, scratch, numbers=None):
    """Writes each tensor flattened and split at arbitrary offsets, like shards."""
    lines = []
    for part in range(cuts):
        lines.append(f"file __{part}_0.distcp")
        if part == 0:
            lines += [f"number {name} {number}" for name, number in (numbers or {"iteration": 1234567890123}).items()]
        for name, tensor in tensors.items():
            count = tensor.numel()
            begin, end = count * part // cuts, count * (part + 1) // cuts
            path = scratch / f"{name}.{part}"
            path.write_bytes(raw(tensor)[begin * tensor.itemsize:end * tensor.itemsize])
            if count:
                lines.append(f"run {name} {name_of(tensor.dtype)} {sizes(tensor.shape)} {begin} {end - begin} {path}")
            elif part == 0:
                lines.append(f"part {name} {name_of(tensor.dtype)} {sizes(tensor.shape)} {sizes([0] * tensor.dim())} "
                             f"{sizes(tensor.shape)} {path}")
    directory.mkdir(exist_ok=True)
    ours("write", directory, input="\n".join(lines))


def read_ours(directory, out):
    """Returns ({name: tensor}, {name: value})."""
    out.mkdir(exist_ok=True)
    tensors, values = {}, {}
    for line in ours("read", directory, out).decode().splitlines():
        name, kind, rest = line.split(" ", 2)
        if kind == "value":
            values[name] = rest
            continue
        shape = [] if rest == "-" else [int(size) for size in rest.split(",")]
        tensors[name] = of_bytes((out / name).read_bytes(), getattr(torch, kind), shape)
    return tensors, values


@pytest.mark.parametrize("cuts", [1, 2, 3, 7])
def test_torch_reads_fsdpd_checkpoint(cuts, tmp_path):
    write_ours(tmp_path / "ours", TENSORS, cuts, tmp_path)
    state = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    state["iteration"] = 0
    dcp.load(state, checkpoint_id=tmp_path / "ours", no_dist=True)
    assert state.pop("iteration") == 1234567890123
    for name, tensor in state.items():
        same(tensor, TENSORS[name])


def test_torch_nests_and_converts_fsdpd_checkpoint(tmp_path):
    write_ours(tmp_path / "ours", TENSORS, 3, tmp_path)
    nested = {"model": {"w": torch.zeros(5, 7), "b": torch.zeros(11, dtype=torch.bfloat16)}}
    dcp.load(nested, checkpoint_id=tmp_path / "ours", no_dist=True)
    same(nested["model"]["w"], TENSORS["model.w"])
    # The tool that makes one file of a checkpoint, without a model to load into.
    dcp_to_torch_save(tmp_path / "ours", tmp_path / "one.pt")
    whole = torch.load(tmp_path / "one.pt", weights_only=False)
    assert whole.pop("iteration") == 1234567890123
    assert whole.keys() == TENSORS.keys()
    for name, tensor in whole.items():
        same(tensor, TENSORS[name])


def test_metadata_uses_torch_classes(tmp_path):
    write_ours(tmp_path / "ours", TENSORS, 2, tmp_path)
    metadata = FileSystemReader(tmp_path / "ours").read_metadata()
    w = metadata.state_dict_metadata["model.w"]
    assert w.size == torch.Size((5, 7)) and w.properties.dtype == torch.float32
    assert w.properties.layout == torch.strided and w.properties.memory_format == torch.contiguous_format
    # 35 numbers in two: two rows and three numbers, four numbers and two rows.
    assert [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in w.chunks] == [
        ((0, 0), (2, 7)), ((2, 0), (1, 3)), ((2, 3), (1, 4)), ((3, 0), (2, 7))]
    assert metadata.version == "1.0.0"


def run_ranks(action, world, directory, scratch):
    """Returns the full tensors of rank 0."""
    out, rendezvous = scratch / f"{action}.pt", scratch / f"{action}.rendezvous"
    ranks = [subprocess.Popen([sys.executable, RANK, action, directory, rendezvous, out], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT,
                              env={"OMP_NUM_THREADS": "1", **os.environ, "RANK": str(rank),
                                   "WORLD_SIZE": str(world)})
             for rank in range(world)]
    outputs = [rank.communicate(timeout=100)[0].decode() for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(outputs)
    return torch.load(out)


@pytest.fixture(scope="module")
def fsdp2(tmp_path_factory):
    """(checkpoint of FSDP2 on two ranks, its full tensors by name)"""
    directory = tmp_path_factory.mktemp("fsdp2")
    return directory / "saved", run_ranks("save", 2, directory / "saved", directory)


def test_reads_fsdp2_checkpoint(fsdp2, tmp_path):
    directory, expected = fsdp2
    tensors, values = read_ours(directory, tmp_path / "read")
    assert tensors.keys() == expected.keys() and len(tensors) > 20
    for name, tensor in tensors.items():
        same(tensor, expected[name])
    assert values == {"step": "11", "note.who": "a string"}


def test_fsdp2_reads_fsdpd_checkpoint(fsdp2, tmp_path):
    _, tensors = fsdp2
    write_ours(tmp_path / "ours", tensors, 3, tmp_path, {"step": 11, "note.who": 5})
    loaded = run_ranks("load", 3, tmp_path / "ours", tmp_path)
    assert loaded.keys() == tensors.keys()
    for name, tensor in loaded.items():
        same(tensor, tensors[name])


def test_reads_torch_checkpoint_of_plain_state(tmp_path):
    transposed = make(torch.float32, (6, 4), 7).t()
    state = {**TENSORS, "transposed": transposed, "part": make(torch.float32, (8, 8), 8)[2:5, 1:7],
             "nested": {"list": [make(torch.int64, (3,), 9), 1.5, None], "parameter": torch.nn.Parameter(torch.ones(2, 3))},
             "number": -7, "large": 2**70, "text": "é", "bytes": b"\0\1", "set": {1, 2},
             "ordered": collections.OrderedDict(a=1)}
    dcp.save(state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    tensors, values = read_ours(tmp_path / "theirs", tmp_path / "read")
    expected = {**TENSORS, "transposed": transposed, "part": state["part"], "nested.list.0": state["nested"]["list"][0],
                "nested.parameter": state["nested"]["parameter"]}
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        same(tensor, expected[name])
    # As pickles of protocol 2 have bytes and sets.
    assert values == {"number": "-7", "large": "an integer of more than 64 bits", "text": "a string", "bytes": "_codecs.encode",
                      "set": "__builtin__.set", "ordered.a": "1", "nested.list.1": "1.5", "nested.list.2": "None"}
    # A rectangle of a chunk that is not in row-major order.
    part = ours("part", tmp_path / "theirs", "transposed", "1,2", "3,3")
    assert part == raw(transposed[1:4, 2:5])


def test_names_unknown_pickle_classes_without_creating_them(tmp_path):
    class_state = {"args": io.StringIO("x"), "w": torch.ones(2)}
    dcp.save(class_state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    assert read_ours(tmp_path / "theirs", tmp_path / "read")[1] == {"args": "_io.StringIO"}


def test_reads_several_files_per_rank(tmp_path):
    dcp.save(dict(TENSORS), storage_writer=FileSystemWriter(tmp_path / "theirs", thread_count=3), no_dist=True)
    assert len(list((tmp_path / "theirs").glob("*.distcp"))) == 3
    for name, tensor in read_ours(tmp_path / "theirs", tmp_path / "read")[0].items():
        same(tensor, TENSORS[name])


def test_rejects_what_torch_cannot_load(tmp_path):
    """DCP's safetensors format has offset 0 for every tensor; DCP's FileSystemReader cannot read it."""
    writer = FileSystemWriter(tmp_path / "theirs", serialization_format=SerializationFormat.SAFETENSORS)
    dcp.save({"w": torch.ones(2), "v": torch.ones(3)}, storage_writer=writer, no_dist=True)
    with pytest.raises(AssertionError, match="overlaps a record of|end of central directory not found"):
        ours("read", tmp_path / "theirs", tmp_path)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (2, 300), (2, 3, 4), (2, 1, 3, 2)], ids=sizes)
def test_writes_same_bytes_as_torch_save(name, shape):
    buffer = io.BytesIO()
    torch.save(torch.zeros(shape, dtype=DTYPES[name]), buffer)
    theirs = bytearray(buffer.getvalue())
    written = bytearray(ours("frame", name, sizes(shape)))
    # An id of theirs, of 40 digits, and its checksums.
    archive = zipfile.ZipFile(io.BytesIO(theirs))
    entry = archive.getinfo("archive/.data/serialization_id")
    for one in (theirs, written):
        checksum = zipfile.ZipFile(io.BytesIO(one)).getinfo(entry.filename).CRC.to_bytes(4, "little")
        digits = one.index(b"serialization_idFB") + len(b"serialization_idFB")
        begin = digits + 2 + int.from_bytes(one[digits:digits + 2], "little")
        one[begin:begin + 40] = b"0" * 40
        while (at := one.find(checksum, begin)) >= 0:
            one[at:at + 4] = b"\0\0\0\0"
    assert written == theirs
    assert archive.testzip() is None


def test_torch_reads_tensor_above_4_gib(tmp_path):
    """The zeros are a hole in the file."""
    path = tmp_path / "large.pt"
    ours("sparse", "float32", "1100000000", path)
    assert path.stat().st_blocks * 512 < 1 << 20 < 4 << 30 < path.stat().st_size
    tensor = torch.load(path, mmap=True)
    assert tensor.shape == (1100000000,) and tensor[-1] == 0


def ckpt(action, directory, form="json"):
    """Runs `fsdpctl ckpt`; returns (exit code, its JSON)."""
    done = subprocess.run([program("client/fsdpctl"), "ckpt", action, directory, "-o", form], capture_output=True, timeout=60)
    return done.returncode, json.loads(done.stdout) if done.stdout and form == "json" else done.stdout.decode()


def test_fsdpctl_shows_and_verifies_fsdp2_checkpoint(fsdp2):
    directory, expected = fsdp2
    code, shown = ckpt("inspect", directory)
    assert code == 0 and not shown["errors"] and not shown["has_checksums"]
    assert {tensor["name"]: (tensor["type"], tensor["shape"]) for tensor in shown["tensors"]} == {
        name: (name_of(tensor.dtype), list(tensor.shape)) for name, tensor in expected.items()}
    assert {value["name"]: value["content"] for value in shown["values"]} == {"step": "11", "note.who": "a string"}
    weight = next(tensor for tensor in shown["tensors"] if tensor["name"] == "model.0.weight")
    assert [(chunk["offsets"], chunk["sizes"]) for chunk in weight["chunks"]] == [([0, 0], [4, 5]), ([4, 0], [3, 5])]
    code, verified = ckpt("verify", directory)
    assert code == 0 and verified["verified"] and not verified["errors"]


def test_verifies_torch_checkpoint_without_checksums(tmp_path):
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        dcp.save({**TENSORS, "transposed": make(torch.float32, (6, 4), 7).t(), "step": 5},
                 checkpoint_id=tmp_path / "theirs", no_dist=True)
    finally:
        torch.serialization.set_crc32_options(before)
    tensors, values = read_ours(tmp_path / "theirs", tmp_path / "read")
    same(tensors["transposed"], make(torch.float32, (6, 4), 7).t())
    for name, tensor in TENSORS.items():
        same(tensors[name], tensor)
    assert values == {"step": "5"}
    code, verified = ckpt("verify", tmp_path / "theirs")
    assert code == 0 and not verified["errors"]
    filled = [name for name, tensor in TENSORS.items() if tensor.numel() > 0]
    assert int(verified["records_without_checksum"]) == len(filled) + 2
    done = subprocess.run([program("client/fsdpctl"), "ckpt", "verify", tmp_path / "theirs"], capture_output=True, timeout=60)
    assert done.returncode == 0 and b" have no checksums" in done.stderr and b": intact" in done.stdout


class Circle:
    """A class that torch pickles and loads, and fsdpd does not read."""

    def __init__(self):
        self.me = self


def test_unread_value_is_not_damage(tmp_path):
    dcp.save({"circle": Circle(), "w": torch.ones(2)}, checkpoint_id=tmp_path / "theirs", no_dist=True)
    for action in ("inspect", "verify"):
        code, shown = ckpt(action, tmp_path / "theirs")
        assert code == 0 and not shown["errors"]
        assert [value["content"] for value in shown["values"]] == ["not read"]


def damaged(directory, scratch, file, change):
    """Returns a copy of `directory` with one file changed by `change`."""
    copy = scratch / "damaged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    (copy / file).write_bytes(change(bytearray((copy / file).read_bytes())))
    return copy


def flip(at):
    def change(content):
        content[at] ^= 1 << at % 8
        return content
    return change


def test_detects_damaged_numbers(fsdp2, tmp_path):
    directory, _ = fsdp2
    _, shown = ckpt("inspect", directory)
    for tensor in shown["tensors"]:
        for chunk in tensor["chunks"]:
            if 0 in chunk["sizes"]:
                continue
            content = (directory / chunk["file"]).read_bytes()
            storage = zipfile.ZipFile(io.BytesIO(content[chunk["begin"]:chunk["begin"] + chunk["bytes"]])).read("archive/data/0")
            at = content.index(storage, content.index(b"data/0FB", chunk["begin"]))
            code, verified = ckpt("verify", damaged(directory, tmp_path, chunk["file"], flip(at)))
            assert code == 9 and [fault["where"] for fault in verified["errors"]] == [tensor["name"]]


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp"])
def test_damaged_checkpoint_does_not_crash(fsdp2, file, tmp_path):
    directory, _ = fsdp2
    size = (directory / file).stat().st_size
    places = random.Random(1).sample(range(size), 60)
    codes = collections.Counter(ckpt("verify", damaged(directory, tmp_path, file, flip(at)), "table")[0] for at in places)
    codes += collections.Counter(ckpt("verify", damaged(directory, tmp_path, file, lambda content, at=at: content[:at]), "table")[0]
                                 for at in places[:20])
    # 0: what no reader sees, like padding and dates; or another name, which nothing contradicts.
    assert codes.keys() == {0, 9} and codes[9] > 30, codes
