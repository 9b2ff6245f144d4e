"""Small tmpfs that a test can fill. Mounting requires root."""

import contextlib
import subprocess

import pytest


@contextlib.contextmanager
def small_disk(directory, size="1m"):
    directory.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs to mount a small tmpfs, which takes root")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def fill(directory):
    """Fills the remaining space. Removing the returned file frees it."""
    filler = directory / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return filler
