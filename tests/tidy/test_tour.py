"""The tour of a job (docs/ARCHITECTURE.md): its files exist, describe their step, and define the names that the tour
mentions."""

import re

from harness.programs import ROOT
from tidy import repository

PAGE = ROOT / "docs/ARCHITECTURE.md"


def stops():
    """(path, what happens there) of each row."""
    section = PAGE.read_text().split("## The life of a job")[1].split("\n## ")[0]
    return [((PAGE.parent / link).resolve().relative_to(ROOT), words)
            for link, words in re.findall(r"^\|[^|]*\| \[[^]]+\]\(([^)]+)\) \| (.+) \|$", section, re.MULTILINE)]


def test_every_file_of_the_tour_describes_its_step():
    assert len(stops()) > 20
    silent = [str(path) for path, _ in stops() if not repository.text(path).startswith("// ")]
    assert not silent, f"open with a comment: {silent}"


def test_the_tour_names_existing_files():
    faults = []
    for path, words in stops():
        # Functions of a header are defined in the .cc file next to it.
        beside = [each for each in (path.with_suffix(".h"), path.with_suffix(".cc"), path) if (ROOT / each).exists()]
        source = "".join(repository.text(each) for each in beside)
        faults += [f"{path}: no {name}" for name in re.findall(r"`([A-Z]\w+)`", words)
                   if not re.search(rf"\b{name}\(", source)]
    assert not faults, "\n".join(faults)


def test_readme_links_the_tour():
    assert "docs/ARCHITECTURE.md#the-life-of-a-job" in (ROOT / "README.md").read_text()
