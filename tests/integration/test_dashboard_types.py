"""Tests that dashboards match Grafana's TypeScript types. test_metrics.py tests their queries."""

import copy

import pytest

from harness import dashboards, grafana

BOARDS = {name.removesuffix(".json"): board for name, board in dashboards.boards().items()}


def test_dashboards_have_grafana_types(tmp_path):
    assert len(BOARDS) == 4
    assert not grafana.faults(BOARDS, tmp_path)


def first(board, kind):
    return next(panel for panel in dashboards.panels(board) if panel["type"] == kind)


def _number(board):
    board["refresh"] = 10


def _enum(board):
    first(board, "timeseries")["options"]["tooltip"]["sort"] = "descending"


def _misspelt(board):
    stat = first(board, "stat")["options"]
    stat["colourMode"] = stat.pop("colorMode")


def _of_another_panel(board):
    first(board, "stat")["options"]["legend"] = {"showLegend": True}


def _place(board):
    del first(board, "timeseries")["gridPos"]["x"]


def _custom(board):
    first(board, "timeseries")["fieldConfig"]["defaults"]["custom"]["lineWidth"] = "1"


def _threshold(board):
    first(board, "timeseries")["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] = "0"


def _variable(board):
    board["templating"]["list"][0]["hide"] = "dontHide"


MISTAKES = [_number, _enum, _misspelt, _of_another_panel, _place, _custom, _threshold, _variable]


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """Output of one compiler run over a dashboard for each mistake."""
    wrong = {}
    for mistake in MISTAKES:
        wrong[mistake.__name__] = copy.deepcopy(BOARDS["fsdpd-job"])
        mistake(wrong[mistake.__name__])
    return grafana.faults(wrong, tmp_path_factory.mktemp("wrong"))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_detects_wrong_type(mistake, output):
    assert [line for line in output if line.startswith(f"{mistake.__name__}.ts(")], output
