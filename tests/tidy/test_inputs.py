"""What a unit test takes from the machine is an input of its result, or Bazel reuses that of another machine."""

import pathlib
import re

from tidy import repository

STARTS = re.compile(r'"openssl |\{"etcd",')


def test_who_starts_etcd_or_openssl_has_their_versions_as_an_input():
    """A result with one version of etcd was reused after an upgrade."""
    starters = {path for path in repository.own_cpp(".h", ".cc") if path.name.endswith("_test.cc") or "testing" in path.parts
                if STARTS.search(repository.text(path))}
    declared = {build_file.parent / source for build_file in repository.build_files()
                for _, attributes, _ in repository.calls(build_file)
                if "data" in attributes and "//:machine.txt" in repository.strings(attributes["data"])
                for each in ("srcs", "hdrs") if each in attributes for source in repository.strings(attributes[each])}
    assert len(starters) == 2 and starters <= declared, starters - declared


def test_a_test_that_uses_libtorch_has_the_processor_as_an_input():
    """A result from a machine with AVX-512 was reused on one without it; then those of fsdp/data, which a list of packages
    left out."""
    libraries = {repository.strings(attributes["name"])[0]: attributes
                 for _, attributes, _ in repository.calls(pathlib.Path("third_party/libtorch.BUILD.tpl"))
                 if "name" in attributes}
    linked = {name for name, attributes in libraries.items()
              if "linkopts" in attributes and any("-ltorch" in each for each in repository.strings(attributes["linkopts"]))}
    assert linked == {"cpu", "cuda"}
    assert repository.strings(libraries["cpu"]["data"]) == ["@fsdpd//:hardware"]
    assert ":cpu" in repository.strings(libraries["cuda"]["deps"])
