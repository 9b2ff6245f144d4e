"""Everything that a unit test uses from the machine is an input of its result, so that Bazel does not reuse another machine's."""

import pathlib
import re

from tidy import repository

STARTS = re.compile(r'"openssl |\{"etcd",')


def test_tests_of_etcd_and_openssl_have_their_versions_as_inputs():
    """A result with one version of etcd was reused after an upgrade."""
    starters = {path for path in repository.own_cpp(".h", ".cc") if path.name.endswith("_test.cc") or "testing" in path.parts
                if STARTS.search(repository.text(path))}
    declared = {build_file.parent / source for build_file in repository.build_files()
                for _, attributes, _ in repository.calls(build_file)
                if "data" in attributes and "//:machine.txt" in repository.strings(attributes["data"])
                for each in ("srcs", "hdrs") if each in attributes for source in repository.strings(attributes[each])}
    assert len(starters) == 2 and starters <= declared, starters - declared


def test_a_test_that_uses_libtorch_has_the_processor_as_an_input():
    """A result from a machine with AVX-512 was reused on a machine without it; later also results of fsdp/data, which a list
    of packages had omitted."""
    libraries = {repository.strings(attributes["name"])[0]: attributes
                 for _, attributes, _ in repository.calls(pathlib.Path("third_party/libtorch.BUILD.tpl"))
                 if "name" in attributes}
    linked = {name for name, attributes in libraries.items()
              if "linkopts" in attributes and any("-ltorch" in each for each in repository.strings(attributes["linkopts"]))}
    assert linked == {"cpu", "cuda"}
    assert repository.strings(libraries["cpu"]["data"]) == ["@fsdpd//:hardware"]
    assert ":cpu" in repository.strings(libraries["cuda"]["deps"])
