"""An installation of release 0.1 is upgraded: its state with ended, running and queued jobs, a checkpoint, a spec and a
contexts file. release_0_1.tar.gz was recorded with record_upgrade.py."""

import pathlib
import tarfile

import pytest

from harness.cluster import Cluster, fsdpctl
from harness.stubs import coordinator, event
from harness.wait import wait_until
from integration.record_upgrade import STEPS, sized

JobState, EventKind = coordinator.JobState, event.EventKind
ARCHIVE = pathlib.Path(__file__).with_name("release_0_1.tar.gz")


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """The recorded files."""
    directory = tmp_path_factory.mktemp("release")
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(directory, filter="data")
    return directory


@pytest.fixture(scope="module")
def upgraded(release, tmp_path_factory):
    """A cluster of this release with the state of 0.1, and its jobs by name. All agents were replaced."""
    with Cluster(tmp_path_factory.mktemp("upgraded"), start=False) as cluster:
        cluster.coordinator_says("restore", "--from", release / "state", "--state-dir", cluster.state_dir)
        cluster.start_coordinator()
        before = {job.spec.name: job for job in cluster.jobs()}
        for index in range(3):
            cluster.start_agent(f"node-{index}", wait=False)
        cluster.wait_nodes(3)
        yield cluster, before
        cluster.cancel_all()


def test_jobs_keep_their_state_and_history(upgraded):
    cluster, jobs = upgraded
    ended = jobs["ended"]
    assert {name: JobState.Name(job.state) for name, job in jobs.items()} == {
        "ended": "JOB_STATE_SUCCEEDED", "running": "JOB_STATE_RUNNING", "queued": "JOB_STATE_QUEUED"}
    assert (ended.last_step.step, [each.step for each in ended.checkpoints]) == (STEPS, [2, 4])
    assert (ended.spec.data.ignore_index, ended.spec.train.initial.std) == (7, 0.03)
    kinds = [EventKind.Name(each.kind) for each in cluster.job(ended.id).events]
    assert (kinds[0], kinds[-1]) == ("EVENT_KIND_SUBMITTED", "EVENT_KIND_SUCCEEDED")
    cluster.ctl("describe", ended.id).expect(0)


def test_running_job_continues_on_replaced_agents(upgraded):
    cluster, jobs = upgraded
    job = jobs["running"]
    wait_until("it was launched again", lambda: cluster.job(job.id).attempt > job.attempt)
    wait_until("it trains", lambda: cluster.state(job.id) == "RUNNING" and cluster.job(job.id).last_step.step > 0)
    assert cluster.job(job.id).placements[0].agent_instance != job.placements[0].agent_instance


def test_queued_job_runs_once_nodes_suffice(upgraded):
    cluster, jobs = upgraded
    assert cluster.wait_state(jobs["queued"].id, "SUCCEEDED").last_step.step == 2


def test_checkpoint_is_read_and_continued(upgraded, release):
    cluster, _ = upgraded
    for step in (2, STEPS):
        fsdpctl("ckpt", "verify", release / f"run/iter_{step:07d}").expect(0)
    job_id = cluster.submit(sized(2, name="continued", steps=STEPS + 2, data={"ignore_index": 7},
                                  train={"initial": {"std": 0.03}}, checkpoint={"load": str(release / "run")}))
    job = cluster.wait_state(job_id, "SUCCEEDED")
    assert (job.restored.step, list(job.restored.notes), job.last_step.step) == (STEPS, [], STEPS + 2)


def test_spec_with_old_names_is_rejected_with_the_new_ones(release):
    done = fsdpctl("validate", "-f", release / "job.yaml", "--offline")
    assert done.code != 0 and done.err.count("[renamed_field]") == 2, done
    assert "renamed to ignore_index" in done.err and "renamed to std" in done.err


def test_contexts_file_is_read(upgraded, tmp_path):
    cluster, jobs = upgraded
    (tmp_path / "contexts.yaml").write_text(f"current: lab\ncontexts:\n  lab: {{server: {cluster.address}}}\n")
    listed = fsdpctl("get", jobs["ended"].id, env={"FSDPD_CONFIG": tmp_path / "contexts.yaml"}).expect(0)
    assert jobs["ended"].id in listed.out


def test_backup_before_the_upgrade(upgraded, tmp_path):
    """The page's command, with this release."""
    cluster, _ = upgraded
    cluster.coordinator_says("backup", "--state-dir", cluster.state_dir, "--to", tmp_path / "fsdpd-0.1")
    assert (tmp_path / "fsdpd-0.1").stat().st_size > 0
