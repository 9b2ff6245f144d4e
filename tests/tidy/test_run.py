"""tests/run: counts of results, and cleanup of started processes."""

import importlib
import json
import os
import re
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


def test_counts_cases_by_outcome(run, tmp_path):
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
    # The number of tests that ran is unknown.
    ("PASSED", None, (0, 1)),
    ("PASSED", "", (0, 0)),
])
def test_a_target_without_results_is_a_failure(run, tmp_path, status, cases, expected):
    outputs = [{"name": "test.xml", "uri": "file://" + str(junit(tmp_path / "test.xml", cases))}] if cases is not None else []
    events = tmp_path / "events.json"
    events.write_text(json.dumps({"started": {}}) + "\n" + json.dumps(
        {"id": {"testResult": {"label": "//x:x_test"}}, "testResult": {"status": status, "testActionOutput": outputs}}))
    counts = run.count_bazel_tests(events)
    assert (counts.passed, counts.failed) == expected


def events(path, *results):
    """A build event file with these (label, test.xml, what Bazel adds) results."""
    path.write_text("".join(json.dumps({"id": {"testResult": {"label": label}}, "testResult": {
        "status": "PASSED", "testActionOutput": [{"name": "test.xml", "uri": f"file://{xml}"}], **more}}) + "\n"
        for label, xml, more in results))
    return path


def test_cached_results_are_counted_separately(run, tmp_path):
    xml = junit(tmp_path / "test.xml", '<testcase name="a" time="2.5"/><testcase name="b" time="0.5"/>')
    path = events(tmp_path / "events.json", ("//x:ran", xml, {}), ("//x:local", xml, {"cachedLocally": True}),
                  ("//x:disk", xml, {"executionInfo": {"cachedRemotely": True}}))
    assert run.executed(path) == (1, 2)
    assert run.durations(path) == [(2.5, "//x:ran a"), (0.5, "//x:ran b")]
    assert run.count_bazel_tests(path).passed == 6


def test_rejects_an_unknown_part_with_the_known_names():
    done = subprocess.run([RUN, "unti"], capture_output=True, text=True)
    assert done.returncode == 2 and "unti" in done.stderr and "unit corpora threads integration" in done.stderr


def test_a_tier_expands_to_its_parts_and_commit_is_the_default(run):
    commit = ["tidy", "unit", "integration", "robustness", "clients", "parity"]
    assert run.parse([]) == run.parse(["commit"]) == (commit, [])
    assert run.parse(["nightly"])[0] == ["corpora", "seeds", "fuzz", "asan", "processors", "tsan", "long"]
    assert run.parse(["gpu", "tidy"])[0] == ["tidy", "gpu-unit", "gpu-jobs"]
    assert run.parse(["coverage", "//agent/..."]) == (["coverage"], ["//agent/..."])


def test_every_part_is_in_a_tier_or_explicitly_separate(run):
    of_tiers = [part for _, parts in run.TIERS.values() for part in parts]
    assert len(of_tiers) == len(set(of_tiers))
    assert set(run.PARTS) - set(of_tiers) == {"coverage", "kubelets", "threads"}


def test_each_part_runs_only_its_own_labels(run, tmp_path, monkeypatch):
    """`tests/run unit integration //tests/integration:test_queue` ran the test in both parts."""
    asked = {}
    monkeypatch.setattr(run, "build", lambda *_: run.Counts())
    monkeypatch.setattr(run, "bazel_tests", lambda scratch, name, targets, *flags: asked.update({name: targets}) or run.Counts(1))

    def targets(*labels, directories=("integration", "parity")):
        asked.clear()
        run.PARTS["unit"].run(tmp_path, list(labels))
        run.run_processes(tmp_path, list(directories), list(labels))
        return asked.get("unit"), asked.get("processes")

    others = run.UNIT[1:]
    queue = "//tests/integration:test_queue"
    assert targets(queue) == (None, [queue])
    assert targets("//tests/integration", "//agent/...", "//tests/integrations") == (
        ["//agent/...", "//tests/integrations", *others], ["//tests/integration"])
    assert targets("//...", directories=["parity"]) == (["//...", *others], ["//tests/parity/..."])
    assert targets() == (["//...", *others], ["//tests/integration/...", "//tests/parity/..."])


def test_help_names_every_tier_and_part():
    done = subprocess.run([RUN, "--help"], capture_output=True, text=True, check=True)
    said = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert {"commit", "nightly", "gpu", "coverage"} <= said


def test_labels_need_a_part_that_bazel_tests():
    done = subprocess.run([RUN, "tidy", "//agent/..."], capture_output=True, text=True)
    assert done.returncode == 2 and "tidy takes no labels" in done.stderr


def test_a_label_without_a_part_is_a_usage_error():
    for label in ("//agent/...", "//test/integration:test_queue"):
        done = subprocess.run([RUN, "integration", "//tests/integration:test_queue", label], capture_output=True, text=True)
        assert done.returncode == 2 and f"{label}: is in none of integration" in done.stderr, done.stderr


@pytest.mark.parametrize("label, why", [("//nowhere/...", "no targets found beneath 'nowhere'"),
                                        ("//base:no_such_test", "no such target '//base:no_such_test'")])
def test_an_unknown_label_is_a_usage_error(label, why):
    """The exit code was 1, as for a failed test."""
    done = subprocess.run([RUN, "unit", label], capture_output=True, text=True)
    assert done.returncode == 2 and why in done.stderr, done.stderr


def test_a_broken_build_file_is_not_a_usage_error(run, tmp_path, monkeypatch, capsys):
    """It was reported as an invalid label, with exit code 2."""
    bazel, asked = tmp_path / "bazel", tmp_path / "asked"
    monkeypatch.setattr(run, "BAZEL", [str(bazel)])
    for error, code in [("base/BUILD:3:5: syntax error at 'trio': expected newline", None), ("no such target '//base:x'", 2)]:
        bazel.write_text(f'#!/bin/sh\necho "$@" > {asked}\necho "ERROR: {error}" >&2\nexit 7\n')
        bazel.chmod(0o755)
        if code is None:
            run.check_labels(["//base:a=b", "//base/..."])
        else:
            with pytest.raises(SystemExit) as ended:
                run.check_labels(["//base:a=b", "//base/..."])
            assert ended.value.code == code and error in capsys.readouterr().err
        assert asked.read_text() == 'query --noshow_progress set("//base:a=b" "//base/...")\n'


def test_gpu_part_fails_without_a_gpu(run, tmp_path, monkeypatch):
    monkeypatch.setattr(run.pathlib.Path, "glob", lambda *_: iter(()))
    assert run.run_gpu_unit(tmp_path, []).failed == 1


def test_coverage_counts_lines_by_directory_and_lists_uncovered_files(run):
    def file(name, count, covered):
        return {"filename": name, "summary": {"lines": {"count": count, "covered": covered}}}

    exported = {"data": [{"files": [file("./agent/a.cc", 90, 90), file("agent/b.h", 10, 8), file("base/c.cc", 10, 0),
                                    file("coordinator/d.cc", 10, 5), file("/usr/include/x.h", 100, 0)]}]}
    coverage = importlib.import_module("line_coverage")
    files = coverage.by_file(exported, lambda path: not path.is_absolute())
    said = coverage.table(files).splitlines()
    assert [line.split() for line in said[1:4]] == [["agent", "100", "98", "98.0%"], ["base", "10", "0", "0.0%"],
                                                    ["coordinator", "10", "5", "50.0%", "below", "90%"]]
    assert said[-3:] == ["    10 of 10    base/c.cc", "     5 of 10    coordinator/d.cc", "     2 of 10    agent/b.h"]


def test_parts_of_unit_tests_leave_out_process_tests(run, tmp_path, monkeypatch):
    """A sanitizer would rebuild every program, and scripts have no coverage."""
    asked = []
    monkeypatch.setattr(run, "build", lambda *_: run.Counts())
    monkeypatch.setattr(run, "bazel_tests", lambda scratch, name, targets, *flags: asked.append(targets) or run.Counts(failed=1))
    for part in ("unit", "threads", "seeds", "asan", "tsan"):
        run.PARTS[part].run(tmp_path, [])
    assert len(asked) == 5 and all(f"-//tests/{directory}/..." in targets for targets in asked for directory in run.PROCESS_TESTS)


def test_a_failed_query_ends_the_run_with_its_error(run, tmp_path, monkeypatch):
    bazel = tmp_path / "bazel"
    bazel.write_text("#!/bin/sh\necho 'no such package' >&2\nexit 7\n")
    bazel.chmod(0o755)
    monkeypatch.setattr(run, "BAZEL", [str(bazel)])
    with pytest.raises(SystemExit, match="(?s)query .*exit code 7.*no such package"):
        run.query("//nowhere/...")


def test_bazel_stop_timeout_exceeds_the_test_timeout(run):
    """Bazel was killed while interrupted tests were still stopping their daemons."""
    given = int(re.search(r"^test --local_termination_grace_seconds=(\d+)$", (ROOT / ".bazelrc").read_text(), re.M)[1])
    assert run.Children.GRACE_S > given + 15
    # Without the tag, tests get no time to stop, and mounts and network namespaces of an interrupted test remained.
    assert '"supports-graceful-termination"' in (ROOT / "third_party/rules/pytest.bzl").read_text()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP], ids=["ctrl_c", "closed_terminal"])
def test_an_interrupt_stops_everything(tmp_path, signum):
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
    running.send_signal(signum)
    _, errors = running.communicate(timeout=45)
    assert running.returncode == 130 and "interrupted" in errors
    assert not started & {process.pid for process in descendants(os.getpid())}


def test_a_killed_run_interrupts_bazel(tmp_path):
    """The build and its tests continued, and the next run waited for them."""
    bazel = tmp_path / "bazel"
    bazel.write_text(f"#!/bin/sh\ntrap 'kill $!; touch {tmp_path}/interrupted; exit' INT\nsleep 1000 &\n"
                     f"touch {tmp_path}/building\nwait\n")
    bazel.chmod(0o755)
    running = subprocess.Popen([RUN, "unit"], env={**os.environ, "BAZEL": str(bazel)}, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    wait_until("the build has begun", (tmp_path / "building").exists, timeout_s=60)
    running.kill()
    running.wait()
    wait_until("Bazel is interrupted", (tmp_path / "interrupted").exists, timeout_s=60)
