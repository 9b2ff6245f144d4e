"""Every test has exactly one tier (`tests/run --help`), so that each of them runs."""

import ast
import pathlib
import re

from tidy import repository

NEEDS_A_GPU = re.compile(r'GTEST_SKIP\(\) << "(?:no GPU|needs \d)')
RANDOM = re.compile(r"\bmt19937|\bDice\b")


def cpp_tests():
    """(source, tags of its target) of each test file; the tags of a trio are those of its test."""
    for build_file in repository.build_files():
        for rule, attributes, _ in repository.calls(build_file):
            tags = repository.strings(attributes["tags"]) if "tags" in attributes else []
            if rule == "trio":
                sources = [name + "_test.cc" for name in repository.strings(attributes["name"])]
            elif rule == "cc_test":
                sources = repository.strings(attributes["srcs"])
            else:
                continue
            for source in sources:
                path = build_file.parent / source
                if path in repository.files():
                    yield path, tags


def faults_of(source, tags):
    if NEEDS_A_GPU.search(source) and "gpu" not in tags:
        yield "skips where there is no GPU: tags = [\"gpu\", \"manual\"], or nobody sees it run"
    if "gpu" in tags and "manual" not in tags:
        yield "tags = [\"gpu\", \"manual\"]: the commit tier would build it"
    if ("Seeds(" in source) != ("seeds" in tags):
        yield "a test has the tag \"seeds\" when it asks base/seeds.h how many cases to try, and only then"
    if RANDOM.search(source) and "Seeds(" not in source:
        yield "rolls dice: base/seeds.h says how often, so that a night may try more"


def test_a_unit_test_has_the_tags_of_its_tier():
    faults = [f"{path}: {fault}" for path, tags in cpp_tests() if str(path) != "base/seeds_test.cc"
              for fault in faults_of(repository.text(path), tags)]
    assert not faults, "\n".join(faults)


def test_finds_tests_without_a_tier():
    gpu = 'GTEST_SKIP() << "no GPU";'
    assert list(faults_of(gpu, [])) and list(faults_of(gpu, ["gpu"])) and not list(faults_of(gpu, ["gpu", "manual"]))
    assert list(faults_of("Seeds(3)", [])) and list(faults_of("", ["seeds"])) and not list(faults_of("Seeds(3)", ["seeds"]))
    assert list(faults_of("std::mt19937 random(7);", []))


def test_the_readers_find_every_test_file():
    known = {path for path, _ in cpp_tests()}
    assert known == {path for path in repository.own_cpp(".cc") if path.stem.endswith("_test")}


def marks_of(path):
    """Names of the marks of a whole file: its `pytestmark`."""
    for node in ast.parse(repository.text(path)).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "pytestmark":
            return {each.attr for each in ast.walk(node.value) if isinstance(each, ast.Attribute)}
    return set()


def test_tests_with_gpus_have_the_mark():
    files = [path for path in repository.python_files() if path.match("tests/gpu/test_*.py")]
    assert files and not [str(path) for path in files if "gpu" not in marks_of(path)]


PROCESS_TESTS = re.compile(r"tests/(integration|robustness|clients|parity)/test_\w+\.py")


def test_a_pytest_file_has_a_target_unless_it_is_nightly():
    files = {str(path) for path in repository.python_files() if PROCESS_TESTS.fullmatch(str(path))}
    nightly = {path for path in files if "nightly" in marks_of(pathlib.Path(path))}
    named = {f"{build_file.parent}/{name}.py" for build_file in repository.build_files()
             for rule, attributes, _ in repository.calls(build_file) if rule == "pytest_test"
             for name in repository.strings(attributes["name"])}
    assert len(named) > 70
    missing, gone = files - nightly - named, named - files
    assert not missing, f"add a pytest_test for each to its BUILD file, with its inputs as `data`: {sorted(missing)}"
    assert not gone | (named & nightly), "remove their pytest_test: these files are gone, or nightly as a whole"


def test_nightly_tests_are_in_the_nightly_directories():
    assert not [str(path) for path in repository.python_files() if path.match("tests/*/test_*.py") and path.parts[1] not in
                ("integration", "robustness", "clients", "parity", "tidy") and "mark.nightly" in repository.text(path)]
