"""Dashboards and rules use exported metrics. tests/integration/test_metrics.py checks that every query has a result."""

import re
import subprocess
import sys

import pytest
import yaml

from harness import dashboards
from tidy import repository

BOARDS = dashboards.boards()
SOURCE = "prometheus"  # The kind of data source of the dashboards.


def exported():
    """Every metric name in the sources of agent, coordinator and base."""
    sources = [path for path in repository.with_suffix(".cc", ".h") if path.parts[0] in ("agent", "base", "coordinator")]
    names = {name for path in sources for name in re.findall(r'"((?:fsdpd|process)_[a-z0-9_]+)"', repository.text(path))}
    histograms = {name for path in sources for name in re.findall(r'"(fsdpd_[a-z0-9_]+)", kHistogram', repository.text(path))}
    return names | {name + part for name in histograms for part in ("_bucket", "_sum", "_count")}


def test_dashboards_match_their_descriptions():
    done = subprocess.run([sys.executable, dashboards.DIR / "generate", "--check"], capture_output=True, text=True)
    assert done.returncode == 0 and BOARDS, done.stderr


def test_uids_are_stable_and_unique():
    uids = [board["uid"] for board in BOARDS.values()]
    assert len(set(uids)) == len(uids) and all(re.fullmatch(r"[a-z][a-z0-9-]{3,39}", uid) for uid in uids), uids


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_can_be_imported_anywhere(name):
    board = BOARDS[name]
    assert board["id"] is None, "an id belongs to one Grafana server; uid is what identifies the dashboard"
    assert 39 <= board["schemaVersion"] <= 41
    assert board["templating"]["list"][0]["type"] == "datasource"
    source = {"type": SOURCE, "uid": "${datasource}"}
    asked = [each for panel in dashboards.panels(board) for each in [panel, *panel.get("targets", [])]
             if panel["type"] != "row"]
    assert all(each["datasource"] == source for each in asked)
    ids = [panel["id"] for panel in dashboards.panels(board)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_a_unit_a_description_and_a_place(name):
    taken = set()
    for panel in dashboards.panels(BOARDS[name]):
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, f"{panel['title']} overlaps another panel"
        taken |= cells
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"] and panel["description"], panel["title"]
            assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None, panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_rates_follow_the_scrape_interval(name):
    for title, expression in dashboards.queries(BOARDS[name]):
        ranges = re.findall(r"\[([^\]]+)\]", expression)
        assert all(each == "$__rate_interval" for each in ranges), f"{title}: {expression}"


@pytest.mark.parametrize("name", BOARDS)
def test_links_lead_to_existing_dashboards(name):
    links = [link["url"] for panel in dashboards.panels(BOARDS[name]) if panel["type"] != "row"
             for link in panel["fieldConfig"]["defaults"].get("links", [])]
    uids = {board["uid"] for board in BOARDS.values()}
    assert {re.match(r"/d/([a-z-]+)\?", url)[1] for url in links} <= uids
    assert all(tag in board["tags"] for board in BOARDS.values() for tag in BOARDS[name]["links"][0]["tags"])


def test_every_queried_metric_is_exported():
    recorded = {rule["record"] for rule in dashboards.rules() if "record" in rule}
    known = exported() | recorded
    faults = [f"{name}: {title}: no such metric: {metric}" for name, board in BOARDS.items()
              for title, expression in dashboards.queries(board) for metric in sorted(dashboards.metrics(expression) - known)]
    faults += [f"rules.yml: {rule.get('alert') or rule['record']}: no such metric: {metric}"
               for rule in dashboards.rules() for metric in sorted(dashboards.metrics(rule["expr"]) - known)]
    assert not faults, "\n".join(faults)


def test_no_query_joins_to_find_the_job_of_a_series():
    """Queries of GPUs joined fsdpd_rank_info, and had no result while series of the previous job remained."""
    asked = [query for board in BOARDS.values() for query in dashboards.queries(board)]
    asked += [(rule.get("alert") or rule["record"], rule["expr"]) for rule in dashboards.rules()]
    joins = re.compile(r"fsdpd_rank_info|group_(left|right) *\( *\w")
    assert not [title for title, expression in asked if joins.search(expression)]
    tables = (repository.ROOT / "docs/metrics.md").read_text()
    of_jobs = {row[1] for row in re.finditer(r"^\| `(\w+)` \| \w+ \| [^|]*`fsdpd_job`", tables, re.MULTILINE)}
    for name in ("fsdpd-job.json", "fsdpd-memory.json", "fsdpd-overlap.json"):
        others = {metric for _, expression in dashboards.queries(BOARDS[name]) for metric in dashboards.metrics(expression)} - of_jobs
        assert not others, f"{name}: the dashboard of a job uses metrics without the label fsdpd_job: {others}"


def annotation(name, title, **variables):
    """Query of a dashboard's annotation, with variables substituted as in Grafana."""
    found, = (each["expr"] for each in BOARDS[name]["annotations"]["list"] if each["name"] == title)
    return dashboards.substitute(found, variables)


def test_an_annotation_follows_the_selected_job_across_nodes(tmp_path):
    """It counted changes per agent's series, and missed restarts if every attempt had another node."""
    series = [('fsdpd_restarts_total{instance="n1:7778", fsdpd_job="moves"}', "0x7 stale"),
              ('fsdpd_restarts_total{instance="n2:7778", fsdpd_job="moves"}', "_x4 1x20"),
              ('fsdpd_restarts_total{instance="n1:7778", fsdpd_job="stays"}', "0x3 1x20"),
              ('ALERTS{alertname="FsdpdHang", alertstate="firing", instance="n1:7778"}', "1x20"),
              ('ALERTS{alertname="FsdpdSlowRank", alertstate="firing", fsdpd_job="stays"}', "1x20"),
              ('ALERTS{alertname="FsdpdSlowRank", alertstate="firing", fsdpd_job="moves"}', "1x20")]
    one = {"job": "moves", "__rate_interval": "1m"}
    began = [(name, annotation(name, "Restarts", **{**one, "job": job}), at, expected)
             for name, job in (("fsdpd-job.json", "moves"), ("fsdpd-memory.json", ".*"), ("fsdpd-fleet.json", ".*"))
             for at, expected in (("3m", []), ("4m", ["moves"] if job == "moves" else ["moves", "stays"]), ("6m", []))]
    tests = [{"expr": expression, "eval_time": at, "exp_samples": [{"labels": f'{{fsdpd_job="{job}"}}', "value": 1} for job in expected]}
             for _, expression, at, expected in began]
    alerts = ['ALERTS{alertname="FsdpdHang", alertstate="firing", instance="n1:7778"}',
              'ALERTS{alertname="FsdpdSlowRank", alertstate="firing", fsdpd_job="moves"}']
    tests.append({"expr": annotation("fsdpd-job.json", "Alerts", **one), "eval_time": "4m",
                  "exp_samples": [{"labels": each, "value": 1} for each in alerts]})
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [
        {"interval": "1m", "input_series": [{"series": name, "values": values} for name, values in series],
         "promql_expr_test": tests}]}))
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_readme_installs_what_a_provisioned_grafana_reads(tmp_path):
    """Runs the documented commands with an empty root."""
    readme = (dashboards.DIR / "README.md").read_text()
    commands = [line.split("#")[0] for line in readme.splitlines() if line.startswith(("install ", "cp "))]
    assert len(commands) == 2
    (tmp_path / "etc/grafana/provisioning").mkdir(parents=True)
    for command in commands:
        there = re.sub(r"(?<= )/(?=var|etc)", f"{tmp_path}/", command)
        subprocess.run(["bash", "-ec", there], cwd=dashboards.DIR.parent, check=True)
    provisioning = tmp_path / "etc/grafana/provisioning"
    provider, = yaml.safe_load((provisioning / "dashboards/fsdpd.yml").read_text())["providers"]
    assert provider["type"] == "file" and provider["allowUiUpdates"] is False
    directory = tmp_path / provider["options"]["path"].removeprefix("/")
    assert {path.name for path in directory.iterdir()} == set(BOARDS)
    source, = yaml.safe_load((provisioning / "datasources/fsdpd.yml").read_text())["datasources"]
    scraped = yaml.safe_load((dashboards.DIR / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["type"] == SOURCE and source["jsonData"]["timeInterval"] == scraped


def test_every_alert_has_summary_and_action():
    for rule in dashboards.rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
            assert rule["annotations"]["summary"] and rule["annotations"]["action"], rule["alert"]


def test_every_alert_has_a_test_with_and_without_firing():
    alerts = {rule["alert"] for rule in dashboards.rules() if "alert" in rule}
    tests = [test for name in ("rules_test.yml", "rules_hours_test.yml")
             for test in yaml.safe_load((dashboards.DIR / name).read_text())["tests"]]
    cases = [case for test in tests for case in test.get("alert_rule_test", [])]
    assert alerts == {case["alertname"] for case in cases if case["exp_alerts"]}
    assert alerts == {case["alertname"] for case in cases if not case["exp_alerts"]}


def test_exposed_seconds_are_not_divided_by_comm_seconds():
    """The overlap on the dashboard did, and was 44% when the recorded ratio was 23%."""
    mixed = {"fsdpd_exposed_seconds_total", "fsdpd_comm_seconds_total"}
    asked = [query for board in BOARDS.values() for query in dashboards.queries(board)]
    asked += [(rule.get("alert") or rule["record"], rule["expr"]) for rule in dashboards.rules()]
    assert not [title for title, expression in asked if mixed <= dashboards.metrics(expression)]


def test_plan_bytes_are_aggregated_by_component_first():
    """The previous attempt is still exported by its node: its plan was added to the current one, which halved the ratio."""
    asked = [query for board in BOARDS.values() for query in dashboards.queries(board)]
    asked += [(rule.get("alert") or rule["record"], rule["expr"]) for rule in dashboards.rules()]
    sums = [title for title, expression in asked if re.search(r"sum by \([^)]*\) \(fsdpd_memory_plan_bytes", expression)]
    assert not sums and any("component) (fsdpd_memory_plan_bytes" in expression for _, expression in asked)


def test_stragglers_are_compared_by_compute_time():
    """Ranks wait for each other: their wall times are equal, and healthy ranks have the most exposed time."""
    by_rank = [(panel["title"], target["expr"]) for board in BOARDS.values() for panel in dashboards.panels(board)
               for target in panel.get("targets", []) if "rank {{rank}}" in target["legendFormat"]]
    assert any("fsdpd_compute_seconds_total" in expression for _, expression in by_rank)
    blamed = [title for title, expression in by_rank
              if "exposed" in expression or "fsdpd_step_seconds" in expression and "compute" not in expression]
    assert not blamed


@pytest.mark.parametrize("command", [
    ("check", "rules", "rules.yml"),
    ("test", "rules", "rules_test.yml", "rules_hours_test.yml"),
    ("check", "config", "--syntax-only", "prometheus.yml"),
], ids=lambda command: " ".join(command[:2]))
def test_promtool_accepts(command):
    done = subprocess.run(["promtool", *command], cwd=dashboards.DIR, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
