"""The fields of filters that docs/clients.md tells of are those that the coordinator knows."""

import re

from harness.programs import ROOT

LISTS = {"jobs": "JobColumns", "nodes": "NodeColumns", "events": "EventColumns"}


def test_the_page_has_the_fields_of_each_list():
    page = (ROOT / "docs/clients.md").read_text()
    code = (ROOT / "coordinator/list_fields.cc").read_text()
    for what, function in LISTS.items():
        row = re.search(rf"^\| {what} \| (`.*`) \|$", page, re.MULTILINE).group(1)
        body = re.search(rf"& {function}\(\) {{\n(.*?)^}}", code, re.MULTILINE | re.DOTALL).group(1)
        known = [name + ("KEY" if name.endswith(".") else "") for name in re.findall(r'{{"([a-z_.]+)", Kind::', body)]
        assert known and re.findall("`(.*?)`", row) == known, f"{what}: docs/clients.md has {row}, the code {known}"
