"""Names of metrics, and every alert has its section in docs/runbook.md. That docs/metrics.md is what the daemons' tables say
is test_references.py; that a daemon exports what its table says is tests/integration/test_coordinator_metrics.py."""

import re

import pytest

from harness import dashboards
from harness.programs import ROOT
from tidy import repository

RUNBOOK = (ROOT / "docs/runbook.md").read_text()
ALERTS = [rule for rule in dashboards.rules() if "alert" in rule]


def test_a_metric_s_name_says_its_unit_and_its_kind():
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
def test_an_alert_leads_to_what_to_look_at_and_what_to_do(rule):
    assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"
    symptom, rest = section(rule["alert"]).split("\nLook at:\n\n")
    look, do = rest.split("\nDo:\n\n")
    assert symptom.strip().endswith(".") and look.startswith("- ") and do.startswith("- ")


def test_every_section_is_of_an_alert():
    assert set(re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)) == {rule["alert"] for rule in ALERTS}


def test_commands_flags_and_metrics_of_the_runbook_are_real():
    line = "".join(repository.text(f"client/{file}.cc") for file in ("command_line", "verb_flags", "event_flags", "node_flags"))
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
