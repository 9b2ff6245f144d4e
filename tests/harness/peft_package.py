"""PEFT and bitsandbytes of third_party/peft.txt, which deploy/setup --tools installs next to the Python environment."""

import importlib
import sys

from harness.programs import ROOT

SITE = ROOT / ".tools/peft"


def module(name):
    assert SITE.is_dir(), "run deploy/setup --tools, as tests/run does"
    if str(SITE) not in sys.path:
        sys.path.append(str(SITE))
    return importlib.import_module(name)


def load():
    """The module `peft`."""
    return module("peft")


def bitsandbytes_functional():
    return module("bitsandbytes.functional")
