"""Tests of hang detection: the rank that blocks the others is named, and the job resumes without it."""

import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from harness.cluster import rank_of
from harness.programs import program
from harness.specs import ENDLESS, spec
from harness.training import Record, messages, saving
from harness.wait import wait_until

LEAST = 5  # Seconds; what the rules allow.
WARM = 10  # Steps; the first few may take long.
PAUSES = 5  # At most: one that is as short as it should be is enough.


def victim_of(cluster, rank):
    return next(each for each in cluster.all_ranks() if rank_of(each) == rank)


def hangs_counted(cluster):
    return {name: int(float(re.search(r"^fsdpd_hangs_total (\S+)$", cluster.scrape(name), re.M)[1])) for name in cluster.agents}


def test_stopped_rank_is_named_and_job_resumes(own, whole, tmp_path):
    with own() as cluster:
        job_id = cluster.submit(saving(tmp_path / "job", name="hangs", restart={"max_attempts": 2, "hang_seconds": LEAST}))
        record = Record(cluster, job_id)
        wait_until("it has a checkpoint", lambda: cluster.job(job_id).checkpoints)
        victim = victim_of(cluster, 2)
        os.kill(victim.pid, signal.SIGSTOP)
        wait_until("the attempt has failed", lambda: cluster.job(job_id).failure.attempt == 1)
        failure = cluster.job(job_id).failure
        assert (failure.rank, failure.node) == (2, "node-1"), failure
        assert failure.hang.kind == failure.hang.KIND_UNRESPONSIVE, failure
        assert re.search(r"^no progress for \d+ s, stopped by a signal, .*in step \d+: ", failure.error), failure
        assert LEAST * 1000 < failure.hang.no_progress_ms < 60_000, failure.hang
        assert 2 in {rank for place in failure.hang.positions for rank in place.ranks}, failure.hang
        evidence = pathlib.Path(failure.hang.evidence)
        assert evidence == cluster.directory / "node-1.work" / job_id / "attempt-1" / "rank-2.hang.txt"
        wait_until("the evidence is written", evidence.exists)
        text = evidence.read_text()
        assert re.search(r"\(limit .* while (training|reading|saving)\); the process is stopped\nlane compute ", text), text
        assert re.search(rf"^thread {victim.pid} fsdpd-rank state=T ", text, re.M), text
        job = cluster.wait_state(job_id, "SUCCEEDED")
        assert job.attempt == 2 and job.restored.step > 0, job
        assert any("rank 2 on node-1 hangs: no progress" in message for message in messages(job)), messages(job)
        described = cluster.ctl("describe", job_id).expect(0).out
        assert "rank 2 on node-1 hangs: " in described and str(evidence) in described, described
        hinted = re.search(r"\(fsdpctl (logs \S+ --evidence --rank 2 --attempt 1)\)", described)
        assert hinted and cluster.ctl(*hinted[1].split()).expect(0).out == text
        every = cluster.ctl("logs", job_id, "--evidence", "--attempt", 1).expect(0).out.splitlines()
        assert [f"[rank 2] {line}" for line in text.splitlines()] == [line for line in every if line.startswith("[rank 2] ")]
        none = cluster.ctl("logs", job_id, "--evidence").expect(4)
        assert f"no evidence of a rank without progress in attempt 2 of job {job_id}; attempt 1 hung" in none.err, none.err
        assert "[fsdpd-agent: rank 2 hangs: " in cluster.ctl("logs", job_id, "--rank", 0, "--attempt", 1).expect(0).out
        assert hangs_counted(cluster) == {"node-0": 0, "node-1": 1}
        whole.assert_same(record.losses(), tmp_path / "job" / "run")


def standing_still(directory):
    """A job whose model blocks in a layer of a rank while the directory has a file named after the rank's process."""
    plugin, description = program("fsdp/model/testing/still_plugin.so"), directory / "still.json"
    described = subprocess.run([program("fsdp/fsdpd-rank"), "--describe-plugin", plugin, "--args", str(directory)],
                               capture_output=True, text=True, check=True, timeout=180)
    description.write_text(described.stdout)
    return spec(steps=ENDLESS, name="behind", restart={"max_attempts": 2, "hang_seconds": LEAST},
                model={"llama": None, "plugin": {"path": plugin, "description": str(description)}})


def test_lagging_rank_is_named(own, tmp_path):
    with own(agents=0) as cluster:
        for node in ("node-0", "node-1"):
            cluster.start_agent(node, plugin_dir=pathlib.Path(program("fsdp/model/testing/still_plugin.so")).parent)
        job_id = cluster.ctl("submit", "-f", cluster.write_spec(standing_still(tmp_path))).expect(0).out.strip()
        cluster.wait_step(job_id, WARM)
        victim = victim_of(cluster, 1)
        (tmp_path / str(victim.pid)).touch()
        wait_until("the attempt has failed", lambda: cluster.job(job_id).failure.attempt == 1)
        failure = cluster.job(job_id).failure
        assert (failure.rank, failure.node) == (1, "node-0") and not failure.hang.caused_by_node, failure
        assert failure.hang.kind == failure.hang.KIND_BEHIND and "signal" not in failure.error, failure
        assert re.search(r"^no progress for \d+ s, in step \d+: compute in Forward layer\.0 mb 0.*"
                         r"; 3 ranks wait for it, rank 0 in (Gather|Reduce) \S+.* of step \d+$", failure.error), failure.error
        of = {rank: place.position for place in failure.hang.positions for rank in place.ranks}
        assert sorted(of) == [0, 1, 2, 3] and "compute in Forward layer.0 mb 0" in of[1], of
        for rank in (0, 2, 3):
            assert re.search(r"(gather|reduce) in (Gather|Reduce) ", of[rank]) and "compute in" not in of[rank], of
        evidence = cluster.ctl("logs", job_id, "--evidence", "--rank", 1, "--attempt", 1).expect(0).out
        assert "; the process is live\nlane compute in Forward layer.0 mb 0 of step " in evidence, evidence
        # It sleeps, or has just woken to look whether it may go on: it lives either way.
        assert re.search(rf"^thread {victim.pid} fsdpd-rank state=[RS] ", evidence, re.M), evidence
        assert hangs_counted(cluster) == {"node-0": 1, "node-1": 0}
        wait_until("the next attempt goes on", lambda: cluster.job(job_id).attempt == 2)
        cluster.wait_step(job_id, WARM)
        cluster.cancel(job_id)


def test_hang_fails_job_without_retries(cluster):
    job_id = cluster.submit(spec(steps=ENDLESS, restart={"hang_seconds": LEAST}))
    cluster.wait_step(job_id, WARM)
    os.kill(victim_of(cluster, 0).pid, signal.SIGSTOP)
    job = cluster.wait_state(job_id, "FAILED")
    assert job.failure.rank == 0 and job.reason.startswith("rank 0 on node-0 hangs: "), job
    assert not cluster.all_ranks()


def test_slow_job_and_disabled_detection_do_not_hang(cluster):
    """One rank is repeatedly stopped for most of the time: steps take seconds but make progress."""
    pair = {"nodes": 2, "ranks_per_node": 1}
    alone = cluster.submit(spec(steps=ENDLESS, name="alone", restart={"hang_seconds": 0}, resources=pair))
    slow = cluster.submit(spec(steps=ENDLESS, name="slow", restart={"hang_seconds": 3 * LEAST}, resources=pair))
    victims = {}
    for job_id in (alone, slow):
        cluster.wait_step(job_id, WARM)
        victims[job_id] = next(each for each in cluster.all_ranks()
                               if f"/{job_id}/" in os.readlink(f"/proc/{each.pid}/fd/1") and rank_of(each) == 1)
    os.kill(victims[alone].pid, signal.SIGSTOP)
    for _ in range(2):
        os.kill(victims[slow].pid, signal.SIGSTOP)
        time.sleep(8)  # The time itself is what is tested: together they are more than may be.
        step = cluster.job(slow).last_step.step
        os.kill(victims[slow].pid, signal.SIGCONT)
        cluster.wait_step(slow, step + 1)
    wait_until("it is told that nothing comes", lambda: cluster.job(alone).stalled_since_unix_nanos)
    assert [cluster.job(job_id).attempt for job_id in (alone, slow)] == [1, 1]
    assert [cluster.state(job_id) for job_id in (alone, slow)] == ["RUNNING", "RUNNING"]
    os.kill(victims[alone].pid, signal.SIGCONT)


def assert_pause_ends_nothing(cluster, pids):
    """Stops the processes of a job's cluster for longer than the hang limit: the job continues. On a loaded machine the
    pause can exceed an agent's lease (10 s). Then the job has one more attempt, only because of the lost node."""
    job_id = cluster.submit(spec(steps=ENDLESS, restart={"hang_seconds": LEAST, "max_attempts": PAUSES}))
    for attempt in range(1, PAUSES + 1):
        wait_until("the attempt trains", lambda: cluster.job(job_id).attempt == attempt and cluster.state(job_id) == "RUNNING")
        cluster.wait_step(job_id, WARM)
        stopped = pids()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(LEAST + 1)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        step = cluster.job(job_id).last_step.step
        wait_until("the job continues, or has failed", lambda: cluster.job(job_id).failure.attempt == attempt or
                   cluster.job(job_id).last_step.step >= step + 20)
        job = cluster.job(job_id)
        assert hangs_counted(cluster) == {"node-0": 0, "node-1": 0}, job
        if job.failure.attempt != attempt:
            assert job.attempt == attempt and cluster.state(job_id) == "RUNNING", job
            return cluster.cancel(job_id)
        assert "is lost: its agent was not heard from for 9.5 s" in job.failure.error, job
    raise AssertionError(f"each of {PAUSES} pauses of {LEAST + 1} s was longer than the lease")


@pytest.mark.parametrize("who", ["agent", "coordinator"])
def test_stopped_daemon_fails_no_job(own, who):
    with own() as cluster:
        daemon = cluster.agents["node-1"] if who == "agent" else cluster.coordinator
        assert_pause_ends_nothing(cluster, lambda: [daemon.pid])


def test_suspended_machine_fails_no_job(own):
    """Simulates a suspended machine: agent and ranks of a node continue together, without progress in between."""
    with own() as cluster:
        assert_pause_ends_nothing(
            cluster, lambda: [cluster.agents["node-1"].pid, *(rank.pid for rank in cluster.ranks("node-1"))])
