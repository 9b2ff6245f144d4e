"""Runs the commands of the documentation as a reader would. tests/tidy/test_pages.py lists commands that no test runs.
"""

import re

import pytest

from harness import pages

RUN = [page for page in pages.pages() if any(block.commands and not block.why for block in pages.blocks(page))]

assert RUN, "git lists no page"


@pytest.mark.parametrize("page", RUN)
def test_commands_of_page_work(page, tmp_path):
    with pages.Reader(page, tmp_path / "clone") as reader:
        output = reader.run()
    print(output)
    if page.startswith("docs/tutorials/"):
        missing = pages.never_said(page, output)
        assert not missing, "shown, and not said:\n" + "\n".join(missing)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_tutorials_run_in_one_directory(tmp_path):
    """Regression: files of laptop.md made the job of python.md fail, and its program raised an IndexError."""
    tutorials = [f"docs/tutorials/{name}.md" for name in ("laptop", "huggingface", "chats", "python")]
    assert set(tutorials) == {page for page in RUN if page in pages.with_coordinators()}, "add the new one"
    with pages.Reader(tutorials[0], tmp_path / "clone") as reader:
        for page in tutorials:
            reader.turn_to(page)
            output = reader.run(timeout_s=180, changed=lambda text: re.sub(r"^rm -r \S+$", ":", text, flags=re.MULTILINE))
            assert not pages.never_said(page, output), output
        assert {path.name for path in reader.directory.glob("try*")} == {"try", "try-hf", "try-chats", "try-python"}


def test_detects_output_that_no_command_printed():
    page = "docs/tutorials/huggingface.md"
    output = "\n".join(text for _, text in pages.shown(page))
    assert not pages.never_said(page, output.replace("8jvkg2", "x2x4x6").replace("4.80 MiB", "301 KiB"))
    intact = sum("intact" in line for line in output.splitlines())
    assert len(pages.never_said(page, output.replace("intact", "torn"))) == intact > 1
