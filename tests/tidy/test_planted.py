"""Faults that are planted to try the simulator (tests/sim/planted) can be planted still, and the table has each."""

import re
import subprocess

import pytest

from harness.programs import ROOT

DIR = ROOT / "tests/sim/planted"
PATCHES = sorted(DIR.glob("*.patch"))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_planted_fault_applies_to_the_code_as_it_is(patch):
    done = subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"make it anew, so that it does what its first lines say:\n{done.stderr}"


def test_the_table_has_each_planted_fault():
    page = (ROOT / "tests/sim/README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(rows) == [patch.stem for patch in PATCHES]
