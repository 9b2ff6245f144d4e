"""Planted bugs for the simulator (tests/sim/planted) apply to the current code, and the table lists each."""

import re
import subprocess

import pytest

from harness.programs import ROOT

DIR = ROOT / "tests/sim/planted"
PATCHES = sorted(DIR.glob("*.patch"))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_planted_bug_applies_to_the_current_code(patch):
    done = subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"recreate it, so that it does what its first lines describe:\n{done.stderr}"


def test_table_lists_each_planted_bug():
    page = (ROOT / "tests/sim/README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(rows) == [patch.stem for patch in PATCHES]
