"""docs/clients.md lists the filter fields of the coordinator."""

import re

from harness.programs import ROOT

LISTS = {"jobs": "JobColumns", "nodes": "NodeColumns", "events": "EventColumns"}


def test_docs_list_the_filter_fields():
    page = (ROOT / "docs/clients.md").read_text()
    code = (ROOT / "coordinator/request/list_fields.cc").read_text()
    for what, function in LISTS.items():
        row = re.search(rf"^\| {what} \| (`.*`) \|$", page, re.MULTILINE).group(1)
        body = re.search(rf"& {function}\(\) {{\n(.*?)^}}", code, re.MULTILINE | re.DOTALL).group(1)
        known = [name + ("KEY" if name.endswith(".") else "") for name in re.findall(r'{{"([a-z_.]+)", Kind::', body)]
        assert known and re.findall("`(.*?)`", row) == known, f"{what}: docs/clients.md has {row}, the code {known}"
