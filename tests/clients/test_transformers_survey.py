"""Test of docs/transformers_models.md: rows of a few families, and one row per family."""

import re

import pytest

from clients import transformers_survey as survey

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.mark.parametrize("family", ["llama", "gemma2", "opt", "falcon_h1", "mixtral"])
def test_row_is_up_to_date(family):
    assert survey.row(family) in survey.PAGE.read_text()


def test_page_has_one_row_per_family():
    text = survey.PAGE.read_text()
    rows = re.findall(r"^\| `(\S+)` \| (?:yes|no) \| (?:yes|no) \|", text, re.MULTILINE)
    assert rows == survey.families()
    works, documents = (len(re.findall(f"^{pattern}", text, re.MULTILINE)) for pattern in survey.SUPPORTED)
    assert f"\n{works} of {len(rows)} families are supported, {documents} of them with packed documents" in text
