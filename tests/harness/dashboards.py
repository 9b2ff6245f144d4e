"""What the dashboards and the rules ask Prometheus for."""

import json
import re

import yaml

from harness.programs import ROOT

DIR = ROOT / "dashboards"
LABELS = {"fsdpd_job", "fsdpd_node"}  # Ours, with the prefix that metrics have.


def boards():
    return {path.name: json.loads(path.read_text()) for path in sorted(DIR.glob("*.json"))}


def panels(board):
    """All panels, those within collapsed rows too."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", [])


def queries(board):
    """(panel's title, expression) of every target."""
    return [(panel["title"], target["expr"]) for panel in panels(board) for target in panel.get("targets", [])]


def rules():
    """The rules of dashboards/rules.yml."""
    groups = yaml.safe_load((DIR / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def metrics(expression):
    """The names of our metrics in an expression; recorded ones keep their colons."""
    return set(re.findall(r"(?:[a-z_]+:)?\b(?:fsdpd|process)_[a-z0-9_]+(?::[a-z0-9_]+)?", expression)) - LABELS


def substitute(expression, variables):
    """As Grafana does before it asks: $job, ${job}, $__rate_interval. What scrapes set is `All`, unless it is given."""
    for name, value in {"cluster": ".*", "namespace": ".*", **variables}.items():
        expression = re.sub(r"\$\{%s\}|\$%s\b" % (name, name), lambda match: value, expression)
    return expression
