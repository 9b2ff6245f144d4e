"""Tests of every write of a save: a rank is killed before it, or the disk fails it. A checkpoint is complete or absent,
and the job resumes from the newest complete one."""

import errno
import re

import pytest

from harness import checkpoints
from harness.training import Record, WholeRun, messages, saving
from harness.wait import tell
from harness.writes import Writes

EVERY = 2
KEPT = 2
MAX_ATTEMPTS = 3


@pytest.fixture
def watched(own, tmp_path):
    """Cluster that records writes of ranks below tmp_path/runs."""
    (tmp_path / "runs").mkdir()
    writes = Writes(tmp_path / "writes", tmp_path / "runs")
    with own(agents=0) as cluster:
        for node in ("node-0", "node-1"):
            cluster.start_agent(node, rank_binary=writes.rank_binary)
        yield cluster, writes


def job_of(directory, steps):
    return saving(directory, steps=steps, checkpoint={"every_steps": EVERY, "keep_last": KEPT},
                  restart={"max_attempts": MAX_ATTEMPTS})


def learn(cluster, writes, directory):
    """Records the writes of a save that also deletes an older checkpoint: those of rank 0, and of a rank that does not
    commit."""
    cluster.wait_state(cluster.submit(job_of(directory, steps=8)), "SUCCEEDED")
    return writes.of(rank=0, step=8), writes.of(rank=2, step=8)


def place_of(of_rank_0, what, name):
    return next(i for i, write in enumerate(of_rank_0) if (write.what, write.path.name) == (what, name))


def assert_tidy(directory, steps):
    """Checks that the newest checkpoints are complete, and that failed saves left nothing behind."""
    assert checkpoints.assert_whole(directory) == [steps - EVERY, steps]
    names = {path.name for path in directory.iterdir()}
    assert names == {f"iter_{steps - EVERY:07d}", f"iter_{steps:07d}", "latest_checkpointed_iteration.txt",
                     ".fsdpd_lock"}
    assert (directory / "latest_checkpointed_iteration.txt").read_text().strip() == str(steps)
    found = {path.name for path in checkpoints.path_of(directory, steps).iterdir()}
    attempt, = {re.fullmatch(r"__\d+_(\d+)\.distcp", name)[1] for name in found - {".metadata", ".fsdpd_sums"}}
    assert found == {f"__{rank}_{attempt}.distcp" for rank in range(4)} | {".metadata", ".fsdpd_sums"}


def die_before_each(cluster, writes, directory, chosen):
    """Runs one job whose attempts are killed before one write each; `chosen` selects from (writes of rank 0, writes of
    rank 2)."""
    of_rank_0, of_rank_2 = learn(cluster, writes, directory / "plain")
    commit = of_rank_0[place_of(of_rank_0, "rename", ".metadata")]
    deaths = chosen(of_rank_0, of_rank_2)
    first = 8  # From here on a save also removes.
    steps = first + EVERY * (len(deaths) + 1)
    whole = WholeRun(cluster, directory / "whole", job_of(directory / "whole", steps))
    for index, write in enumerate(deaths):
        writes.die(write, first + EVERY * index)
    job_id = cluster.submit(job_of(directory / "killed", steps))
    record = Record(cluster, job_id)
    job = cluster.wait_state(job_id, "SUCCEEDED")
    assert not writes.left() and job.attempt == 1 + len(deaths)
    tell("deaths before a write of a save", len(deaths))
    went_on = re.findall(rf"attempt started job={job_id} attempt=\d+ after_step=(\d+)", cluster.coordinator.text())
    for index, write in enumerate(deaths):
        step = first + EVERY * index
        committed = write.rank == commit.rank and write.number > commit.number
        assert int(went_on[index]) == (step if committed else step - EVERY), f"killed before {write}: {went_on}"
    assert not any("could not be written" in text for text in messages(job)), "it is no disk that failed"
    whole.assert_same(record.losses(), directory / "killed" / "run")
    assert_tidy(directory / "killed" / "run", steps)


def test_rank_kill_around_commit_keeps_checkpoint_atomic(watched, tmp_path):
    def chosen(of_rank_0, of_rank_2):
        commit, recorded, removal = (place_of(of_rank_0, *each) for each in [
            ("rename", ".metadata"), ("rename", "latest_checkpointed_iteration.txt"), ("unlink", ".fsdpd_sums")])
        # Committed, and dead before it could say so, in as many attempts as the job has: each got further.
        undelivered = [of_rank_0[commit + 1]] * MAX_ATTEMPTS
        return [of_rank_2[-1], of_rank_0[commit], *undelivered, of_rank_0[recorded], of_rank_0[removal]]
    die_before_each(*watched, tmp_path / "runs", chosen)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_rank_kill_before_any_write_keeps_checkpoint_atomic(watched, tmp_path):
    die_before_each(*watched, tmp_path / "runs", lambda of_rank_0, of_rank_2: [*of_rank_0, *of_rank_2])


def test_failed_sync_of_commit_is_reported(watched, tmp_path):
    """The directory has its final name but may not be durable, so the next attempt starts from the checkpoint before it
    and saves again."""
    cluster, writes = watched
    of_rank_0, _ = learn(cluster, writes, tmp_path / "runs" / "plain")
    after = of_rank_0[place_of(of_rank_0, "rename", ".metadata") + 1]
    assert after.what == "sync"
    writes.fail(after, 8, errno.EIO)
    job_id = cluster.submit(job_of(tmp_path / "runs" / "failing", steps=8))
    job = cluster.wait_state(job_id, "SUCCEEDED")
    assert not writes.left() and (job.attempt, job.restored.step) == (2, 6), job
    assert "the checkpoint of the last step was not written" in job.failure.error, job.failure
    assert_tidy(tmp_path / "runs" / "failing" / "run", 8)


def test_failed_write_loses_only_its_checkpoint(watched, tmp_path):
    """Each write of a save fails once while the job trains; the other saves succeed."""
    cluster, writes = watched
    of_rank_0, of_rank_2 = learn(cluster, writes, tmp_path / "runs" / "plain")
    told_until = place_of(of_rank_0, "create", "latest_checkpointed_iteration.txt.tmp")
    faults = [*of_rank_0, *of_rank_2]
    costs = [index < told_until for index in range(len(of_rank_0))] + [True] * len(of_rank_2)
    first = 8
    at = [first + 2 * EVERY * index for index in range(len(faults))]
    steps = at[-1] + 3 * EVERY
    for write, step in zip(faults, at):
        writes.fail(write, step, errno.ENOSPC)
    made = job_of(tmp_path / "runs" / "failing", steps)
    job_id = cluster.submit(made)
    record = Record(cluster, job_id)
    job = cluster.wait_state(job_id, "SUCCEEDED")
    assert not writes.left() and job.attempt == 1, job
    log = (cluster.directory / "node-0.work" / job_id / "attempt-1" / "rank-0.log").read_text()
    reported = [int(line.split(" save ")[1].split("/")[0]) for line in log.splitlines() if "no checkpoint at" in line]
    assert reported == [step for step, cost in zip(at, costs) if cost]
    assert log.count("No space left on device") == len(faults), "each is reported once, also where it costs nothing"
    assert_tidy(tmp_path / "runs" / "failing" / "run", steps)
    assert record.losses()[-1][0] == steps
