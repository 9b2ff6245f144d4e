"""docs/troubleshooting.md quotes messages of the programs that are in their sources, so that a changed message fails here.
tests/integration/test_pages.py runs its commands."""

import re

from harness.programs import ROOT
from tidy import repository

PAGE = ROOT / "docs/troubleshooting.md"
SHORT = 10  # Shorter strings match anywhere.
# Values in messages: numbers and names.
PUT_IN = re.compile(r"\d[\d.]*(?: [KMG]iB| ms| s)?|HOST:PORT|\bN\b|\.\.\.")


def quotes():
    """(line, words) of the first column of tables that begin with "output"."""
    asked = False
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        asked = line.startswith("| output |") or (asked and line.startswith("|"))
        if asked:
            yield from ((number, words) for words in re.findall(r"`([^`]+)`", line.split(" | ")[0]))


def literals():
    """Strings of the C++ sources, with adjacent literals joined. Also strings of tests, which contain whole messages that a
    program joins from several."""
    found = set()
    tests = [path for path in repository.with_suffix(".py") if path.parts[:2] == ("tests", "integration")]
    for path in repository.own_cpp(".h", ".cc") + tests:
        text = re.sub(r'"\s*\n\s*"', "", repository.text(path))
        found.update(re.sub(r"%[.\d]*\w|\\n", "", each).strip() for each in re.findall(r'"((?:[^"\\\n]|\\.)*)"', text))
    return found


def is_said(words, known):
    """Whether at least half of it is in literals: a stretch without values, or a literal within it."""
    parts = [part.strip(" []():'") for part in PUT_IN.split(words)]
    pieces = [part for part in parts if len(part) >= SHORT and any(part in each for each in known)]
    pieces += [each for each in known if len(each) >= SHORT and each in words]
    said = set()
    for piece in pieces:
        at = words.index(piece)
        said.update(range(at, at + len(piece)))
    return 2 * len(said) >= len(words)


def test_quoted_output_is_in_the_sources():
    known, seen = literals(), list(quotes())
    assert len(seen) > 35
    faults = [f"docs/troubleshooting.md:{line}: not in the sources: {words}" for line, words in seen
              if len(words.strip("[]")) >= SHORT and not is_said(words, known)]
    assert not faults, "\n".join(faults)


def test_finds_quotes_that_are_not_in_the_sources():
    known = {"cannot reach the coordinator at", "attempts in a row committed no checkpoint and made no progress"}
    assert is_said("cannot reach the coordinator at HOST:PORT: Connection refused", known)
    assert is_said("3 attempts in a row committed no checkpoint and made no progress beyond step N", known)
    assert not is_said("3 attempts in a row saved nothing and made no progress beyond step N", known | {"no progress beyond step"})
    assert not is_said("can not get to the coordinator at HOST:PORT", known)
