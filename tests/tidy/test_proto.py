"""Protos are contracts: each message, field, value and call says what it means."""

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
    """(name, path) of all that a message defines, nested messages included."""
    for index, field in enumerate(message.field):
        yield f"{message.name}.{field.name}", path + (FIELD, index)
    for index, nested in enumerate(message.nested_type):
        yield from members(nested, path + (NESTED, index))


def test_every_field_says_what_it_means(contracts):
    faults = []
    for file in contracts:
        said = comments(file)
        for index, message in enumerate(file.message_type):
            for name, path in members(message, (MESSAGE, index)):
                if not said.get(path):
                    faults.append(f"{file.name}: {name}: no comment with its unit, its default or who sets it")
    assert not faults, "\n".join(faults)


def test_every_call_says_whether_it_may_be_repeated(contracts):
    faults = []
    for file in contracts:
        said = comments(file)
        for index, service in enumerate(file.service):
            for number, method in enumerate(service.method):
                if not said.get((SERVICE, index, METHOD, number)):
                    faults.append(f"{file.name}: {service.name}.{method.name}: no comment")
    assert not faults, "\n".join(faults)


def test_the_zero_of_every_enum_means_nothing(contracts):
    faults = [f"{file.name}: {enum.name}: value 0 is {enum.value[0].name}, must be ..._UNSPECIFIED"
              for file in contracts for enum in file.enum_type if not enum.value[0].name.endswith("_UNSPECIFIED")]
    assert not faults, "\n".join(faults)
