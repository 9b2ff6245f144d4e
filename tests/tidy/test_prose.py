"""Pages use short sentences and standard terms (docs/STYLE.md, "Language")."""

import pytest

from harness import pages
from harness.programs import ROOT
from tidy import prose

# Generated from --help of the programs, which is not rewritten yet.
OLD = {"docs/cli.md"}
CHECKED = [page for page in pages.pages() if page not in OLD]


@pytest.mark.parametrize("page", CHECKED)
def test_a_page_has_short_sentences_and_no_private_words(page):
    found = prose.faults((ROOT / page).read_text())
    assert not found, "\n".join(f"{page}:{each}" for each in found)


def test_a_long_sentence_and_a_banned_phrase_are_found():
    assert prose.faults("# Ranks\n\nThe agent goes on.\n") == ["3: 'goes on' (write: continue, resume): The agent goes on."]
    long = "# Ranks\n\n" + "word " * 40 + "end.\n"
    assert any("a sentence of 41 words" in each for each in prose.faults(long))
    assert any("the median sentence has 20 words" in each for each in prose.faults("word " * 19 + "end.\n"))


def test_code_quotes_comments_and_links_are_not_prose():
    page = ("# Ranks\n\n<!-- run by: whoever -->\n```sh\nfsdpctl tells at once\n```\n\n"
            "It prints `job goes on` or \"the job goes on\", see [logs](whoever.md).\n\n| `is none` | a value |\n|---|---|\n")
    assert prose.faults(page) == []
