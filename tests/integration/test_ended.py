"""Tests of ended jobs: retry under the same id, deletion, and removal of their files from nodes."""

import os
import signal

from harness import checkpoints
from harness.cluster import rank_of
from harness.specs import spec
from harness.training import Record, saving, wait_committed
from harness.wait import wait_until


def kill_all_attempts(cluster, job_id):
    victim = next(each for each in cluster.all_ranks() if rank_of(each) == 1)
    os.kill(victim.pid, signal.SIGKILL)
    return cluster.wait_state(job_id, "FAILED")


def test_retried_job_matches_undisturbed_job(cluster, whole, tmp_path):
    job_id = cluster.submit(saving(tmp_path / "job", name="again", restart={"max_attempts": 1}))
    wait_committed(cluster, job_id, 10)
    failed = kill_all_attempts(cluster, job_id)
    step = checkpoints.assert_whole(tmp_path / "job" / "run")[-1]
    assert cluster.ctl("retry", job_id, "--reason", "the cable is in").expect(0).out == f"{job_id} queued\n"
    record = Record(cluster, job_id)
    job = cluster.wait_state(job_id, "SUCCEEDED")
    assert job.id == failed.id and job.attempt == 2 and job.restored.step == step
    assert any("retried" in event.message and "the cable is in" in event.message for event in job.events)
    whole.assert_same(record.losses(), tmp_path / "job" / "run")
    assert "submit --from" in cluster.ctl("retry", job_id).expect(7).err


def test_deleted_job_leaves_only_checkpoints(cluster, tmp_path):
    job_id = cluster.submit(saving(tmp_path, steps=10, name="deleted"))
    running = cluster.submit(spec(steps=10_000_000, name="runs"))
    cluster.wait_state(job_id, "SUCCEEDED")
    directories = [cluster.directory / f"node-{node}.work" / job_id for node in (0, 1)]
    assert all(directory.exists() for directory in directories)
    cluster.wait_step(running, 1)
    assert "it has not ended; cancel it first" in cluster.ctl("delete", running).expect(7).err
    out = cluster.ctl("delete", job_id).expect(0).out
    assert out == f"{job_id} deleted; its checkpoints remain in {tmp_path / 'run'}\n"
    cluster.ctl("describe", job_id).expect(4)
    assert job_id not in cluster.ctl("get").expect(0).out
    wait_until("its logs are gone", lambda: not any(directory.exists() for directory in directories))
    assert (cluster.directory / "node-0.work" / running).exists()
    assert checkpoints.assert_whole(tmp_path / "run")[-1] == 10
    cluster.ctl("delete", job_id).expect(4)
    cluster.cancel(running)


def test_agent_retains_logs_of_limited_number_of_jobs(own):
    with own(agents=0) as cluster:
        cluster.start_agent("node-0")
        one = {"resources": {"nodes": 1, "ranks_per_node": 2}, "train": {"global_batch": 2}}
        jobs = []
        for index in range(4):
            jobs.append(cluster.submit(spec(steps=1, name=f"job-{index}", **one)))
            cluster.wait_state(jobs[-1], "SUCCEEDED")
        work = cluster.directory / "node-0.work"
        assert all((work / each).exists() for each in jobs)
        assert cluster.agents["node-0"].stop() == 0
        cluster.start_agent("node-0", keep_jobs=2)
        wait_until("the oldest are gone", lambda: [(work / each).exists() for each in jobs] == [False, False, True, True])
