"""Design pages: the index has the title of each page, and the code that a page names exists."""

import re

from harness.programs import ROOT

DESIGN = ROOT / "docs/design"


def titles():
    """{file name: (number, title)} of the pages."""
    return {page.name: re.match(r"# (\d{3}): (.+)\n", page.read_text()).groups() for page in sorted(DESIGN.glob("[0-9]*.md"))}


def test_the_index_has_each_page_with_its_title():
    indexed = re.findall(r"^- \[(\d{3})\]\(([^)]+)\): (.+)$", (DESIGN / "README.md").read_text(), re.MULTILINE)
    assert {name: (number, title) for number, name, title in indexed} == titles()
    assert len(indexed) == len(titles()) and all(name.startswith(number) for number, name, _ in indexed)


def test_link_texts_are_the_names_of_the_files():
    faults = [f"{page.name}: [{text}]({target})" for page in DESIGN.glob("*.md")
              for text, target in re.findall(r"\[([\w/]+\.(?:h|cc|py))\]\(([^)#]+)\)", page.read_text())
              if not target.endswith(text)]
    assert not faults, "\n".join(faults)


def test_named_functions_exist():
    """As in "`Name` in [file](link)" and "[file](link) (`Name`, `Other`)"."""
    seen, faults = 0, []
    for page in DESIGN.glob("[0-9]*.md"):
        text = page.read_text()
        named = [(names, link) for link, names in re.findall(r"\]\(([^)]+)\)\s\((`\w+`(?:, `\w+`)*)\)", text)]
        named += re.findall(r"(`\w+`) in\s\[[^]]+\]\(([^)]+)\)", text)
        for names, link in named:
            code = (page.parent / link).read_text()
            missing = [name for name in re.findall(r"\w+", names) if not re.search(rf"\b{name}\b", code)]
            seen += 1
            faults += [f"{page.name}: {link} has no {name}" for name in missing]
    assert not faults, "\n".join(faults)
    assert seen > 2
