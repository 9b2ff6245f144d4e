"""Tests of paused jobs: they save, release all resources, and resume with the results of an uninterrupted run."""

import contextlib
import ctypes
import os
import signal

import pytest

from harness import checkpoints
from harness.cluster import rank_of
from harness.small_disk import fill, small_disk
from harness.specs import spec
from harness.training import STEPS, Record, messages, saving
from harness.wait import wait_until

ENDLESS = 1_000_000
LONG = 120  # Seconds, of a grace that no machine is too slow for.
PTRACE_ATTACH, PTRACE_DETACH, WALL = 16, 17, 0x40000000


def unsaved(directory, **arguments):
    """A job that saves only on request and after its last step."""
    return saving(directory, checkpoint={"every_steps": None}, **arguments)


def assert_goes_on_as(whole, cluster, job_id, record, step, directory):
    """Checks that the next attempt resumes after `step`, with no step repeated and the numbers of an uninterrupted run.
    """
    job = cluster.wait_state(job_id, "SUCCEEDED")
    assert job.restored.step == step and not job.HasField("pause")
    losses = record.losses()
    steps = [at for at, _ in losses]
    assert steps == sorted(set(steps)) and set(range(step + 1, STEPS + 1)) <= set(steps)
    whole.assert_same(losses, directory)
    return job


def test_paused_job_saves_and_resumes(cluster, whole, tmp_path):
    job_id = cluster.submit(unsaved(tmp_path / "job", name="paused", restart={"max_attempts": 1}))
    record = Record(cluster, job_id)
    cluster.wait_step(job_id, 7)
    out = cluster.ctl("pause", job_id, "--wait", "--reason", "for lunch").expect(0).out
    job = cluster.wait_state(job_id, "PAUSED")
    step = job.pause.step
    assert out == f"{job_id} paused after step {step}\n" and 7 <= step < STEPS
    assert not cluster.all_ranks(), "PAUSED is said when no process is left"
    assert checkpoints.assert_whole(tmp_path / "job" / "run") == [step]
    assert any("for lunch" in text for text in messages(job)), messages(job)
    cluster.wait_idle()
    other = cluster.submit(spec(steps=2, name="other"))
    cluster.wait_state(other, "SUCCEEDED")
    assert cluster.state(job_id) == "PAUSED"
    assert f"{step}/{STEPS}" in cluster.ctl("get", "--state", "paused").expect(0).out
    assert cluster.ctl("resume", job_id).expect(0).out == f"{job_id} queued\n"
    job = assert_goes_on_as(whole, cluster, job_id, record, step, tmp_path / "job" / "run")
    assert job.attempt == 2, "of one that may have one attempt: a pause is none"


def test_pause_survives_coordinator_restart(own, whole, tmp_path):
    """Killed while ranks save, and again when the job is paused."""
    with own() as cluster:
        job_id = cluster.submit(unsaved(tmp_path / "job", name="paused"))
        record = Record(cluster, job_id)
        cluster.wait_step(job_id, 7)
        ranks = cluster.all_ranks()
        victim = next(each for each in ranks if rank_of(each) == 3)
        # So that the coordinator ends before the ranks do: one of them cannot save until it is let go.
        os.kill(victim.pid, signal.SIGSTOP)
        cluster.ctl("pause", job_id, "--grace", LONG).expect(0)
        cluster.coordinator.kill()
        os.kill(victim.pid, signal.SIGCONT)
        cluster.start_coordinator(listen=cluster.address)
        step = cluster.wait_state(job_id, "PAUSED").pause.step
        assert checkpoints.assert_whole(tmp_path / "job" / "run") == [step] and step >= 7
        assert not cluster.all_ranks()
        cluster.coordinator.kill()
        cluster.start_coordinator(listen=cluster.address)
        assert cluster.job(job_id).pause.step == step
        cluster.ctl("resume", job_id).expect(0)
        assert_goes_on_as(whole, cluster, job_id, record, step, tmp_path / "job" / "run")


def test_pause_with_hung_rank_reports_lost_steps(cluster, tmp_path):
    job_id = cluster.submit(unsaved(tmp_path, steps=ENDLESS))
    cluster.wait_step(job_id, 3)
    victim = next(each for each in cluster.all_ranks() if rank_of(each) == 3)
    with frozen(victim.pid) as reap:
        cluster.ctl("pause", job_id, "--grace", "4").expect(0)
        wait_until("it is paused", lambda: reap() or cluster.state(job_id) == "PAUSED")
    job = cluster.job(job_id)
    assert not cluster.all_ranks()
    assert job.pause.step == 0 and job.pause.lost_steps >= 3, job.pause
    assert f"it will start from scratch; {job.pause.lost_steps} steps are lost: rank " in job.reason
    assert not checkpoints.steps_in(tmp_path / "run")
    result = cluster.ctl("pause", job_id, "--wait").expect(7)
    assert result.out == f"{job_id} paused\n" and "steps are lost" in result.err
    assert cluster.ctl("cancel", job_id).expect(0).out == f"{job_id} cancelled\n"


def test_pause_waits_for_unreachable_rank(own, tmp_path):
    """Its agent is stopped, and lost to the coordinator."""
    with own(agents=1) as cluster:
        job_id = cluster.submit(saving(tmp_path / "job", steps=ENDLESS, checkpoint={"every_steps": 20},
                                       resources={"nodes": 1, "ranks_per_node": 1}))
        cluster.wait_step(job_id, 3)
        agent = cluster.agents["node-0"]
        os.kill(agent.pid, signal.SIGSTOP)
        result = cluster.ctl("pause", job_id, "--grace", LONG, "--wait").expect(7)
        assert "is not paused yet: node node-0 is lost" in result.err and cluster.state(job_id) == "PAUSING"
        assert cluster.all_ranks(), "it trains on"
        os.kill(agent.pid, signal.SIGCONT)
        job = cluster.wait_state(job_id, "PAUSED")
        assert not cluster.all_ranks() and not job.pause.unconfirmed
        assert job.pause.step == checkpoints.steps_in(tmp_path / "job" / "run")[-1] and job.pause.lost_steps == 0, job.pause


def test_pause_waits_for_ranks_of_earlier_attempt(own, tmp_path):
    """Regression: the job was PAUSED when the ranks of attempt 2 had exited, while those of attempt 1 trained and
    saved."""
    with own(agents=1) as cluster:
        job_id = cluster.submit(saving(tmp_path / "job", steps=ENDLESS, checkpoint={"every_steps": 20},
                                       resources={"nodes": 1, "ranks_per_node": 1}, restart={"max_attempts": 3}))
        cluster.wait_step(job_id, 3)
        cluster.start_agent("node-1")
        agent = cluster.agents["node-0"]
        os.kill(agent.pid, signal.SIGSTOP)
        wait_until("the wait for the lock is named",
                   lambda: "may still run on lost node node-0 and lock checkpoint.dir" in cluster.job(job_id).reason)
        assert cluster.job(job_id).attempt == 2 and cluster.state(job_id) == "STARTING"
        result = cluster.ctl("pause", job_id, "--grace", "10", "--wait").expect(7)
        assert "is not paused yet: node node-0 is lost" in result.err and cluster.state(job_id) == "PAUSING"
        assert len(cluster.ranks("node-0")) == 1 and not cluster.ranks("node-1")
        os.kill(agent.pid, signal.SIGCONT)
        job = cluster.wait_state(job_id, "PAUSED")
        assert not cluster.all_ranks() and not job.pause.unconfirmed


@contextlib.contextmanager
def frozen(pid):
    """A process whose main thread reacts to no signal except SIGKILL. Call the returned function regularly: the parent
    sees the exit of a traced process only after the tracer has."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if ptrace(PTRACE_ATTACH, pid, None, None) != 0:
        pytest.skip(f"may not trace a process here: {os.strerror(ctypes.get_errno())}")
    os.waitpid(pid, WALL)
    ended = []

    def reap():
        if not ended:
            with contextlib.suppress(ChildProcessError):
                found, status = os.waitpid(pid, WALL | os.WNOHANG)
                if found and not os.WIFSTOPPED(status):
                    ended.append(pid)
    yield reap
    if not ended:
        ptrace(PTRACE_DETACH, pid, None, None)


def test_pause_that_cannot_save_requires_grace_0(own, tmp_path):
    with small_disk(tmp_path / "disk", size="2m") as directory, own() as cluster:
        job_id = cluster.submit(saving(directory, steps=ENDLESS))
        wait_until("a checkpoint is known", lambda: cluster.job(job_id).checkpoints)
        filler = fill(directory)
        wait_until("one could not be written", lambda: cluster.job(job_id).HasField("failed_checkpoint"))
        refused = cluster.ctl("pause", job_id, "--wait").expect(7)
        assert "could not be written" in refused.err and "--grace 0" in refused.err
        assert cluster.state(job_id) == "RUNNING", "it trains on"
        result = cluster.ctl("pause", job_id, "--wait", "--grace", 0).expect(7)
        job = cluster.job(job_id)
        assert result.out == f"{job_id} paused after step {job.pause.step}\n"
        assert f"{job.pause.lost_steps} step" in result.err and "could not be written" in result.err
        assert checkpoints.steps_in(directory / "run")[-1] == job.pause.step > 0
        filler.unlink()
        cluster.ctl("resume", job_id).expect(0)
        cluster.wait_step(job_id, job.pause.step + 1)
        assert cluster.job(job_id).restored.step == job.pause.step
        cluster.cancel(job_id)


def test_queued_job_is_held_until_resume(cluster, tmp_path):
    first = cluster.submit(spec(steps=ENDLESS, name="first"))
    cluster.wait_step(first, 1)
    held = cluster.submit(spec(steps=2, name="held"))
    assert cluster.ctl("pause", held, "--wait").expect(0).out == f"{held} paused\n"
    refused = cluster.ctl("pause", first).expect(7)
    assert "checkpoint.dir" in refused.err and cluster.state(first) == "RUNNING"
    cluster.cancel(first)
    third = cluster.submit(spec(steps=2, name="third"))
    cluster.wait_state(third, "SUCCEEDED")
    assert cluster.state(held) == "PAUSED", "whoever comes after it passes it"
    cluster.ctl("resume", held).expect(0)
    cluster.wait_state(held, "SUCCEEDED")
    assert "it has succeeded" in cluster.ctl("resume", held).expect(7).err
    assert cluster.ctl("pause", "nobody").expect(4).err


def test_higher_priority_preempts_and_job_resumes(cluster, tmp_path):
    low = saving(tmp_path, checkpoint={"every_steps": None}, name="low", train={"steps": ENDLESS},
                 restart={"max_attempts": 1})
    low = cluster.ctl("submit", "-f", cluster.write_spec(low), "--preemptible").expect(0).out.strip()
    cluster.wait_step(low, 7)
    equal = cluster.submit(spec(steps=2, name="equal"))
    high = cluster.submit(spec(steps=2, name="high", priority=5))
    cluster.wait_state(high, "SUCCEEDED")
    cluster.wait_step(low, 7)
    job = cluster.wait_state(low, "RUNNING")
    assert job.restored.step >= 7 and job.attempt == 2, "of one that may have one attempt"
    assert any(f"preempted by job {high}, of priority 5" in text for text in messages(job)), messages(job)
    assert cluster.state(equal) == "QUEUED", "who gave way keeps its place"
    assert "preemptible: by jobs" in cluster.ctl("describe", low).expect(0).out
    cluster.cancel(low)
    cluster.wait_state(equal, "SUCCEEDED")


def test_job_without_checkpoints_is_not_preemptible(cluster):
    refused = cluster.ctl("submit", "-f", cluster.write_spec(spec()), "--preemptible").expect(2)
    assert "preemptible: requires checkpoint.dir" in refused.err, refused.err
