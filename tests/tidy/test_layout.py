"""Structure: headers with contracts, one target per concept, and allowed dependencies."""

import fnmatch
import os
import re
import subprocess

import pytest

from harness.programs import ROOT
from tidy import cpp, repository

BAZEL = os.environ.get("BAZEL", "bazel").split()


def test_every_header_opens_with_its_contract():
    faults = []
    for path in repository.own_cpp(".h", ".cuh"):
        source = repository.text(path)
        if not source.startswith(("// ", "/* ")):
            faults.append(f"{path}:1: starts with code; start with its subject and the decision that it owns")
        if not re.search(r"^#pragma once$", source, re.MULTILINE):
            faults.append(f"{path}: no #pragma once")
    assert not faults, "\n".join(faults)


def sources_with_a_target(build_file):
    """(names of trios, files and glob patterns that other rules name) of one BUILD file. A cuda_library is a .h and a .cu
    of its name."""
    trios, named = set(), set()
    for rule, attributes, _ in repository.calls(build_file):
        if rule == "trio":
            trios.update(repository.strings(attributes["name"]))
        elif rule == "cuda_library":
            named.update(name + suffix for name in repository.strings(attributes["name"]) for suffix in (".h", ".cu"))
            named.update(repository.strings(attributes["device_hdrs"]))
        else:
            for attribute in ("src", "srcs", "hdrs", "textual_hdrs", "data"):
                named.update(repository.strings(attributes[attribute]) if attribute in attributes else [])
    return trios, named


def test_every_source_file_belongs_to_a_target():
    packages = {path.parent: sources_with_a_target(path) for path in repository.build_files()}
    faults = []
    for path in repository.own_cpp():
        package = next((parent for parent in path.parents if parent in packages), None)
        trios, named = packages.get(package, (set(), set()))
        concept = path.stem[:-len("_test")] if path.stem.endswith("_test") else path.stem
        in_trio = path.parent == package and path.suffix in (".h", ".cc") and concept in trios
        name = str(path.relative_to(package))
        if not in_trio and not any(fnmatch.fnmatch(name, pattern) for pattern in named):
            faults.append(f"{path}: not in a target of {package}/BUILD; add trio(name = \"{concept}\", ...)")
    assert not faults, "\n".join(faults)


def test_every_trio_has_its_header():
    faults = []
    for build_file in repository.build_files():
        for trio in sources_with_a_target(build_file)[0]:
            if build_file.parent / f"{trio}.h" not in repository.files():
                faults.append(f"{build_file}: trio \"{trio}\" without {trio}.h; a program is a cc_binary")
    assert not faults, "\n".join(faults)


def test_names_have_no_vague_words():
    banned = re.compile(r"(manager|helper|utils?)$", re.IGNORECASE)
    faults = []
    for path in repository.files():
        for part in path.with_suffix("").parts:
            if any(banned.search(word) for word in re.split(r"[_\-.]", part)):
                faults.append(f"{path}: '{part}' is vague; name the decision that it owns")
    for path in repository.own_cpp():
        for name in re.findall(r"\b(?:class|struct)\s+(?:\[\[\w+\]\]\s*)?(\w+)", cpp.blank(repository.text(path))):
            if banned.search(name):
                faults.append(f"{path}: class {name} is vague; name the decision that it owns")
    assert not faults, "\n".join(faults)


# The libraries; the repository also contains google.rpc's protos.
_LIBTORCH = "(@libtorch//:cpu + @libtorch//:cuda)"

# (what, must not reach, why)
BOUNDARIES = [
    ("//coordinator/... + //agent/... + //client/...", _LIBTORCH, "the control plane never links LibTorch"),
    ("//fsdp/plan/... + //base/... + //proto/...", _LIBTORCH, "planning runs where there is no GPU"),
    ("//fsdp/...", "//third_party:grpc", "the engine never links gRPC"),
    ("//coordinator/...", "//agent/...", "they share proto and base only"),
    ("//agent/...", "//coordinator/... + //client/... + //fsdp/...", "the agent depends on proto and base only"),
    ("//client/...", "//coordinator/... + //agent/...", "a client knows the API only"),
    ("//base/...", "//proto/... + //fsdp/... + //coordinator/... + //agent/... + //client/...", "base is a leaf"),
]


def some_path(source, target):
    """A chain of dependencies from the shipped targets of `source` to `target`, or nothing."""
    # Tests may use more: a client's test runs against the real service.
    query = f"somepath(({source}) except attr(testonly, 1, {source}), {target})"
    done = subprocess.run([*BAZEL, "query", "--noshow_progress", "--noimplicit_deps", query], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# The precompiled header has these without a dependency too (third_party/precompiled.h).
@pytest.mark.parametrize("rooms, headers, why", [
    (("coordinator", "agent", "client", "base", "fsdp/plan"), r"(ATen|c10|torch)/", "LibTorch is the engine's"),
    (("fsdp",), r"grpc(pp)?/", "gRPC is the control plane's"),
], ids=["LibTorch", "gRPC"])
def test_no_header_crosses_a_boundary(rooms, headers, why):
    includes = re.compile(rf'^#include [<"]{headers}', re.MULTILINE)
    faults = [f"{path}: {why}" for path in repository.own_cpp()
              if str(path).startswith(tuple(f"{room}/" for room in rooms)) and includes.search(repository.text(path))]
    assert not faults, "\n".join(faults)


def test_the_image_s_first_layer_has_what_setup_reads():
    reads = set(re.findall(r"third_party/\w+\.(?:txt|h)", (ROOT / "deploy/setup").read_text().replace("go_tools.txt", "")))
    copied = re.search(r"^COPY (third_party/.*) third_party/$", (ROOT / "deploy/container/Dockerfile").read_text(), re.MULTILINE)
    # Files that only --tools reads are not in the image.
    assert reads - {"third_party/peft.txt", "third_party/tools.txt"} == set(copied[1].split())


@pytest.mark.parametrize("source, target, why", BOUNDARIES, ids=[why for _, _, why in BOUNDARIES])
def test_no_dependency_crosses_a_boundary(source, target, why):
    path = some_path(source, target)
    assert not path, f"{why}, but:\n{path}"


def test_a_dependency_that_exists_is_found():
    assert some_path("//fsdp/engine/...", _LIBTORCH)
    assert some_path("//proto/...", "//third_party:grpc")
