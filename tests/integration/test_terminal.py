"""Tests of fsdpctl in a terminal: the display while a job runs, and the screen afterwards."""

import os
import pathlib

import pytest

from harness.programs import ROOT, program
from harness.specs import ENDLESS, corpus, spec
from harness.terminal import Screen, Terminal


def keep(screen, name):
    """Saves a screen for docs in the directory FSDPD_SCREENS; a Bazel test saves it in .build/testlogs."""
    directory = pathlib.Path(os.environ.get("FSDPD_SCREENS", ROOT / ".build/screens"))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.txt").write_text(screen.text())


def fsdpctl(cluster, *arguments, **kwargs):
    return Terminal([program("client/fsdpctl"), "--server", cluster.address, *arguments], **kwargs)


def test_follow_shows_progress_and_result(cluster, tmp_path):
    text = corpus(tmp_path / "corpus.txt")
    made = spec(steps=120, name="tiny-llama", data={"synthetic": None, "tokens": [{"path": str(text), "type": "u8"}]})
    with fsdpctl(cluster, "submit", "-f", cluster.write_spec(made), "--follow") as terminal:
        terminal.run_until("the number of steps is on the screen", lambda each: "/120" in each.screen.text())
        assert terminal.run_until("the job ends") == 0
    screen = terminal.screen
    keep(screen, "submit-follow")
    assert not screen.unknown and screen.cursor_shown
    assert "120/120" in screen.text() and "succeeded" in screen.text().lower(), screen.text()
    # A bar that moved was drawn over itself, not below itself.
    assert len(screen.lines) < 60, screen.text()
    assert terminal.raw.count("/120") > screen.text().count("/120")


@pytest.mark.parametrize("kind", ["dumb", ""])
def test_dumb_terminal_gets_lines(cluster, kind):
    made = cluster.write_spec(spec(steps=20))
    with fsdpctl(cluster, "submit", "-f", made, "--follow", environment={"TERM": kind}) as terminal:
        assert terminal.run_until("the job ends") == 0
    assert "\x1b" not in terminal.raw and "20/20" in terminal.raw, terminal.raw


def test_interrupt_restores_terminal(cluster):
    with fsdpctl(cluster, "submit", "-f", cluster.write_spec(spec(steps=ENDLESS, name="goes-on")), "--follow") as terminal:
        terminal.run_until("steps are on the screen", lambda each: f"/{ENDLESS}" in each.screen.text().replace(",", ""))
        terminal.type("\x03")
        assert terminal.run_until("it ends") == 130
    keep(terminal.screen, "ctrl-c")
    assert terminal.screen.cursor_shown and not terminal.screen.unknown
    job = next(job for job in cluster.jobs() if job.spec.name == "goes-on")
    assert job.id in terminal.screen.text() and job.end_unix_nanos == 0
    cluster.wait_step(job.id, job.last_step.step + 2)


def test_narrow_terminal_has_no_wrapped_lines(cluster):
    with fsdpctl(cluster, "submit", "-f", cluster.write_spec(spec(steps=60)), "--follow", columns=40) as terminal:
        assert terminal.run_until("the job ends") == 0
    keep(terminal.screen, "narrow")
    # A line that wraps cannot be drawn over itself: each redraw would leave a line behind.
    assert len(terminal.screen.lines) < 60, terminal.screen.text()


def test_tables_and_faults_in_terminal(cluster):
    bad = cluster.write_spec("name: tiny\nmodel: {preset: tiny}\ntrain: {stpes: 5}\n", "bad.yaml")
    good = cluster.write_spec(spec())
    for name, arguments, code in [("nodes", ["nodes"], 0), ("get", ["get"], 0), ("plan", ["plan", "-f", good], 0),
                                  ("validate-bad", ["validate", "-f", bad], 3)]:
        with fsdpctl(cluster, *arguments) as terminal:
            assert terminal.run_until(f"{name} ends") == code, terminal.screen.text()
        keep(terminal.screen, name)
        assert not terminal.screen.unknown


def test_terminal_emulator_handles_escapes():
    screen = Screen(columns=10)
    screen.feed("one\r\ntwo\x1b[1A\r\x1b[KONE\x1b[1B\r\x1b[31mTWO\x1b[0m\x1b[")
    screen.feed("K\r\nab\bc")
    assert screen.text() == "ONE\nTWO\nac\n" and screen.colors and not screen.unknown
    screen.feed("\x1b[5q")
    assert screen.unknown == ["\x1b[5q"]
