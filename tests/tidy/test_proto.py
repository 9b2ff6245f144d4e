"""Protos are contracts: each field, value and call has a comment, and releases stay compatible."""

import shutil
import subprocess

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from harness.programs import ROOT
from tidy import repository

# Path elements of SourceCodeInfo: the field numbers within descriptor.proto.
MESSAGE, ENUM, SERVICE = 4, 5, 6          # of a file
FIELD, NESTED, NESTED_ENUM, ONEOF = 2, 3, 4, 8  # of a message
VALUE, METHOD = 2, 2                      # of an enum, of a service


@pytest.fixture(scope="module")
def contracts(tmp_path_factory):
    out = tmp_path_factory.mktemp("descriptors") / "all.binpb"
    paths = [str(path.relative_to("proto")) for path in repository.with_suffix(".proto") if path.parts[0] == "proto"]
    root = f"-I{ROOT / 'proto'}"
    assert protoc.main(["protoc", root, f"--descriptor_set_out={out}", "--include_source_info", *paths]) == 0
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file


def comments(file):
    return {tuple(location.path): location.leading_comments or location.trailing_comments
            for location in file.source_code_info.location}


def members(message, path):
    """(name, path) of all members of a message, including nested messages."""
    for index, field in enumerate(message.field):
        yield f"{message.name}.{field.name}", path + (FIELD, index)
    for index, nested in enumerate(message.nested_type):
        yield from members(nested, path + (NESTED, index))


def test_every_field_has_a_comment(contracts):
    faults = []
    for file in contracts:
        said = comments(file)
        for index, message in enumerate(file.message_type):
            for name, path in members(message, (MESSAGE, index)):
                if not said.get(path):
                    faults.append(f"{file.name}: {name}: no comment with its unit, its default and the component that sets it")
    assert not faults, "\n".join(faults)


def test_every_call_has_a_comment(contracts):
    faults = []
    for file in contracts:
        said = comments(file)
        for index, service in enumerate(file.service):
            for number, method in enumerate(service.method):
                if not said.get((SERVICE, index, METHOD, number)):
                    faults.append(f"{file.name}: {service.name}.{method.name}: no comment")
    assert not faults, "\n".join(faults)


def test_enum_value_zero_is_unspecified(contracts):
    faults = [f"{file.name}: {enum.name}: value 0 is {enum.value[0].name}, must be ..._UNSPECIFIED"
              for file in contracts for enum in file.enum_type if not enum.value[0].name.endswith("_UNSPECIFIED")]
    assert not faults, "\n".join(faults)


# --- buf


BUF = ROOT / ".tools/bin/buf"


def buf(*arguments, cwd=ROOT):
    """(whether it found nothing, its output)"""
    assert BUF.exists(), "run deploy/setup --tools, as tests/run does"
    done = subprocess.run([BUF, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode in (0, 100), done.stderr  # 100: it found something.
    return done.returncode == 0, done.stdout


@pytest.fixture
def changed(tmp_path):
    """Makes a copy of the protos with one text replaced; the directory that buf runs in."""
    def change(file, old, new):
        shutil.copy(ROOT / "buf.yaml", tmp_path)
        shutil.copytree(ROOT / "proto", tmp_path / "proto")
        path = tmp_path / "proto/fsdpd/v1" / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
        path.write_text(text.replace(old, new))
        return tmp_path
    return change


def test_protos_pass_buf_lint():
    clean, said = buf("lint")
    assert clean, said


def test_buf_lint_finds_a_nonstandard_name(changed):
    clean, said = buf("lint", cwd=changed("coordinator.proto", "  JOB_STATE_PAUSED =", "  PAUSED ="))
    assert not clean and "JOB_STATE_" in said


def test_api_is_compatible_with_the_newest_release():
    """proto/released.binpb is the API of the newest release, and is regenerated for each release:
    `.tools/bin/buf build --exclude-source-info -o proto/released.binpb`."""
    clean, said = buf("breaking", "--against", "proto/released.binpb")
    assert clean, said


@pytest.mark.parametrize("file, old, new", [
    ("coordinator.proto", "int64 revision = 5;", "int32 revision = 5;"),
    ("coordinator.proto", "int64 revision = 5;", "int64 revision = 999;"),
    ("train.proto", "  optional int64 steps = 1;", "  optional int64 count = 1;"),
    ("reason.proto", "REASON_JOB_ENDED = 20;", "REASON_JOB_OVER = 20;"),
    ("coordinator.proto", "rpc GetJob(GetJobRequest)", "rpc FindJob(GetJobRequest)"),
], ids=["another type", "another number", "another name in JSON", "another name of a value", "another call"])
def test_buf_finds_an_incompatible_change(changed, file, old, new):
    clean, said = buf("breaking", "--against", ROOT / "proto/released.binpb", cwd=changed(file, old, new))
    assert not clean and file in said
