"""The tour of a job (docs/ARCHITECTURE.md) can be followed without a search: its files say what happens in them, and have
what it tells readers to look for."""

import re

from harness.programs import ROOT
from tidy import repository

PAGE = ROOT / "docs/ARCHITECTURE.md"


def stops():
    """(path, what happens there) of each row."""
    section = PAGE.read_text().split("## The life of a job")[1].split("\n## ")[0]
    return [((PAGE.parent / link).resolve().relative_to(ROOT), words)
            for link, words in re.findall(r"^\|[^|]*\| \[[^]]+\]\(([^)]+)\) \| (.+) \|$", section, re.MULTILINE)]


def test_every_file_on_the_tour_says_in_its_first_lines_what_happens_there():
    assert len(stops()) > 20
    silent = [str(path) for path, _ in stops() if not repository.text(path).startswith("// ")]
    assert not silent, f"open with a comment: {silent}"


def test_what_the_tour_names_is_there():
    faults = []
    for path, words in stops():
        # A header's functions are defined beside it.
        beside = [each for each in (path.with_suffix(".h"), path.with_suffix(".cc"), path) if (ROOT / each).exists()]
        source = "".join(repository.text(each) for each in beside)
        faults += [f"{path}: no {name}" for name in re.findall(r"`([A-Z]\w+)`", words)
                   if not re.search(rf"\b{name}\(", source)]
    assert not faults, "\n".join(faults)


def test_the_first_page_leads_to_it():
    assert "docs/ARCHITECTURE.md#the-life-of-a-job" in (ROOT / "README.md").read_text()
