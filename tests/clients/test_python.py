"""Tests of the Python package against a real coordinator, agent and ranks over TLS with tokens."""

import asyncio
import json
import pathlib
import re
import subprocess
import sys
import threading

import fsdpd
import pytest

from clients.conftest import TOOLS
from clients.jobs import environment, failing, small, written
from harness.programs import ROOT
from harness.security import new_token
from harness.specs import ENDLESS
from harness.wait import wait_until


def client_of(cluster, person="ada"):
    return fsdpd.Client(environ=environment(cluster, person))


@pytest.fixture
def client(shared):
    with client_of(shared) as made:
        yield made


def test_validate_plan_submit_and_watch(client):
    spec = small(steps=4)
    assert {fault.severity for fault in client.validate(spec)} <= {3}, "warnings only"
    assert client.plan(spec).world_size == 2
    submission = client.submit(spec)
    again = client.submit(spec, request_id=submission.request_id)
    assert again.job.id == submission.job.id
    updates = list(client.watch(submission.job.id))
    jobs = [update.job for update in updates if isinstance(update, fsdpd.JobChanged)]
    assert jobs[-1].state == fsdpd.JobState.JOB_STATE_SUCCEEDED
    assert [event.message for update in updates if isinstance(update, fsdpd.JobChanged) for event in update.events] == \
        [event.message for event in jobs[-1].events]
    lines = list(client.logs(submission.job.id, rank=1))
    assert lines and {line.rank for line in lines} == {1}
    steps = list(client.steps(submission.job.id))
    assert [step.step for step in steps] == [1, 2, 3, 4] and steps[-1].loss == jobs[-1].last_step.loss
    assert [step.step for step in client.steps(submission.job.id, from_step=2, every=2)] == [2, 4]
    reported = client.step_timeline(submission.job.id)
    assert reported.attempt == 1 and 1 <= reported.timeline.step <= 4 and reported.timeline.runs
    assert client.get(submission.job.id).id in {job.id for job in client.jobs(
        states=[fsdpd.JobState.JOB_STATE_SUCCEEDED])}
    client.delete(submission.job.id)
    with pytest.raises(fsdpd.NotFound) as raised:
        client.get(submission.job.id)
    assert raised.value.reason == "JOB_NOT_FOUND"


def test_jobs_iterates_over_pages(client, monkeypatch):
    monkeypatch.setattr(fsdpd.calls, "PAGE", 2)
    # No cluster has such nodes: these stay where they are.
    made = [client.submit(small(resources={"nodes": 50, "ranks_per_node": 2}, train={"global_batch": 100})).job.id
            for _ in range(5)]
    assert [job.id for job in client.jobs(states=[fsdpd.JobState.JOB_STATE_QUEUED])] == made[::-1]
    for job_id in made:
        client.cancel(job_id, reason="a test's end")


def test_list_orders_and_conditional_cancel(client):
    made = [client.submit(small( resources={"nodes": 50, "ranks_per_node": 2}, train={"global_batch": 100},
                                priority=priority)).job for priority in (1, 2, 3)]
    ids = [job.id for job in made]
    assert [job.id for job in client.jobs()][:3] == ids[::-1]
    assert [job.id for job in client.jobs(order_by="create_time")][-3:] == ids
    assert not list(client.jobs(selector="team=nobody"))
    assert {node.name for node in client.nodes(order_by="slots desc")} == {node.name for node in client.nodes()}
    reported = [event.job for event in client.events(newest_first=True)
                if event.kind == fsdpd.EventKind.EVENT_KIND_SUBMITTED]
    assert reported[:3] == ids[::-1]

    def cancelled():
        seen = client.get(made[0].id)
        try:
            client.cancel(made[0].id, etag=seen.etag)
        except fsdpd.Conflict:  # The scheduler changed its reason in between, as it does when another job ends.
            return None
        return seen

    seen = wait_until("nothing changes the job between a read and its cancel", cancelled)
    with pytest.raises(fsdpd.Conflict) as raised:
        client.delete(made[0].id, etag=seen.etag)
    assert raised.value.reason == "JOB_CHANGED"
    with pytest.raises(fsdpd.InvalidRequest, match="etag is empty"):
        client.delete(made[0].id, etag="")
    with pytest.raises(fsdpd.InvalidRequest) as raised:
        list(client.jobs(order_by="colour"))
    assert "at offset 0" in raised.value.message
    for job in made[1:]:
        client.cancel(job.id)


def test_events_of_unknown_and_deleted_job(shared, client):
    job = client.submit(small(resources={"nodes": 50, "ranks_per_node": 2}, train={"global_batch": 100})).job
    future = 2 ** 62
    assert not list(client.events(job=job.id, since_unix_nanos=future)), "it exists"
    client.cancel(job.id)
    client.delete(job.id)
    assert list(client.events(job=job.id)) and not list(client.events(job=job.id, since_unix_nanos=future))
    with pytest.raises(fsdpd.NotFound) as raised:
        list(client.events(job="nope"))
    assert raised.value.reason == "JOB_NOT_FOUND"

    async def awaited():
        async with fsdpd.AsyncClient(environ=environment(shared)) as own:
            assert [each async for each in own.events(job=job.id)]
            assert not [each async for each in own.events(job=job.id, since_unix_nanos=future)]
            with pytest.raises(fsdpd.NotFound):
                [each async for each in own.events(job="nope")]

    asyncio.run(awaited())


def test_pause_resume_and_cancel(client, tmp_path):
    job_id = client.submit(small(steps=ENDLESS, checkpoint={"dir": str(tmp_path / "saved")})).job.id
    client.wait(job_id, until=lambda job: job.state == fsdpd.JobState.JOB_STATE_RUNNING)
    next(update for update in client.watch(job_id) if isinstance(update, fsdpd.StepDone))
    client.pause(job_id, reason="for a while")
    paused = client.wait(job_id, until=lambda job: job.state == fsdpd.JobState.JOB_STATE_PAUSED)
    assert paused.pause.step > 0 and paused.checkpoints[-1].step == paused.pause.step
    with pytest.raises(fsdpd.WrongState) as raised:
        client.delete(job_id)
    assert raised.value.reason == "JOB_NOT_ENDED" and job_id in raised.value.message
    client.resume(job_id)
    client.wait(job_id, until=lambda job: job.state == fsdpd.JobState.JOB_STATE_RUNNING)
    client.cancel(job_id, grace_s=0)
    assert client.wait(job_id).state == fsdpd.JobState.JOB_STATE_CANCELLED
    assert client.retry(job_id).state == fsdpd.JobState.JOB_STATE_QUEUED
    client.cancel(job_id, grace_s=0)
    client.wait(job_id)


def test_preflight_measures_node(client, shared):
    shared.wait_idle()
    assert client.preflight("node-0").in_preflight
    wait_until("it has a result", lambda: client.nodes()[0].preflight.result.devices and not client.nodes()[0].in_preflight)


def kinds(events):
    return [fsdpd.EventKind.Name(event.kind).removeprefix("EVENT_KIND_") for event in events]


def test_drain_and_its_events(client, tmp_path):
    unsaved = client.submit(small(steps=ENDLESS)).job.id
    client.wait(unsaved, until=lambda job: job.state == fsdpd.JobState.JOB_STATE_RUNNING)
    with pytest.raises(fsdpd.WrongState) as raised:
        client.drain("node-0")
    assert raised.value.reason == "DRAIN_LOSES_STEPS" and raised.value.metadata["jobs"] == unsaved
    client.cancel(unsaved, grace_s=0)
    client.wait(unsaved)
    job_id = client.submit(small(steps=ENDLESS, checkpoint={"dir": str(tmp_path / "saved")})).job.id
    next(update for update in client.watch(job_id) if isinstance(update, fsdpd.StepDone))
    newest = next(client.events(newest_first=True)).sequence
    assert client.drain("node-0", reason="a fan").cordon.HasField("drain")
    reported = []
    for event in client.watch_events(node="node-0", after=newest):
        reported.append(event)
        if event.kind == fsdpd.EventKind.EVENT_KIND_NODE_DRAINED:
            break
    assert kinds(reported)[0] == "DRAINING" and "RANKS_EXITED" in kinds(reported)
    assert reported == list(client.events(node="node-0", after=newest))[:len(reported)]
    assert client.nodes()[0].cordon.drain.empty_unix_nanos
    client.uncordon("node-0")
    job = client.wait(job_id, until=lambda job: job.HasField("restored"))
    assert job.attempt == 2 and job.restored.step > 0
    client.cancel(job_id, grace_s=0)
    client.wait(job_id)


def check_trace(updates, ranks):
    """Checks the response to a trace request for two steps of two ranks."""
    order, *rest = updates
    steps = [order.first_step, order.first_step + 1]
    assert isinstance(order, fsdpd.TraceOrder) and (order.steps, order.ranks) == (2, 2)
    files = {(each.rank, each.trace.step) for each in rest if isinstance(each, fsdpd.TraceWritten) and not each.trace.error}
    assert files == {(rank, step) for rank in (0, 1) for step in steps}
    lines = [each for each in rest if isinstance(each, fsdpd.TraceLine)]
    for rank in ranks:
        for step in steps:
            text = "\n".join(each.line for each in lines if (each.rank, each.step) == (rank, step))
            assert json.loads(text)["traceEvents"]
    assert {each.rank for each in lines} == set(ranks)
    return [(each.rank, each.step, each.line) for each in lines]


def test_traces_running_job(client):
    job_id = client.submit(small(steps=ENDLESS)).job.id
    next(update for update in client.watch(job_id) if isinstance(update, fsdpd.StepDone) and update.report.step > 5)
    lines = check_trace(list(client.trace(job_id, steps=2, rank=1)), ranks=[1])
    client.cancel(job_id, grace_s=0)
    client.wait(job_id)
    with pytest.raises(fsdpd.WrongState):
        list(client.trace(job_id))
    written = [(each.rank, each.step, each.line) for each in client.trace(job_id, steps=0, rank=1)]
    assert sorted(written) == sorted(lines)


def test_cordon_and_uncordon(client):
    assert client.cordon("node-0", reason="a fan").cordon.reason == "a fan"
    assert client.nodes()[0].HasField("cordon")
    assert not client.uncordon("node-0").HasField("cordon")
    with pytest.raises(fsdpd.NotFound):
        client.cordon("node-99")
    assert client.version() == client.nodes()[0].version


def test_errors_of_coordinator_have_faults(client):
    bad = small(train={"global_batch": 3})
    with pytest.raises(fsdpd.SpecError) as raised:
        client.submit(bad)
    assert "train.global_batch" in {fault.field for fault in raised.value.violations}
    assert raised.value.reason == "INVALID_SPEC" and all(fault.fix for fault in raised.value.violations)
    with pytest.raises(fsdpd.AlreadyExists):
        client.submit(small(steps=2), request_id="one-id")
        client.submit(small(steps=3), request_id="one-id")
    for job in client.jobs():
        client.cancel(job.id, grace_s=0)


def test_permission_error_names_required_role(shared, tmp_path):
    with client_of(shared, "vera") as viewer:
        with pytest.raises(fsdpd.NotPermitted) as raised:
            viewer.submit(small())
        assert raised.value.reason == "ROLE_REQUIRED" and raised.value.metadata["needed"] == "submitter"
    _, unknown = new_token(tmp_path, "eve", "admin")
    with fsdpd.Client(shared.address, ca_file=shared.security.pki / "ca.crt", token_file=unknown) as stranger:
        with pytest.raises(fsdpd.NotPermitted) as raised:
            stranger.nodes()
        assert raised.value.reason == "UNKNOWN_TOKEN"
    unknown.chmod(0o644)
    with pytest.raises(PermissionError):
        fsdpd.Client(shared.address, ca_file=shared.security.pki / "ca.crt", token_file=unknown)
    with pytest.raises(ValueError, match="HOST:PORT"):
        fsdpd.Client("nonsense", environ={})


def test_rotated_token_applies_to_next_call(shared, tmp_path):
    _, unknown = new_token(tmp_path, "eve", "admin")
    known = unknown.read_text()
    unknown.write_text(shared.security.token("ada"))
    with fsdpd.Client(shared.address, ca_file=shared.security.pki / "ca.crt", token_file=unknown) as client:
        client.nodes()
        unknown.write_text(known)
        with pytest.raises(fsdpd.NotPermitted):
            client.nodes()


def test_unreachable_coordinator_raises_unavailable():
    with fsdpd.Client("127.0.0.1:1", environ={}) as client:
        with pytest.raises((fsdpd.Unavailable, fsdpd.DeadlineExceeded)) as raised:
            client.get("nobody-000000", timeout_s=3)
        assert raised.value.reason == raised.value.code.name


def test_plaintext_client_reports_tls_coordinator(shared):
    with fsdpd.Client(shared.address, environ={}) as client:
        with pytest.raises(fsdpd.Unavailable, match="requires TLS; pass ca_file") as raised:
            client.get("nobody-000000", timeout_s=2)
        assert raised.value.reason == "TLS_REQUIRED"


class Followed:
    """Updates of a watch, checked to have no gaps and no duplicates."""

    def __init__(self):
        self.revisions, self.steps, self.events = [], [], []
        self.job = None

    def take(self, update):
        if isinstance(update, fsdpd.JobChanged):
            self.job = update.job
            self.revisions.append(update.job.revision)
            self.events += [(event.unix_nanos, event.message) for event in update.events]
        else:
            self.steps.append((update.report.step, update.missed))

    def check(self):
        assert self.revisions == sorted(set(self.revisions))
        for (before, _), (step, missed) in zip(self.steps, self.steps[1:]):
            assert step == before + 1 + missed
        assert self.events == [(event.unix_nanos, event.message) for event in self.job.events]


def crash(cluster):
    cluster.coordinator.kill()
    cluster.start_coordinator(listen=cluster.address)


def test_deleted_node_registers_again(own):
    with client_of(own) as client:
        with pytest.raises(fsdpd.WrongState, match="node-0 is ready: stop its agent"):
            client.delete_node("node-0", force=True)
        client.cordon("node-0", reason="gone for good")
        own.agents["node-0"].stop()
        wait_until("the node has left", lambda: client.nodes()[0].left)
        assert client.delete_node("node-0").name == "node-0"
        assert not client.nodes()
        with pytest.raises(fsdpd.NotFound):
            client.delete_node("node-0")
        newest = [(event.kind, event.node) for event, _ in zip(client.events(newest_first=True), range(2))]
        assert (fsdpd.EventKind.EVENT_KIND_NODE_DELETED, "node-0") in newest, newest  # Its cordon ended after that.
        own.start_agent("node-0")
        assert not client.nodes()[0].HasField("cordon")


def test_watch_resumes_after_coordinator_kill(own):
    with client_of(own) as client:
        job_id = client.submit(small(steps=ENDLESS)).job.id
        followed, steps_before = Followed(), None
        for update in client.watch(job_id):
            followed.take(update)
            if steps_before is None and len(followed.steps) == 3:
                crash(own)
                steps_before = followed.steps[-1][0]
            elif steps_before and followed.steps[-1][0] > steps_before + 3 and not followed.job.HasField("cancellation"):
                client.cancel(job_id, grace_s=0)
        followed.check()
        assert followed.job.state == fsdpd.JobState.JOB_STATE_CANCELLED and followed.job.attempt == 1


def test_logs_resume_after_coordinator_kill(own):
    with client_of(own) as client:
        job_id = client.submit(small(steps=ENDLESS)).job.id
        client.wait(job_id, until=lambda job: job.state == fsdpd.JobState.JOB_STATE_RUNNING)
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(client.logs(job_id, follow=True)))
        reader.start()
        wait_until("a step is made", lambda: client.get(job_id).last_step.step > 0)
        crash(own)
        wait_until("the coordinator knows the job again", lambda: client.get(job_id).last_step.step > 0)
        client.cancel(job_id, grace_s=0)
        client.wait(job_id)
        reader.join(60)
        assert not reader.is_alive()
        whole = [(line.rank, line.text) for line in client.logs(job_id) if not line.notice]
        for rank in (0, 1):
            assert [line.text for line in lines if line.rank == rank and not line.notice] == \
                [text for each, text in whole if each == rank]


def test_event_watch_resumes_after_coordinator_kill(own):
    with client_of(own) as client:
        job_id = client.submit(small(steps=ENDLESS)).job.id
        reported = []
        for event in client.watch_events(job=job_id):
            reported.append(event)
            if event.kind == fsdpd.EventKind.EVENT_KIND_READY:
                crash(own)
                client.cancel(job_id, grace_s=0)
            if event.kind == fsdpd.EventKind.EVENT_KIND_RANKS_EXITED:
                break
        assert reported == list(client.events(job=job_id)) and kinds(reported)[-2:] == ["CANCELLED", "RANKS_EXITED"]
        assert next(client.watch_events(job=job_id, after=reported[-2].sequence)) == reported[-1]


def test_async_client_drains_traces_and_watches_over_coordinator_kill(own, tmp_path):
    async def follow():
        async with fsdpd.AsyncClient(environ=environment(own)) as client:
            job_id = (await client.submit(small(steps=ENDLESS, checkpoint={"dir": str(tmp_path / "saved")}))).job.id
            async for update in client.watch(job_id):
                if isinstance(update, fsdpd.StepDone) and update.report.step > 5:
                    break
            check_trace([each async for each in client.trace(job_id, steps=2)], ranks=[0, 1])
            reported = []
            async for event in client.watch_events():
                reported.append(event)
                if event.kind == fsdpd.EventKind.EVENT_KIND_READY:
                    assert (await client.drain("node-0", reason="a fan")).cordon.reason == "a fan"
                    await asyncio.to_thread(crash, own)
                if event.kind == fsdpd.EventKind.EVENT_KIND_NODE_DRAINED:
                    break
            assert reported == [event async for event in client.events()][:len(reported)] and kinds(reported)[-1] == "NODE_DRAINED"
            await client.cancel(job_id)

    asyncio.run(follow())


def test_async_client_matches_blocking_client(own):
    async def follow():
        async with fsdpd.AsyncClient(environ=environment(own)) as client:
            job_id = (await client.submit(small(steps=ENDLESS))).job.id
            assert [job.id async for job in client.jobs()] == [job_id]
            followed, crashed = Followed(), False
            async for update in client.watch(job_id):
                followed.take(update)
                if not crashed and len(followed.steps) == 3:
                    crashed = True
                    await asyncio.to_thread(crash, own)
                elif crashed and len(followed.steps) > 6 and not followed.job.HasField("cancellation"):
                    await client.cancel(job_id, grace_s=0)
            followed.check()
            assert (await client.wait(job_id)).state == fsdpd.JobState.JOB_STATE_CANCELLED
            assert [line async for line in client.logs(job_id, rank=0, follow=True)]
            with pytest.raises(fsdpd.WrongState):
                await client.resume(job_id)

    asyncio.run(follow())


def run_example(cluster, site, run, path):
    done = subprocess.run([sys.executable, ROOT / "clients/python/examples/orchestrate.py", run, path],
                          env=environment(cluster, PYTHONPATH=str(site)), capture_output=True, text=True, timeout=120)
    assert not done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_example_prints_checkpoints_of_succeeded_job(shared, site, tmp_path):
    path = written(tmp_path, small(steps=6, checkpoint={"dir": "saved"}))
    code, reported = run_example(shared, site, "one", path)
    assert code == 0 and reported[-1]["kind"] == "succeeded" and reported[-1]["steps"] == 6
    # Relative to the spec's directory.
    assert reported[-1]["checkpoints"] and pathlib.Path(reported[-1]["checkpoints"][-1]["path"]).is_relative_to(tmp_path)
    job = next(each["job"] for each in reported if each["kind"] == "submitted")
    code, again = run_example(shared, site, "one", path)
    assert code == 0 and job == next(each["job"] for each in again if each["kind"] == "submitted")


def test_example_prints_logs_of_failed_job(shared, site, tmp_path):
    code, reported = run_example(shared, site, "two", written(tmp_path, failing(tmp_path)))
    failed = next(each for each in reported if each["kind"] == "failed")
    assert code == 1 and failed["state"] == "JOB_STATE_FAILED" and "nothing-here" in failed["reason"]
    assert any("nothing-here" in each["line"] for each in reported if each["kind"] == "log")


def test_documented_program_runs(shared, site, tmp_path):
    blocks = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs/clients.md").read_text(), re.MULTILINE | re.DOTALL)
    program = next(block for block in blocks if "fsdpd.Client(" in block)
    # Who it is then comes from the environment.
    program = program.replace('"coordinator.example:7777", ca_file="ca.crt", token_file="alice.token"', "")
    written(tmp_path, small(steps=3))
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60,
                          env=environment(shared, PYTHONPATH=str(site)))
    assert done.returncode == 0 and "\n3 " in done.stdout, done


def test_package_has_types(site):
    command = [TOOLS / "mypy", "--config-file", ROOT / "clients/python/pyproject.toml", "--cache-dir", "/dev/null",
               "--python-executable", TOOLS / "python", site / "fsdpd"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert (site / "fsdpd/py.typed").exists()
