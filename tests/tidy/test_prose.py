"""Pages use short sentences and standard terms (docs/STYLE.md, "Language")."""

import pytest

from harness import pages
from harness.programs import ROOT
from tidy import prose


@pytest.mark.parametrize("page", pages.pages())
def test_a_page_has_short_sentences_and_no_private_words(page):
    found = prose.faults((ROOT / page).read_text())
    assert not found, "\n".join(f"{page}:{each}" for each in found)


def test_a_long_sentence_and_a_banned_phrase_are_found():
    assert prose.faults("# Ranks\n\nThe agent goes on.\n") == ["3: 'goes on' (write: continue, resume): The agent goes on."]
    long = "# Ranks\n\n" + "word " * 40 + "end.\n"
    assert any("a sentence of 41 words" in each for each in prose.faults(long))
    assert any("the median sentence has 20 words" in each for each in prose.faults("word " * 19 + "end.\n"))


def test_help_of_flags_and_commands_is_short():
    found = prose.help_faults((ROOT / "docs/cli.md").read_text())
    assert not found, "\n".join(f"docs/cli.md:{each}" for each in found)


def test_long_help_and_help_without_a_verb_are_found():
    long = "Write " + "x" * 74
    assert prose.help_faults(f"| `-f,--file FILE` |  | {long[:-1]}. Or `FILE`. With `--a`, `--b`. |\n| [x](#x) | {long[:-2]}. Y. |") == []
    assert prose.help_faults(f"| `--to A\\|B` | `a` | {long} |") == [f"1: 80 characters of help (at most 79): {long}"]
    assert prose.help_faults(f"| [x](#x) | {long[:-1]}. Y. |") == [f"1: 80 characters of help (at most 79): {long[:-1]}."]
    assert prose.help_faults("| `--server TEXT` |  | The coordinator. |") == ["1: help that does not start with a verb: The coordinator"]


def test_code_quotes_comments_and_links_are_not_prose():
    page = ("# Ranks\n\n<!-- run by: whoever -->\n```sh\nfsdpctl tells at once\n```\n\n"
            "It prints `job goes on` or \"the job goes on\", see [logs](whoever.md).\n\n| `is none` | a value |\n|---|---|\n")
    assert prose.faults(page) == []
