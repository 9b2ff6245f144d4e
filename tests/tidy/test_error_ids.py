"""Error ids: reason.proto registers each id that the code prints or sends, with its meaning and its fix.

tests/tidy/test_proto.py keeps the ids of the newest release: buf rejects a value that was removed or renamed."""

import re
import sys

import pytest

from harness.programs import ROOT
from tidy import repository

sys.path.append(str(ROOT / "docs"))
import errors  # noqa: E402

# The coordinator's errors, and those of status codes: the first string of a call that creates an error.
SENT = [r"\b(?:Refusal|WrongState|Refused|Unauthenticated|InfoOf)\([^;\"]*\"([A-Z_]+)\"", r"grpc::StatusCode::\w+, \"([A-Z_]+)\"\}"]
# At the end of a message, and as the argument that adds it there.
PRINTED = [r"[ \"]\[([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*)\](?:\\n|\")", r"\bWithErrorId\([^;]*?\"([A-Z_]{4,})\"", r"\bid = \"([A-Z_]+)\""]


def code():
    return {path: repository.text(path) for path in repository.own_cpp(".cc")
            if path.parts[0] in ("agent", "base", "client", "coordinator") and not path.stem.endswith("_test")
            and "testing" not in path.parts}


def ids_in(source, patterns=(*SENT, *PRINTED)):
    return {found for pattern in patterns for found in re.findall(pattern, source)}


@pytest.fixture(scope="module")
def registered():
    return {name: (meaning, fix) for title, rows in errors.parts() if title != "Failure causes" for name, meaning, fix in rows}


def test_ids_are_unique_and_have_one_form():
    names = [name for _, rows in errors.parts() for name, _, _ in rows]
    assert len(names) > 80 and len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(r"[A-Z]+(_[A-Z]+)*", name)] == []


def test_every_id_has_a_meaning_and_a_fix():
    faults = [name for _, rows in errors.parts() for name, meaning, fix in rows
              if not all(len(text.split()) > 1 and text.endswith(".") for text in (meaning, fix))]
    assert not faults, faults


def test_every_id_in_the_code_is_registered(registered):
    faults = [f"{path}: {each} is not in reason.proto" for path, source in code().items()
              for each in sorted(ids_in(source) - set(registered))]
    assert not faults, "\n".join(faults)


def test_every_registered_id_is_used(registered):
    source = "\n".join(code().values())
    unused = [each for each in registered if f'"{each}"' not in source and f"[{each}]" not in source]
    assert not unused, unused


@pytest.mark.parametrize("line, found", [
    ('console->err << status.message() << " [FILE_ERROR]\\n";', {"FILE_ERROR"}),
    ('"the server does not use TLS [TLS_NOT_SUPPORTED]"', {"TLS_NOT_SUPPORTED"}),
    ('WithErrorId(status.message(), "INVALID_CONTEXT")', {"INVALID_CONTEXT"}),
    ('return WrongState("JOB_ENDED", subject,', {"JOB_ENDED"}),
    ('"usage: [OPTIONS] JOB"', set()),
])
def test_finds_ids(line, found):
    assert ids_in(line) == found
