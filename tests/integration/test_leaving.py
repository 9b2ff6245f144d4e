"""Tests of jobs that are stopped: they save first, so that no step is lost, and all checkpoints are complete."""

import os
import re
import signal

import pytest

from harness import checkpoints
from harness.cluster import rank_of
from harness.training import STEPS, Record, messages, saving, submit_from
from harness.wait import measured, wait_until

ENDLESS = 1_000_000
LONG = 120  # Seconds, of a grace that no machine is too slow for.


def unsaved(directory, **arguments):
    """A job that saves only on request and after its last step."""
    return saving(directory, checkpoint={"every_steps": None}, **arguments)


def cancel(cluster, job_id, grace):
    cluster.ctl("cancel", job_id, "--grace", grace, "--wait").expect(0)
    return cluster.wait_state(job_id, "CANCELLED")


def test_cancelled_job_saves_and_another_resumes(cluster, whole, tmp_path):
    cancelled = cluster.submit(unsaved(tmp_path / "cancelled", name="cancelled"))
    cluster.wait_step(cancelled, 7)
    job = cancel(cluster, cancelled, LONG)
    step = job.checkpoints[-1].step
    assert 7 < step < STEPS and step == job.last_step.step, "after the last step that it made"
    assert checkpoints.assert_whole(tmp_path / "cancelled" / "run") == [step]
    assert any("the ranks, which save first" in text for text in messages(job)), messages(job)
    path = checkpoints.path_of(tmp_path / "cancelled" / "run", step)
    assert str(path) in cluster.ctl("describe", cancelled).expect(0).out
    log = (cluster.directory / "node-0.work" / cancelled / "attempt-1" / "rank-0.log").read_text()
    assert f"left after step {step}, which is saved" in log, log[-2000:]
    following = submit_from(cluster, cancelled, saving(tmp_path / "on", name="on"))
    record = Record(cluster, following)
    assert cluster.wait_state(following, "SUCCEEDED").restored.step == step
    losses = record.losses()
    assert [at for at, _ in losses] == list(range(step + 1, STEPS + 1))
    whole.assert_same(losses, tmp_path / "on" / "run")


def test_cancel_without_grace_saves_nothing_and_keeps_checkpoints(cluster, tmp_path):
    job_id = cluster.submit(unsaved(tmp_path, steps=ENDLESS))
    cluster.wait_step(job_id, 3)
    job = cancel(cluster, job_id, 0)
    assert not job.checkpoints and not list((tmp_path / "run").glob("iter_*"))


def test_stopped_rank_saves_on_cancel(cluster, tmp_path):
    job_id = cluster.submit(unsaved(tmp_path, steps=ENDLESS))
    cluster.wait_step(job_id, 3)
    victim = next(each for each in cluster.all_ranks() if rank_of(each) == 3)
    os.kill(victim.pid, signal.SIGSTOP)
    job = cancel(cluster, job_id, LONG)
    assert checkpoints.assert_whole(tmp_path / "run") == [job.checkpoints[-1].step]


@pytest.mark.parametrize("node", ["node-0", "node-1"])
def test_stopped_agent_loses_no_step(own, whole, tmp_path, node):
    """Like a drained node. Node-0 has rank 0, which commits; the ranks of the other node get no notification."""
    with own(agents=0) as cluster:
        for name in ("node-0", "node-1"):
            cluster.start_agent(name, grace_ms=LONG * 1000)
        job_id = cluster.submit(unsaved(tmp_path / "job", restart={"max_attempts": 1}))
        record = Record(cluster, job_id)
        cluster.wait_step(job_id, 7)
        with measured("ranks have saved and left, and their agent has ended"):
            assert cluster.agents[node].stop() == 0
        step = checkpoints.assert_whole(tmp_path / "job" / "run")[-1]
        cluster.start_agent(node)
        job = cluster.wait_state(job_id, "SUCCEEDED")
        assert (job.attempt, job.restored.step) == (2, step) and step > 7
        assert any(f"because node {node} shut down" in text for text in messages(job)), messages(job)
        assert "its agent, which was asked to stop" in job.failure.error + " ".join(messages(job)), job
        losses = record.losses()
        steps = [at for at, _ in losses]
        assert steps == list(range(steps[0], STEPS + 1)), "each once"
        whole.assert_same(losses, tmp_path / "job" / "run")


def assert_goes_on(cluster, job_id, node, step):
    """Checks that a second attempt resumes from the checkpoint of `step`, and that the first one does not count as
    failed."""
    wait_until("the next attempt is there", lambda: cluster.job(job_id).attempt == 2 or cluster.job(job_id).end_unix_nanos)
    cluster.wait_step(job_id, step + 1)
    job = cluster.job(job_id)
    assert (job.attempt, job.restored.step) == (2, step) and step > 7
    assert any(f"because node {node} shut down" in text for text in messages(job)), messages(job)


@pytest.mark.parametrize("agent_is_replaced", [False, True], ids=["it waits", "the next one tells"])
def test_agent_stop_during_outage_loses_no_step(own, tmp_path, agent_is_replaced):
    """As when all components restart together. A second SIGTERM, as from Slurm, does not end a save."""
    with own(agents=0) as cluster:
        agent = cluster.start_agent("node-0", grace_ms=LONG * 1000)
        one_node = {"resources": {"nodes": 1, "ranks_per_node": 2}, "train": {"global_batch": 2}}
        job_id = cluster.submit(unsaved(tmp_path / "job", steps=ENDLESS, restart={"max_attempts": 1}, **one_node))
        cluster.wait_step(job_id, 7)
        cluster.coordinator.kill()
        agent.process.send_signal(signal.SIGTERM)
        agent.process.send_signal(signal.SIGTERM)
        wait_until("the agent stores undelivered messages", lambda: "stored undelivered messages" in agent.text())
        step = checkpoints.assert_whole(tmp_path / "job" / "run")[-1]
        if agent_is_replaced:
            assert agent.stop() == 0, "one that has nothing left to do but wait"
        cluster.start_coordinator(listen=cluster.address)
        if not agent_is_replaced:
            assert agent.wait() == 0
        cluster.start_agent("node-0")
        assert_goes_on(cluster, job_id, "node-0", step)


@pytest.mark.parametrize("node", ["node-0", "node-1"])
def test_two_node_job_saves_during_outage(own, tmp_path, node):
    """Its ranks coordinate the save through the shared directory. Before that the job trains and saves without the
    coordinator."""
    with own(agents=0) as cluster:
        for name in ("node-0", "node-1"):
            cluster.start_agent(name, grace_ms=LONG * 1000)
        made = saving(tmp_path / "job", steps=ENDLESS, checkpoint={"every_steps": 20}, restart={"max_attempts": 1})
        job_id = cluster.submit(made)
        cluster.wait_step(job_id, 7)
        known = cluster.job(job_id).last_step.step
        cluster.coordinator.kill()
        directory = tmp_path / "job" / "run"
        wait_until("it saves alone", lambda: any(step > known + 20 for step in checkpoints.steps_in(directory)))
        agent = cluster.agents[node]
        agent.process.send_signal(signal.SIGTERM)
        wait_until("the agent stores undelivered messages", lambda: "stored undelivered messages" in agent.text())
        agent.process.send_signal(signal.SIGINT)
        assert agent.wait() == 0
        step = checkpoints.assert_whole(directory)[-1]
        log = max((cluster.directory / f"{node}.work" / job_id / "attempt-1").glob("rank-*.log")).read_text()
        assert f"left after step {step}, which is saved" in log, log[-2000:]
        cluster.start_coordinator(listen=cluster.address)
        cluster.start_agent(node)
        assert_goes_on(cluster, job_id, node, step)


@pytest.mark.nightly
def test_job_saves_every_n_minutes(cluster, tmp_path):
    """One minute, with a real clock; save_schedule_test tests the decision itself."""
    job_id = cluster.submit(saving(tmp_path, steps=ENDLESS, checkpoint={"every_steps": None, "every_minutes": 1}))
    job = wait_until("a checkpoint is committed",
                     lambda: (lambda now: now.checkpoints and now)(cluster.job(job_id)), timeout_s=150)
    saved = job.checkpoints[0]
    assert 60e9 <= saved.unix_nanos - job.start_unix_nanos
    log = (cluster.directory / "node-0.work" / job_id / "attempt-1" / "rank-0.log").read_text()
    assert re.search(r"every 1 minutes and at the end", log), log[:3000]
    cancel(cluster, job_id, 0)
    assert checkpoints.assert_whole(tmp_path / "run")[0] == saved.step
