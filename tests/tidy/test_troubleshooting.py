"""docs/troubleshooting.md quotes the programs: what stands there as their words is in their sources, so that who changes a
message finds the page. Its commands are run by tests/integration/test_pages.py."""

import re

from harness.programs import ROOT
from tidy import repository

PAGE = ROOT / "docs/troubleshooting.md"
SHORT = 10  # Less is found anywhere.
# What programs put in their words: numbers and names.
PUT_IN = re.compile(r"\d[\d.]*(?: [KMG]iB| ms| s)?|HOST:PORT|\bN\b|\.\.\.")


def quotes():
    """(line, words) of the first column of tables that begin with "output"."""
    asked = False
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        asked = line.startswith("| output |") or (asked and line.startswith("|"))
        if asked:
            yield from ((number, words) for words in re.findall(r"`([^`]+)`", line.split(" | ")[0]))


def literals():
    """Strings of the C++ sources, those that are one over several lines put together; also of tests, C++ and of whole programs,
    which have in one piece what a program puts together of many."""
    found = set()
    tests = [path for path in repository.with_suffix(".py") if path.parts[:2] == ("tests", "integration")]
    for path in repository.own_cpp(".h", ".cc") + tests:
        text = re.sub(r'"\s*\n\s*"', "", repository.text(path))
        found.update(re.sub(r"%[.\d]*\w|\\n", "", each).strip() for each in re.findall(r'"((?:[^"\\\n]|\\.)*)"', text))
    return found


def is_said(words, known):
    """Whether at least half of it is in literals: a stretch in which programs put nothing, or a literal within it."""
    parts = [part.strip(" []():'") for part in PUT_IN.split(words)]
    pieces = [part for part in parts if len(part) >= SHORT and any(part in each for each in known)]
    pieces += [each for each in known if len(each) >= SHORT and each in words]
    said = set()
    for piece in pieces:
        at = words.index(piece)
        said.update(range(at, at + len(piece)))
    return 2 * len(said) >= len(words)


def test_what_the_page_has_programs_say_they_say():
    known, seen = literals(), list(quotes())
    assert len(seen) > 35
    faults = [f"docs/troubleshooting.md:{line}: no program says: {words}" for line, words in seen
              if len(words.strip("[]")) >= SHORT and not is_said(words, known)]
    assert not faults, "\n".join(faults)


def test_words_that_nobody_says_are_found():
    known = {"cannot reach the coordinator at", "attempts in a row committed no checkpoint and"}
    assert is_said("cannot reach the coordinator at HOST:PORT: Connection refused", known)
    assert is_said("3 attempts in a row committed no checkpoint and made no progress beyond step N", known)
    assert not is_said("3 attempts in a row saved nothing and made no progress beyond step N", known | {"no progress beyond step"})
    assert not is_said("can not get to the coordinator at HOST:PORT", known)
