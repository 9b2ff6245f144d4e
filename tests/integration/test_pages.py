"""The commands of the pages, as a reader runs them. Which ones no test runs is tests/tidy/test_pages.py."""

import pytest

from harness import pages

RUN = [page for page in pages.pages() if any(block.commands and not block.why for block in pages.blocks(page))]


@pytest.mark.parametrize("page", RUN)
def test_a_page_s_commands_do_what_it_says(page, tmp_path):
    with pages.Reader(page, tmp_path / "clone") as reader:
        print(reader.run())
