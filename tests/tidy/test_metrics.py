"""Names of metrics, and a section of docs/runbook.md for every alert. test_references.py compares docs/metrics.md with the
tables of the daemons, and tests/integration/test_coordinator_metrics.py the tables with the exported metrics."""

import re

import pytest

from harness import dashboards
from harness.programs import ROOT
from tidy import repository

RUNBOOK = (ROOT / "docs/runbook.md").read_text()
ALERTS = [rule for rule in dashboards.rules() if "alert" in rule]


def test_a_metric_name_has_its_unit_and_kind():
    rows = re.findall(r"^\| `(fsdpd_\w+)` \| (\w+) \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    kinds = dict(rows)
    assert len(kinds) > 80
    assert not [name for name, kind in rows if (kind == "counter") != name.endswith("_total")]
    assert not [name for name, kind in rows if kind == "histogram" and not name.endswith("_seconds")]


def section(alert):
    found = re.search(rf"^## {alert}\n\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL)
    assert found, f"docs/runbook.md has no section {alert}"
    return found[1]


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_a_runbook_section_has_checks_and_actions(rule):
    assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"
    symptom, rest = section(rule["alert"]).split("\nLook at:\n\n")
    look, do = rest.split("\nDo:\n\n")
    assert symptom.strip().endswith(".") and look.startswith("- ") and do.startswith("- ")


def test_every_runbook_section_has_an_alert():
    assert set(re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)) == {rule["alert"] for rule in ALERTS}


def test_runbook_uses_existing_commands_flags_and_metrics():
    line = "".join(repository.text(f"client/flags/{file}.cc") for file in ("parse_command_line", "verb_flags", "event_flags", "node_flags"))
    commands = set(re.findall(r'AddCommand\(\s*app,\s*"([a-z-]+)"|\bapp, "([a-z]+)",', line))
    commands = {name for pair in commands for name in pair if name}
    calls = re.findall(r"`fsdpctl ([a-z-]+)([^`]*)`", RUNBOOK)
    assert calls and not [name for name, _ in calls if name not in commands], commands
    flags = {flag for _, rest in calls for flag in re.findall(r"--[a-z-]+", rest)}
    assert flags and not [flag for flag in flags if not re.search(rf'"(?:-\w,)?{flag}["\[]', line)]
    exported = set(re.findall(r"`((?:fsdpd|process)_\w+)`", (ROOT / "docs/metrics.md").read_text()))
    recorded = {rule["record"] for rule in dashboards.rules() if "record" in rule}
    asked = {name for code in re.findall(r"`([^`\n]+)`", RUNBOOK) for name in dashboards.metrics(code)}
    assert asked and not asked - exported - recorded
