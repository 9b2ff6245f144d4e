"""Job that trains on text and saves checkpoints, its losses, and their comparison with an undisturbed run."""

import json
import os
import signal

import pytest

from harness import checkpoints
from harness.cluster import rank_of
from harness.processes import Daemon
from harness.programs import program
from harness.specs import corpus, spec
from harness.wait import wait_until

STEPS = 60  # With the pauses of cluster.py, actions of a test at step 10 happen while the job trains.
EVERY = 5


def saving(directory, name="saving", steps=STEPS, checkpoint=None, data=None, **sections):
    """A spec that trains on a text in its directory and saves to `directory`/run."""
    directory.mkdir(exist_ok=True)
    text = corpus(directory / "corpus.txt")
    saved = {"dir": str(directory / "run"), "every_steps": EVERY, "keep_last": 3, **(checkpoint or {})}
    read = {"synthetic": None, "tokens": [{"path": str(text), "type": "u8"}], **(data or {})}
    return spec(steps=steps, name=name, data=read, checkpoint=saved, **sections)


class Record:
    """`fsdpctl watch --record` of a job until its end; it continues after a coordinator restart."""

    def __init__(self, cluster, job_id):
        self.path = cluster.directory / f"{job_id}.jsonl"
        self.process = Daemon("watch", [program("client/fsdpctl"), "--server", cluster.address, "watch", job_id,
                                        "--record", self.path], cluster.directory / f"{job_id}.watch.log", cluster.mark)

    def losses(self, code=0):
        """After the job's end: (step, loss) in order of arrival; repeated steps occur twice."""
        assert self.process.wait() == code, self.process.text()
        reports = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [(int(report["step"]), report["loss"]) for report in reports]

    def text(self):
        return self.process.text()


class WholeRun:
    """An undisturbed job: its losses by step, and its last checkpoint."""

    def __init__(self, cluster, directory, made):
        self.job_id = cluster.submit(made)
        record = Record(cluster, self.job_id)
        self.job = cluster.wait_state(self.job_id, "SUCCEEDED")
        self.losses = dict(record.losses())
        self.steps = made["train"]["steps"]
        self.directory = directory / "run"
        self.records = checkpoints.records(checkpoints.path_of(self.directory, self.steps))
        assert set(range(min(self.losses), self.steps + 1)) == set(self.losses), "losses of some steps are missing"
        assert len(set(self.losses.values())) > len(self.losses) // 2, "losses do not change enough for a comparison"

    def assert_same(self, losses, directory):
        """Checks bitwise equality of each loss and of the last checkpoint."""
        differing = [(step, loss, self.losses[step]) for step, loss in losses
                     if step in self.losses and loss != self.losses[step]]
        assert not differing, differing
        assert self.steps in dict(losses)
        assert checkpoints.records(checkpoints.path_of(directory, self.steps)) == self.records

    def assert_close(self, losses, after):
        """Checks a run of another world size, which sums in another order, after the step `after`."""
        assert [step for step, _ in losses] == list(range(after + 1, self.steps + 1))
        for step, loss in losses:
            assert loss == pytest.approx(self.losses[step], rel=1e-5), step


def wait_committed(cluster, job_id, step):
    """Waits until the coordinator knows a checkpoint at `step` or later, while the job trains."""
    def known():
        job = cluster.job(job_id)
        assert job.end_unix_nanos == 0, f"ended before the checkpoint of step {step}:\n{job}"
        return job.checkpoints and job.checkpoints[-1].step >= step and job.checkpoints[-1].step
    return wait_until(f"job {job_id} has committed step {step}", known)


def submit_from(cluster, source, made):
    """Runs `submit --from` and returns the job's id."""
    path = cluster.write_spec(made, f"{made['name']}.yaml")
    return json.loads(cluster.ctl("submit", "-f", path, "--from", source, "-o", "json").expect(0).out)["id"]


def messages(job):
    return [event.message for event in job.events]


def kill_rank(cluster, rank):
    victim = next(each for each in cluster.all_ranks() if rank_of(each) == rank)
    os.kill(victim.pid, signal.SIGKILL)
