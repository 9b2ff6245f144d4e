"""The Python package as installed by users: a wheel built from the tree, and unpacked."""

import atexit
import functools
import pathlib
import shutil
import subprocess
import sys
import tempfile

from harness.programs import ROOT

TOOLS = ROOT / ".tools/bin"


@functools.lru_cache(maxsize=None)
def installed():
    """Directory with the package, for PYTHONPATH; created once, and removed at exit."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="fsdpd-wheel-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    pip = [TOOLS / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", directory, ROOT / "clients/python"],
                   check=True)
    wheel, = directory.glob("fsdpd-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", directory / "site", wheel], check=True)
    return directory / "site"


def commands(directory):
    """Creates `fsdpctl-data` and `fsdpctl-model` in a directory for PATH, like `pip install`."""
    directory.mkdir(exist_ok=True)
    for name in ("data", "model"):
        program = directory / f"fsdpctl-{name}"
        program.write_text(f"#!/bin/sh\nPYTHONPATH={installed()} exec {sys.executable} -m fsdpd.{name} \"$@\"\n")
        program.chmod(0o755)
    return directory
