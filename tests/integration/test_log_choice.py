"""Tests of the selection of log lines by fsdpctl, with a job that ran twice."""

import os
import re
import signal

import pytest

from harness.specs import ENDLESS, one_rank
from harness.wait import wait_until


def dated(lines):
    """Returns (time, line) of each line; a line without a time has the time of the line before it."""
    found, time = [], ""
    for line in lines:
        own = re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z ", line)
        time = own[0].strip() if own else time
        found.append((time, line))
    return found


@pytest.fixture(scope="module")
def logs(shared):
    """Runs `fsdpctl logs` with flags and returns the lines, for a job with a killed rank in its first attempt that was
    then cancelled."""
    job_id = shared.submit(one_rank(steps=ENDLESS, name="twice", restart={"max_attempts": 2}))
    shared.wait_step(job_id, 5)
    os.kill(shared.all_ranks()[0].pid, signal.SIGKILL)
    wait_until("the next attempt runs", lambda: shared.job(job_id).attempt == 2)
    shared.wait_step(job_id, 5)
    shared.cancel(job_id)
    return lambda *flags: shared.ctl("logs", job_id, *flags).expect(0).out.splitlines()


def test_previous_shows_only_previous_attempt(logs):
    previous, newest = logs("--previous"), logs()
    assert previous == logs("--attempt", 1) and newest == logs("--attempt", 2)
    assert any(" step     1/" in line for line in previous) and any(" step     1/" in line for line in newest)
    assert dated(previous)[-1][0] < dated(newest)[0][0] and not set(previous) & set(newest)


@pytest.mark.parametrize("pattern", [r" step +[0-9]+/.* loss", "(1|3)/10000000 ", "^[0-9-]+T.* I seed"])
def test_pattern_selects_matching_lines(logs, pattern):
    wanted = [line for line in logs() if re.search(pattern, line)]
    assert wanted and logs("--grep", pattern) == wanted
    assert logs("--grep", pattern, "--previous") == [line for line in logs("--previous") if re.search(pattern, line)]


def test_since_selects_later_lines(logs):
    lines = dated(logs())
    since = next(time for time, line in lines if " step     3/" in line)
    wanted = [line for time, line in lines if time >= since]
    assert 0 < len(wanted) < len(lines)
    assert logs("--since", since) == wanted
    assert logs("--since", "1h") == [line for _, line in lines] and not logs("--since", "2999-01-01")
    steps = [line for line in wanted if " step " in line]
    assert steps and logs("--since", since, "--grep", " step ") == steps
