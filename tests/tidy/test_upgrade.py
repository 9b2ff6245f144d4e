"""Upgrading from release 0.1: docs/upgrade.md, its recording rules and the tables of renamed fields match the code."""

import re
import subprocess

import yaml

from harness import dashboards
from harness.programs import ROOT
from tidy.test_proto import contracts  # noqa: F401

RULES = dashboards.DIR / "upgrade_0_1.rules.yml"


def rows(title):
    """The cells in backticks of each row of a section's table."""
    section = (ROOT / "docs/upgrade.md").read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    cells = [re.findall(r"`([^`]+)`", line) for line in section.splitlines() if line.startswith("| ")]
    return [each for each in cells if each]


def types(contracts):  # noqa: F811
    """Fields and values of every message and enum, by their names without the package."""
    found = {}

    def add(message, prefix):
        name = prefix + message.name
        found[name] = {field.name for field in message.field}
        for enum in message.enum_type:
            found.setdefault(f"{name}.", set()).update(value.name for value in enum.value)
        for nested in message.nested_type:
            add(nested, f"{name}.")

    for file in contracts:
        for message in file.message_type:
            add(message, "")
        for enum in file.enum_type:
            found.setdefault("", set()).update(value.name for value in enum.value)
    return found


def test_page_lists_fields_and_values_that_were_renamed(contracts):  # noqa: F811
    known = types(contracts)
    for message, before, name in rows("Fields of messages"):
        assert name in known[message] and before not in known[message], (message, before, name)
    for before, name in rows("Enum values"):
        owner = name.rpartition(".")[0]
        values = known[f"{owner}." if owner else ""]
        assert name.rpartition(".")[2] in values and before.rpartition(".")[2] not in values, name
    calls = {method.name for file in contracts for service in file.service for method in service.method}
    for row in rows("Messages and calls"):
        before, new = row[:len(row) // 2], row[len(row) // 2:]
        assert all(each in known or each in calls for each in new) and not any(each in known for each in before), row


def test_explain_knows_the_reasons_that_were_renamed():
    source = (ROOT / "client/commands/explain_command.cc").read_text()
    assert dict(re.findall(r'\{"([A-Z_]+)", "([A-Z_]+)"\}', source)) == dict(rows("Error reasons"))


def test_page_lists_flags_and_metrics_that_were_renamed():
    flags, metrics = (ROOT / "docs/cli.md").read_text(), (ROOT / "docs/metrics.md").read_text()
    for _, before, name in rows("Flags")[:2]:
        assert f"`{name}" in flags and not re.search(rf"`{before}[ `]", flags), name
    for before, name in rows("Metrics"):
        assert f"| `{name}` |" in metrics and f"`{before}`" not in metrics, name


def test_recording_rules_keep_the_metrics_of_0_1():
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    recorded = {rule["record"]: rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"]
                for rule in group["rules"] if rule["record"] != "fsdpd_fp8_scale"}
    assert recorded == dict(rows("Metrics"))


def test_recording_rules_keep_labels_and_values(tmp_path):
    path = tmp_path / "test.yml"
    scales = ['fsdpd_fp8_scale{bound="least", rank="0"}', 'fsdpd_fp8_scale{bound="largest", rank="0"}',
              'fsdpd_fp8_scale{bound="min", rank="0"}', 'fsdpd_fp8_scale{bound="max", rank="0"}']
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [{
        "interval": "1m",
        "input_series": [{"series": 'fsdpd_expert_capacity_factor{fsdpd_job="a", rank="0"}', "values": "1.5 1.875"},
                         {"series": scales[2], "values": "0.25 0.25"}, {"series": scales[3], "values": "4 4"}],
        "promql_expr_test": [
            {"expr": "fsdpd_expert_room", "eval_time": "1m",
             "exp_samples": [{"labels": 'fsdpd_expert_room{fsdpd_job="a", rank="0"}', "value": 1.875}]},
            {"expr": "fsdpd_fp8_scale", "eval_time": "1m",
             "exp_samples": [{"labels": each, "value": value} for each, value in zip(scales, [0.25, 4, 0.25, 4])]}]}]}))
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tables_of_renamed_fields_are_equal():
    """The page, the C++ sources and both clients name the same fields."""
    groups = {"data": "Data", "train.initial": "InitialValues", "model.plugin.units[]": "Plugin.Unit"}
    page = {(groups[before.rpartition(".")[0]], before.rpartition(".")[2], name.rpartition(".")[2])
            for before, name, *_ in rows("Fields of a spec")}
    triple = r'[({]+"([\w.]+)", "(\w+)"(?:\): |, )"(\w+)"'
    for path in ("base/spec_text/renamed_fields.cc", "clients/python/fsdpd/renamed.py", "clients/go/renamed.go"):
        assert set(re.findall(triple, (ROOT / path).read_text())) == page, path
