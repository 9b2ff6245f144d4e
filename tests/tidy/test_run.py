"""The test command counts honestly and stops what it started."""

import importlib
import json
import os
import signal
import subprocess

import pytest

from harness.processes import descendants
from harness.programs import ROOT
from harness.wait import wait_until

RUN = ROOT / "tests/run"


@pytest.fixture(scope="module")
def run():
    return importlib.import_module("runner")


def junit(path, cases):
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return path


def test_cases_are_counted_by_their_outcome(run, tmp_path):
    path = junit(tmp_path / "test.xml", """<testcase name="a" status="run"/><testcase name="b"><failure/></testcase>
        <testcase name="c"><error/></testcase><testcase name="d"><skipped/></testcase>
        <testcase name="e" status="notrun"/>""")
    counts = run.count_junit(path)
    assert (counts.passed, counts.failed, counts.skipped) == (1, 2, 2)
    assert str(counts) == "1 passed, 2 failed, 2 skipped"
    assert str(run.Counts(3, 0, 0)) == "3 passed, 0 failed"


@pytest.mark.parametrize("status, cases, expected", [
    ("PASSED", "<testcase/><testcase/>", (2, 0)),
    ("FAILED", "<testcase/><testcase><failure/></testcase>", (1, 1)),
    # Crashed after its last case, or before it wrote any.
    ("FAILED", "<testcase/><testcase/>", (2, 1)),
    ("TIMEOUT", None, (0, 1)),
])
def test_a_crashed_target_is_a_failure(run, tmp_path, status, cases, expected):
    outputs = [{"name": "test.xml", "uri": "file://" + str(junit(tmp_path / "test.xml", cases))}] if cases else []
    events = tmp_path / "events.json"
    events.write_text(json.dumps({"started": {}}) + "\n" + json.dumps(
        {"id": {"testResult": {"label": "//x:x_test"}}, "testResult": {"status": status, "testActionOutput": outputs}}))
    counts = run.count_bazel_tests(events)
    assert (counts.passed, counts.failed) == expected


def test_an_unknown_part_is_refused_with_the_names_there_are():
    done = subprocess.run([RUN, "unti"], capture_output=True, text=True)
    assert done.returncode == 2 and "unti" in done.stderr and "unit integration parity" in done.stderr


def test_ctrl_c_stops_everything(tmp_path):
    bazel = tmp_path / "bazel"
    # Stands for a build that takes long and leaves a process behind when it is asked to end; and for a server that is
    # only starting, in a session of its own, so that `bazel shutdown` would find none to end.
    bazel.write_text('#!/bin/sh\n[ "$1" = shutdown ] && exit 0\nsetsid sleep 1000 &\n'
                     f"sleep 1000 &\ntouch {tmp_path}/building\nwait\n")
    bazel.chmod(0o755)
    running = subprocess.Popen([RUN, "unit"], env={**os.environ, "BAZEL": str(bazel)}, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    wait_until("the build has begun", (tmp_path / "building").exists, timeout_s=60)
    started = {process.pid for process in descendants(running.pid)}
    assert started
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=45)
    assert running.returncode == 130 and "interrupted" in errors
    assert not started & {process.pid for process in descendants(os.getpid())}
