"""PromQL expressions of the dashboards and the rules."""

import json
import re

import yaml

from harness.programs import ROOT

DIR = ROOT / "dashboards"
LABELS = {"fsdpd_job", "fsdpd_node"}  # Our labels, which have the prefix of metrics.


def boards():
    return {path.name: json.loads(path.read_text()) for path in sorted(DIR.glob("*.json"))}


def panels(board):
    """All panels, including those in collapsed rows."""
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
    """Names of our metrics in an expression; names of recording rules contain colons."""
    return set(re.findall(r"(?:[a-z_]+:)?\b(?:fsdpd|process)_[a-z0-9_]+(?::[a-z0-9_]+)?", expression)) - LABELS


def substitute(expression, variables):
    """Replaces variables as Grafana does: $job, ${job}, $__rate_interval. Variables of scrape labels default to
    `All`."""
    for name, value in {"cluster": ".*", "namespace": ".*", **variables}.items():
        expression = re.sub(r"\$\{%s\}|\$%s\b" % (name, name), lambda match: value, expression)
    return expression
