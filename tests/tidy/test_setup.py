"""deploy/setup: the settings that it writes for Bazel, in a separate clone and cache."""

import hashlib
import os
import shutil
import subprocess
import time

import pytest

from harness.programs import ROOT
from tidy import repository

# Precompiled headers are not tested here, and take half a minute.
CLANG = '#!/bin/sh\nfor last; do :; done\ntouch "$last"\n'
# Debian's versions, except for the package in $UPGRADED.
DPKG_QUERY = '''#!/bin/sh
/usr/bin/dpkg-query "$@" | sed "s/^\\(${UPGRADED:-none}\\(:amd64\\)\\?\\t\\).*/\\1999/"
'''


class Clone:
    def __init__(self, directory):
        self.directory, self.cache = directory / "clone", directory / "cache/fsdpd"
        for path in repository.files():
            if path.parts[0] == "third_party" or str(path) == "deploy/setup":
                (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, self.directory / path)
        self.python = self.cache / f"python-{hashlib.sha256((ROOT / 'third_party/python.txt').read_bytes()).hexdigest()[:12]}"
        (self.python / "lib/python3.11/site-packages").mkdir(parents=True)
        (self.python / ".complete").touch()
        (self.python / "bin").mkdir()
        self.interpreter = self.python / "bin/python"
        self.interpreter.write_text(f'#!/bin/sh\nexec {ROOT}/.python/bin/python "$@"\n')
        self.interpreter.chmod(0o755)
        self.programs = directory / "programs"
        self.programs.mkdir()
        for name, text in (("clang++-14", CLANG), ("dpkg-query", DPKG_QUERY)):
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)

    def setup(self, **variables):
        environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(self.cache.parent)}
        return subprocess.run([self.directory / "deploy/setup"], env={**environment, **variables}, capture_output=True, text=True)

    def settings(self, **variables):
        done = self.setup(**variables)
        assert done.returncode == 0, done.stderr
        return (self.directory / "user.bazelrc").read_text()


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


def keys(settings):
    """Settings in the cache keys of genrules and links, and of everything without precompiled headers."""
    return [line for line in settings.splitlines() if "debian" in line.lower()]


@pytest.mark.parametrize("package", ["libgrpc++-dev", "libre2-dev", "protobuf-compiler", "binutils"])
def test_outputs_of_other_package_versions_are_not_reused(clone, package):
    """After an upgrade of protoc or libgrpc.a, the disk cache still returned stubs and programs of the old version."""
    before = clone.settings()
    assert len(keys(before)) == 2 and keys(clone.settings(UPGRADED=package)) != keys(before)
    assert clone.settings() == before


def test_an_unrelated_package_keeps_the_cache(clone):
    before = clone.settings()
    assert "etcd-server" in (ROOT / "third_party/debian.txt").read_text()
    assert clone.settings(UPGRADED="etcd-server") == before


def test_genrules_with_debian_tools_have_their_version_in_the_key():
    starts = [(path, line.strip()) for path in repository.files() if path.name == "BUILD" or path.suffix == ".bzl"
              for line in repository.text(path).splitlines() if "/usr/bin/protoc" in line or "+ NVCC" in line]
    assert len(starts) == 4 and not [each for each in starts if "FSDPD_DEBIAN=$(debian) " not in each[1]], starts


@pytest.mark.parametrize("name", ["user.bazelrc", "machine.txt", ".python"])
def test_setup_names_a_directory_in_place_of_a_file(clone, name):
    """machine.txt.new was moved into the directory, and setup succeeded."""
    (clone.directory / name).mkdir(parents=True)
    done = clone.setup()
    assert done.returncode == 1 and done.stderr == (f"setup: {clone.directory / name}: is a directory, and deploy/setup writes a "
                                                    "file or link there; remove it\n")


def test_reports_unused_environments(clone):
    """Each new version of LibTorch left 5 GB behind."""
    clone.settings()
    old, new = (clone.cache / name for name in ("python-0123456789ab", "tools-0123456789ab"))
    for directory in (old, new, clone.python):
        directory.mkdir(exist_ok=True)
        (directory / ".used").touch()
        os.utime(directory / ".used", (0, time.time() - (5 if directory == new else 31 + 1) * 86400))
    (clone.cache / "headers-0123456789ab").mkdir()  # From an older deploy/setup: counts from now on.
    said = clone.setup().stderr
    assert said.endswith(f"deploy/setup has not used these environments for 30 days; if no clone links to them (.python, .tools): rm -r {old}\n"), said
    assert said.count(str(clone.cache)) == 1 and (clone.cache / "headers-0123456789ab/.used").exists()


@pytest.mark.parametrize("interpreter", [None, "/usr/bin/python3 -S"], ids=["no_python", "no_packages"])
def test_reports_a_damaged_environment_with_its_fix(clone, interpreter):
    """setup succeeded, and later failures asked to run it again."""
    if interpreter:
        clone.interpreter.write_text(f'#!/bin/sh\nexec {interpreter} "$@"\n')
    else:
        clone.interpreter.unlink()
    done = clone.setup()
    assert done.returncode == 1 and done.stderr.endswith(
        f"setup: {clone.python}: damaged; run this, then deploy/setup again: rm -r {clone.python}\n"), done.stderr
