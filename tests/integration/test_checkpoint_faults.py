"""Tests of checkpoint failures: damage, a full disk, the directory of another job. They are reported, complete
checkpoints are kept, and no job silently starts from scratch."""

import re

import grpc
import pytest

from harness import checkpoints
from harness.small_disk import fill, small_disk
from harness.specs import ENDLESS
from harness.stubs import event
from harness.training import EVERY, STEPS, Record, messages, saving, wait_committed
from harness.wait import wait_until


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", size="2m") as directory:
        yield directory


def between_attempts(cluster, job_id):
    """Ends the attempt, and makes the next one wait for the node."""
    assert cluster.agents["node-1"].stop() == 0
    wait_until("it waits for the node", lambda: cluster.state(job_id) == "QUEUED" and not cluster.all_ranks())


def flip_newest(steps, path):
    checkpoints.flip(path(steps[-1]) / "__2_0.distcp")
    return ["__2_0.distcp: checksum does not match the committed one"]


def damage_three(steps, path):
    (path(steps[-1]) / "__3_0.distcp").unlink()
    checkpoints.truncate(path(steps[-2]) / ".metadata")
    checkpoints.flip(path(steps[-3]) / "__0_0.distcp")
    return ["__3_0.distcp", ".metadata", "__0_0.distcp: checksum does not match the committed one"]


def lose_newest(steps, path):
    (path(steps[-1]) / ".metadata").unlink()
    return ["no longer has .metadata"]


@pytest.mark.parametrize("damage", [flip_newest, damage_three, lose_newest])
def test_damaged_checkpoint_is_skipped_reported_and_kept(own, whole, tmp_path, damage):
    with own() as cluster:
        job_id = cluster.submit(saving(tmp_path, checkpoint={"keep_last": 4}, restart={"max_attempts": 3}))
        record = Record(cluster, job_id)
        wait_committed(cluster, job_id, 4 * EVERY)
        between_attempts(cluster, job_id)
        steps = checkpoints.assert_whole(tmp_path / "run")
        assert len(steps) in (4, 5), steps  # A rank may leave between a commit and the removal of the oldest.
        where = damage(steps, lambda step: checkpoints.path_of(tmp_path / "run", step))
        damaged = steps[-len(where):][::-1]
        cluster.start_agent("node-1")
        job = cluster.wait_state(job_id, "SUCCEEDED")
        step = steps[-len(where) - 1]
        output = [text for text in messages(job) if re.match(rf"attempt \d resumes after step {step} \(", text)]
        assert output, messages(job)
        assert job.restored.step == step and len(job.restored.skipped_checkpoints) == len(where), job.restored
        for passed, bad, words in zip(job.restored.skipped_checkpoints, damaged, where):
            assert passed.startswith(f"iter_{bad:07d}: ") and words in passed, passed
            assert passed in output[0] and passed in cluster.ctl("describe", job_id).expect(0).out
            kept = checkpoints.path_of(tmp_path / "run", bad).with_suffix(".damaged")
            assert kept.is_dir() and list(kept.iterdir()), "what was damaged is there for who wants to look"
        whole.assert_same(record.losses(), tmp_path / "run")
        checkpoints.assert_whole(tmp_path / "run")


def test_job_without_complete_checkpoint_fails(own, tmp_path):
    with own() as cluster:
        job_id = cluster.submit(saving(tmp_path, restart={"max_attempts": 2}))
        wait_committed(cluster, job_id, EVERY)
        between_attempts(cluster, job_id)
        steps = checkpoints.assert_whole(tmp_path / "run")
        for step in steps:
            checkpoints.flip(checkpoints.path_of(tmp_path / "run", step) / "__1_0.distcp")
        cluster.start_agent("node-1")
        job = cluster.wait_state(job_id, "FAILED")
        assert "no intact checkpoint: " in job.failure.error, job.failure
        for step in steps:
            assert f"iter_{step:07d}: __1_0.distcp" in job.failure.error, job.failure
        assert checkpoints.steps_in(tmp_path / "run") == steps, "they are left as they are"


def test_job_resumes_when_checkpoint_directory_returns(own, whole, tmp_path):
    with own() as cluster:
        job_id = cluster.submit(saving(tmp_path, restart={"max_attempts": 8}))
        record = Record(cluster, job_id)
        wait_committed(cluster, job_id, EVERY)
        between_attempts(cluster, job_id)
        step = checkpoints.assert_whole(tmp_path / "run")[-1]
        (tmp_path / "run").rename(tmp_path / "moved")
        cluster.start_agent("node-1")
        # Of any rank: each looks for itself, and the first to say so is heard.
        gone = (f" failed by its configuration: checkpoint.dir: {tmp_path}/run does not exist, but the job has committed "
                f"step {step}; mount or restore the directory, or submit a new job to start at step 1")
        wait_until("an attempt fails", lambda: any(gone in text for text in messages(cluster.job(job_id))))
        assert not (tmp_path / "run").exists(), "nothing is written where it was"
        (tmp_path / "moved").rename(tmp_path / "run")
        job = cluster.wait_state(job_id, "SUCCEEDED")
        assert job.restored.step == step and not job.restored.skipped_checkpoints, job.restored
        whole.assert_same(record.losses(), tmp_path / "run")


NO_ROOM = "No space left on device"


def test_full_disk_loses_checkpoints_but_not_job(disk, own, tmp_path):
    filler = fill(disk)
    with own() as cluster:
        made = saving(tmp_path / "job", steps=ENDLESS, checkpoint={"dir": str(disk / "run"), "every_steps": 2,
                                                                   "keep_last": 1})
        job_id = cluster.submit(made)
        wait_until("a checkpoint could not be written", lambda: cluster.job(job_id).HasField("failed_checkpoint"))
        cluster.wait_step(job_id, cluster.job(job_id).last_step.step + 6)
        job = cluster.job(job_id)
        assert job.attempt == 1 and not job.checkpoints and NO_ROOM in job.failed_checkpoint.error, job
        reported = [text for text in messages(job) if "could not be written" in text]
        assert len(reported) == 1 and NO_ROOM in reported[0] and reported[0].endswith("; training continues"), reported
        for screen in (cluster.ctl("get"), cluster.ctl("describe", job_id)):
            assert re.search(rf"checkpoint of step \d+ could not be written: .*{NO_ROOM}", screen.expect(0).out), screen
        assert not checkpoints.steps_in(disk / "run")
        filler.unlink()
        wait_until("the next one is committed", lambda: cluster.job(job_id).checkpoints)
        job = cluster.job(job_id)
        assert not job.HasField("failed_checkpoint"), job.failed_checkpoint
        assert re.match(r"checkpoint of step \d+ committed \(", messages(job)[-1]), messages(job)
        cluster.cancel(job_id)
        assert checkpoints.assert_whole(disk / "run")


def test_failed_last_checkpoint_fails_job(disk, cluster, tmp_path):
    fill(disk)
    made = saving(tmp_path / "job", steps=4, checkpoint={"dir": str(disk / "run"), "every_steps": None},
                  restart={"max_attempts": 3})
    job = cluster.wait_state(cluster.submit(made), "FAILED")
    assert re.search(f"the checkpoint of the last step was not written: .*{NO_ROOM}", job.failure.error), job.failure
    assert job.last_step.step == 4 and not job.checkpoints
    assert f"not written: rank {job.failure.rank}: " in job.failure.error, "the rank that met it is blamed"
    assert job.failure.cause == event.FAILURE_CAUSE_DISK and job.attempt == 1, job.failure
    assert "another attempt would fail in the same way: free disk space" in job.reason, job.reason
    left = [path for path in (disk / "run").iterdir() if path.name != ".fsdpd_lock"]
    assert left == [], "what could not be finished takes no room"


LONG = 4 * STEPS  # Longer than a rank waits for the lock of a directory.


def locked_by(job_id, directory):
    return (rf"^checkpoint\.dir: {re.escape(str(directory))}/run/\.fsdpd_lock is locked by {job_id} on host \S+, which writes "
            "there; give each job its own directory")


def test_rejects_second_job_in_same_directory_by_other_path(own, tmp_path):
    """Regression: rank 1 was blamed for an error of rank 0, and the job was launched again."""
    place = {"nodes": 1, "ranks_per_node": 2}
    (tmp_path / "link").symlink_to(tmp_path)
    with own(agents=0) as cluster:
        jobs = [cluster.submit(saving(directory, steps=LONG, resources=place, restart={"max_attempts": 5}))
                for directory in (tmp_path, tmp_path / "link")]
        for node in ("node-0", "node-1"):
            cluster.start_agent(node)
        ended = [cluster.wait_state(job_id, "SUCCEEDED", "FAILED") for job_id in jobs]
        assert sorted(cluster.state(job_id) for job_id in jobs) == ["FAILED", "SUCCEEDED"], ended
        refused = next(i for i, job in enumerate(ended) if job.HasField("failure"))
        job = ended[refused]
        assert re.search(locked_by(jobs[1 - refused], (tmp_path, tmp_path / "link")[refused]), job.failure.error), job
        assert (job.failure.rank, job.attempt, job.failure.cause) == (0, 1, event.FAILURE_CAUSE_CONFIGURATION), job


def test_rejects_directory_of_running_job(cluster, tmp_path):
    """Rejected at submit, and by the ranks if the path differs, such as through a link."""
    place = {"nodes": 1, "ranks_per_node": 2}
    first = cluster.submit(saving(tmp_path, name="first", steps=LONG, resources=place))
    with pytest.raises(grpc.RpcError) as refused:
        cluster.submit(saving(tmp_path, name="second", resources=place))
    assert f"{tmp_path}/run belongs to job {first}, which is " in refused.value.details()
    wait_committed(cluster, first, EVERY)
    (tmp_path / "link").symlink_to(tmp_path)
    second = cluster.submit(saving(tmp_path / "link", name="second", resources=place, restart={"max_attempts": 5}))
    job = cluster.wait_state(second, "FAILED")
    refused = locked_by(first, tmp_path / "link")
    assert re.search(refused, job.failure.error), job.failure
    assert job.failure.error in messages(job)[2], "the first attempt says so at once"
    assert (job.failure.rank, job.attempt, job.failure.cause) == (0, 1, event.FAILURE_CAUSE_CONFIGURATION), job
    assert job.failure.error in cluster.ctl("describe", second).expect(0).out
    trained = cluster.wait_state(first, "SUCCEEDED")
    assert trained.attempt == 1 and not any("could not be written" in text for text in messages(trained))
    assert checkpoints.assert_whole(tmp_path / "run") == [LONG - 2 * EVERY, LONG - EVERY, LONG]
