"""Generated pages are up to date. tests/integration/test_references.py checks cli.md, which needs the programs."""

import re
import subprocess
import sys

import pytest

from harness.programs import ROOT

sys.path.append(str(ROOT / "docs"))
import spec  # noqa: E402


@pytest.mark.parametrize("page", ["spec", "rules", "errors", "metrics", "records"])
def test_a_reference_page_is_up_to_date(page):
    done = subprocess.run([sys.executable, ROOT / "docs/references.py", "--check", page], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_rule_is_listed_once_and_at_its_field():
    page, runs = (ROOT / "docs/rules.md").read_text().split("\n## Megatron runs")
    of_runs = re.findall(r"^\| `(\w+)` \|", runs, re.MULTILINE)  # Some are also rules of specs: lr_positive.
    assert len(of_runs) > 100 and len(set(of_runs)) == len(of_runs)
    written = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    of_the_whole = set(re.findall(r"^\| `(\w+)` \|.*\| `spec` \| \w+ \|$", page, re.MULTILINE))
    beside = {rule for line in re.findall(r"^\| `[\w.\[\]]+` \|.*\| ([^|]*) \|$", (ROOT / "docs/spec.md").read_text(), re.MULTILINE)
              for rule in re.findall(r"`(\w+)`", line)}
    assert len(written) > 150 and len(set(written)) == len(written) and of_the_whole and beside == set(written) - of_the_whole


@pytest.mark.parametrize("comment, default, rest", [
    ("Decay. Auto: 0.1.", "auto: 0.1", "Decay."),
    ("Width of one head, even. Default hidden_size / heads.", "hidden_size / heads", "Width of one head, even."),
    ("Fewest ranks. Required. Below nodes.", "required", "Fewest ranks. Below nodes."),
    ("Largest norm; 0 (default) does not clip.", "0", "Largest norm; 0 (default) does not clip."),
    ("Default 1e-5.", "1e-5", ""),
    ("A comment without a default.", "", "A comment without a default."),
])
def test_parses_the_default_of_a_comment(comment, default, rest):
    assert spec.parted(comment) == (default, rest)
