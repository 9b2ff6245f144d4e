"""Tests of every command of fsdpctl: output, formats and exit codes."""

import json
import os
import re
import signal
import subprocess

import pytest
import yaml

from harness.cluster import Cluster, fsdpctl
from harness.programs import ROOT, program
from harness.specs import ENDLESS, spec
from harness.wait import wait_until

COMMANDS = ["submit", "validate", "plan", "ckpt", "get", "describe", "watch", "logs", "cancel", "nodes", "version"]


@pytest.fixture(scope="module")
def done(shared):
    """Id of a job that has succeeded."""
    job_id = shared.submit(spec(steps=5, name="done"))
    shared.wait_state(job_id, "SUCCEEDED")
    return job_id


def parse(result, form):
    return json.loads(result.out) if form == "json" else yaml.safe_load(result.out)


def test_help_lists_every_command():
    result = fsdpctl("--help").expect(0)
    missing = [command for command in COMMANDS if not re.search(rf"^\s+{command}\b", result.out, re.MULTILINE)]
    assert not missing and not result.err
    assert "FSDPD_SERVER" in result.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    result = fsdpctl(command, "--help").expect(0)
    assert command in result.out and len(result.out.splitlines()) >= 3 and not result.err


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_jobs_have_json_output(shared, done, form):
    job = parse(shared.ctl("get", done, "-o", form).expect(0), form)
    assert job["id"] == done and job["spec"]["name"] == "done" and int(job["last_step"]["step"]) == 5
    listed = parse(shared.ctl("get", "-o", form).expect(0), form)
    assert done in json.dumps(listed)
    assert done in json.dumps(parse(shared.ctl("describe", done, "-o", form).expect(0), form))


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_other_commands_have_json_output(shared, form):
    path = shared.write_spec(spec())
    plan = parse(shared.ctl("plan", "-f", path, "-o", form).expect(0), form)
    assert int(plan["world_size"]) == 4 and plan["program_hash"]
    nodes = json.dumps(parse(shared.ctl("nodes", "-o", form).expect(0), form))
    assert "node-0" in nodes and "node-1" in nodes
    assert "0.1.0" in json.dumps(parse(shared.ctl("version", "-o", form).expect(0), form))
    parse(shared.ctl("validate", "-f", path, "-o", form).expect(0), form)


def test_text_output_has_tables(shared, done):
    jobs = shared.ctl("get").expect(0).out
    assert re.search(rf"^{done}\s.*succeeded", jobs, re.MULTILINE | re.IGNORECASE), jobs
    nodes = shared.ctl("nodes").expect(0).out
    assert re.search(r"^node-0\s", nodes, re.MULTILINE), nodes
    assert "\x1b" not in jobs + nodes, "no color into a pipe"
    described = shared.ctl("describe", done).expect(0).out
    assert done in described and "node-1" in described
    plan = shared.ctl("plan", "-f", shared.write_spec(spec())).expect(0).out
    for word in ("main_params", "optimizer", "gradients"):
        assert word in plan
    assert "0.1.0" in shared.ctl("version").expect(0).out


def test_logs_of_one_rank_and_of_all(shared, done):
    every = shared.ctl("logs", done).expect(0).out
    one = shared.ctl("logs", done, "--rank", 3).expect(0).out
    assert one.strip() and len(every.splitlines()) > len(one.splitlines())
    last = shared.ctl("logs", done, "--rank", 3, "--tail", 1).expect(0).out
    assert last.splitlines() == one.splitlines()[-1:]


def test_logs_follow_until_job_ends(cluster):
    job_id = cluster.submit(spec(steps=ENDLESS))
    cluster.wait_step(job_id, 1)
    follower = subprocess.Popen([program("client/fsdpctl"), "--server", cluster.address, "logs", "-f", job_id],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert follower.stdout.readline(), "lines come while the job runs"
    assert follower.poll() is None
    cluster.cancel(job_id)
    follower.communicate(timeout=120)
    assert follower.returncode in (0, 1)


def test_watch_ends_with_job(cluster):
    job_id = cluster.submit(spec(steps=5))
    result = cluster.ctl("watch", job_id).expect(0)
    assert "succeeded" in (result.out + result.err).lower()
    assert "\x1b" not in result.out


def test_unwritable_record_fails_before_submit(cluster, tmp_path):
    path = cluster.write_spec(spec(steps=5, name="unrecorded"))
    result = cluster.ctl("submit", "-f", path, "--follow", "--record", str(tmp_path / "no" / "steps.jsonl")).expect(2)
    assert "--record" in result.err
    assert "unrecorded" not in cluster.ctl("get").expect(0).out


def test_follow_exits_1_when_job_fails(cluster, tmp_path):
    made = spec(data={"synthetic": None, "tokens": [{"path": str(tmp_path / "nowhere.bin"), "type": "u16"}]})
    result = cluster.ctl("submit", "-f", cluster.write_spec(made), "--follow").expect(1)
    assert "nowhere.bin" in result.out + result.err


def test_interrupted_follow_keeps_job_running(cluster):
    path = cluster.write_spec(spec(steps=ENDLESS, name="goes-on"))
    follower = subprocess.Popen([program("client/fsdpctl"), "--server", cluster.address, "submit", "-f", str(path),
                                 "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    running = wait_until("the job runs", lambda: [job for job in cluster.jobs() if job.spec.name == "goes-on"
                                                  and job.last_step.step >= 1])
    follower.send_signal(signal.SIGINT)
    out, err = follower.communicate(timeout=60)
    assert follower.returncode == 130, out + err
    assert running[0].id in out + err, "it says how to find the job again"
    step = cluster.job(running[0].id).last_step.step
    cluster.wait_step(running[0].id, step + 2)


def test_cancel_exit_codes(cluster):
    job_id = cluster.submit(spec(steps=ENDLESS))
    cluster.wait_step(job_id, 1)
    cluster.ctl("cancel", job_id).expect(0)
    cluster.wait_state(job_id, "CANCELLED")
    cluster.ctl("watch", job_id).expect(1)
    cluster.ctl("cancel", job_id).expect(0)


@pytest.mark.parametrize("wait", [[], ["--wait"]], ids=["no wait", "wait"])
def test_cancel_of_several_jobs_continues_after_error(cluster, wait):
    first, last = (cluster.submit(spec(steps=ENDLESS)) for _ in range(2))
    result = cluster.ctl("cancel", first, "x-000000", last, *wait).expect(4)
    assert sorted(re.findall(r"^(\S+) cancel", result.out, re.MULTILINE)) == sorted([first, last]), result
    assert "x-000000" in result.err and first not in result.err and last not in result.err, result
    for job_id in (first, last):
        cluster.wait_state(job_id, "CANCELLED")


def test_same_request_id_submits_once(cluster):
    command = ["submit", "-f", cluster.write_spec(spec(steps=2)), "--request-id", "again-and-again", "-o", "json"]
    first, second = (json.loads(cluster.ctl(*command).expect(0).out) for _ in range(2))
    assert first["id"] == second["id"]
    other = cluster.ctl("submit", "-f", cluster.write_spec(spec(steps=3)), "--request-id", "again-and-again")
    assert other.code not in (0, 5) and "again-and-again" in other.err, other


def test_spec_from_stdin_with_set(shared):
    text = shared.write_spec(spec()).read_text()
    plan = json.loads(shared.ctl("plan", "-f", "-", "-o", "json", "--set", "train.steps=77", stdin=text).expect(0).out)
    assert int(plan["resolved"]["train"]["steps"]) == 77


@pytest.mark.parametrize("command", ["get", "describe", "watch", "logs", "cancel"])
def test_unknown_job_exits_4(shared, command):
    result = shared.ctl(command, "nobody-000000").expect(4)
    assert "nobody-000000" in result.err and not result.out


def test_get_prints_known_jobs_next_to_unknown(shared, done):
    result = shared.ctl("get", done, "nobody-000000").expect(4)
    assert done in result.out and "nobody-000000" in result.err


def test_unwritable_output_exits_8(shared):
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = subprocess.run([program("client/fsdpctl"), "--server", shared.address, "nodes"], stdout=full,
                                stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 8 and "No space left on device" in result.stderr, result


def test_closed_stdout_exits_8(tmp_path):
    # What is opened next has the number of stdout then, and gets what is printed.
    path, trace = tmp_path / "job.yaml", tmp_path / "trace.json"
    path.write_text(yaml.safe_dump(spec()))
    command = f"exec '{program('client/fsdpctl')}' plan --offline -f '{path}' --trace '{trace}' >&-"
    result = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 8 and "Bad file descriptor" in result.stderr, result
    json.loads(trace.read_text())


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_json_has_zeros_and_short_names(shared, done, form):
    job = parse(shared.ctl("get", done, "-o", form).expect(0), form)
    assert job["state"] == "succeeded" and job["placements"][0]["first_rank"] == 0
    assert job["last_step"]["step"] == 5 and job["spec"]["resources"]["device"] == "cpu"
    nodes = parse(shared.ctl("nodes", "-o", form).expect(0), form)["nodes"]
    assert all(isinstance(node["free_slots"], int) and node["connected"] is True for node in nodes), nodes


def test_exit_codes_of_help_are_documented():
    text = fsdpctl("--help").expect(0).out
    codes = re.findall(r"(?:^|   ?)(\d+) [a-z]", text[text.index("Exit codes"):text.index("Environment")], re.MULTILINE)
    documented = re.findall(r"^\| (\d+) \|", (ROOT / "docs/fsdpctl.md").read_text(), re.MULTILINE)
    assert sorted(codes, key=int) == sorted(documented, key=int) == ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10",
                                                                          "130"]


@pytest.mark.parametrize("arguments, named", [
    (["sumbit"], "submit"), (["get", "--ouput", "json"], "--ouput"), (["get", "-o", "xml"], "xml"), (["submit"], "-f"),
    ([], "submit"), (["cancel"], "job|JOB"), (["logs", "x-1", "--rank", "many"], "many"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_wrong_usage_exits_2_with_fix(shared, arguments, named):
    result = shared.ctl(*arguments).expect(2)
    assert re.search(named, result.err) and not result.out, result


@pytest.mark.parametrize("arguments", [["get"], ["version"], ["cancel", "x-000000"], ["watch", "x-000000"]],
                         ids=" ".join)
def test_no_server_exits_5_with_address(arguments):
    # Port 1 is reserved and nothing listens there.
    result = fsdpctl(*arguments, server="127.0.0.1:1").expect(5)
    assert "127.0.0.1:1" in result.err and not result.out.strip() or arguments == ["version"], result


@pytest.mark.parametrize("arguments", [["get"], ["nodes"], ["version"], ["cancel", "x-000000"], ["watch", "x-000000"]],
                         ids=" ".join)
def test_unresponsive_coordinator_exits_6(tmp_path, arguments):
    with Cluster(tmp_path, start=False) as cluster:
        cluster.start_coordinator()
        os.kill(cluster.coordinator.pid, signal.SIGSTOP)
        try:
            result = cluster.ctl(*arguments, "--timeout", 2).expect(6)
        finally:
            os.kill(cluster.coordinator.pid, signal.SIGCONT)
        assert cluster.address in result.err and "--timeout" in result.err, result


@pytest.mark.nightly  # Keepalive takes its 20 seconds.
def test_watch_reports_unresponsive_coordinator(tmp_path):
    with Cluster(tmp_path) as cluster:
        job = cluster.submit(spec(steps=ENDLESS))
        cluster.wait_step(job, 1)
        with subprocess.Popen([program("client/fsdpctl"), "--server", cluster.address, "watch", job], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watch:
            try:
                assert watch.stdout.readline()
                os.kill(cluster.coordinator.pid, signal.SIGSTOP)
                assert "connection lost" in watch.stderr.readline()
            finally:
                os.kill(cluster.coordinator.pid, signal.SIGCONT)
                watch.kill()
        cluster.cancel(job)


def test_missing_spec_file_is_named(shared):
    result = shared.ctl("submit", "-f", "/nowhere/job.yaml")
    assert result.code in (2, 3) and "/nowhere/job.yaml" in result.err, result


def test_server_from_environment(shared, monkeypatch):
    monkeypatch.setenv("FSDPD_SERVER", shared.address)
    assert "node-0" in fsdpctl("nodes").expect(0).out
