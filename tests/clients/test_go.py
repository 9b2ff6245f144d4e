"""Tests of the Go module: its own tests against a real coordinator, agent and ranks over TLS with tokens, and its
example."""

import json
import os
import subprocess

import fsdpd
import pytest

from clients.conftest import TOOLS
from clients.jobs import environment, failing, small
from harness.programs import ROOT
from harness.specs import ENDLESS

MODULE = ROOT / "clients/go"
GO = TOOLS / "go"
# The first run of a user downloads gRPC and compiles it.
pytestmark = pytest.mark.timeout(900)


def run_go(*arguments, env=None):
    # The pinned Go and the pinned modules, whatever else is here.
    pinned = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0", "GO": str(GO)}
    done = subprocess.run(list(map(str, arguments)), cwd=MODULE, env={**(env or os.environ), **pinned},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def generated():
    run_go("./generate")


@pytest.fixture(scope="module")
def example(generated, tmp_path_factory):
    program = tmp_path_factory.mktemp("go") / "orchestrate"
    run_go(GO, "build", "-o", program, "./examples/orchestrate")
    return program


def test_go_tests_pass_against_coordinator(shared, generated):
    for job in shared.jobs():
        shared.cancel(job.id)
    events = map(json.loads, run_go(GO, "test", "-tags=live", "-count=1", "-json", "./...",
                                    env=environment(shared)).splitlines())
    passed = {event["Test"] for event in events if event["Action"] == "pass" and "Test" in event}
    written_down = {line.split("(")[0].removeprefix("func ") for path in MODULE.glob("*_test.go")
                    for line in path.read_text().splitlines() if line.startswith("func Test")}
    assert passed == written_down


def test_go_fmt_and_vet_pass(generated):
    run_go(GO, "vet", "-tags=live", "./...")
    root = run_go(GO, "env", "GOROOT").strip()
    assert not run_go(f"{root}/bin/gofmt", "-l", ".")


def told_by(program, cluster, run, spec):
    done = subprocess.run([program, run, spec], env=environment(cluster), capture_output=True, text=True, timeout=120)
    assert not done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_example_prints_checkpoints_of_succeeded_job(shared, example, tmp_path):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(small(steps=6, checkpoint={"dir": str(tmp_path / "saved")})))
    code, reported = told_by(example, shared, "go-one", path)
    assert code == 0 and reported[-1]["kind"] == "succeeded" and reported[-1]["checkpoints"][-1]["step"] == 6
    code, again = told_by(example, shared, "go-one", path)
    jobs = [each["job"] for each in reported + again if each["kind"] == "submitted"]
    assert code == 0 and len(jobs) == 2 and len(set(jobs)) == 1


def test_example_prints_logs_and_faults(shared, example, tmp_path):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(failing(tmp_path)))
    code, reported = told_by(example, shared, "go-two", path)
    assert code == 1 and any("nothing-here" in each["line"] for each in reported if each["kind"] == "log")
    path.write_text(json.dumps(small(train={"global_batch": 3})))
    code, reported = told_by(example, shared, "go-three", path)
    assert code == 3 and "train.global_batch" in {each["field"] for each in reported if each["kind"] == "fault"}


def test_watch_resumes_after_coordinator_kill(own, example, tmp_path):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(small(steps=ENDLESS)))
    following = subprocess.Popen([example, "go-four", path], env=environment(own), stdout=subprocess.PIPE, text=True)
    with following, fsdpd.Client(environ=environment(own)) as client:
        job_id, steps, events, last = None, [], [], None
        for line in following.stdout:
            reported = json.loads(line)
            job_id = reported.get("job", job_id)
            if reported["kind"] == "event":
                events.append(reported["message"])
            if reported["kind"] != "step":
                continue
            steps.append((reported["step"], reported["missed"]))
            if last is None and len(steps) == 3:
                own.coordinator.kill()
                own.start_coordinator(listen=own.address)
                # Output from before the crash is read after it, so wait for a step that was made after both.
                last = client.get(job_id).last_step.step + 10
            elif last and reported["step"] >= last:
                last = ENDLESS + 1
                client.cancel(job_id, grace_s=0)
        assert following.wait(60) == 1
        for (before, _), (step, missed) in zip(steps, steps[1:]):
            assert step == before + 1 + missed
        assert events == [event.message for event in client.get(job_id).events]
