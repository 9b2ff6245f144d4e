"""Hugging Face's `datasets`, pyarrow and zstandard (third_party/datasets.txt), which tests of `fsdpctl data` compare it with."""

import functools

from harness.cached import made_once, pip_install
from harness.programs import ROOT

PINS = ROOT / "third_party/datasets.txt"


@functools.lru_cache(maxsize=None)
def installed():
    """Their directory, for PYTHONPATH; created once per version in the user's cache."""
    return made_once("datasets", [PINS], lambda directory: pip_install(PINS, directory, "--require-hashes"))
