"""Tests of coordinator failures (crash, full disk, port in use): running jobs continue, and no accepted job is lost."""

import json
import os
import signal
import time

import grpc
import pytest

from harness.cluster import Cluster
from harness.processes import listening
from harness.small_disk import fill, small_disk
from harness.specs import ENDLESS, one_rank, spec, to_message
from harness.stubs import coordinator
from harness.wait import measured, wait_until


def crash_and_restart(cluster, meanwhile=lambda: None):
    cluster.coordinator.kill()
    meanwhile()
    cluster.start_coordinator(listen=cluster.address)
    cluster.wait_nodes(2)


def test_running_job_survives_coordinator_crash(own):
    with own() as cluster:
        job_id = cluster.submit(spec(steps=ENDLESS))
        cluster.wait_step(job_id, 2)
        ranks = {each.pid for each in cluster.all_ranks()}
        before = cluster.job(job_id)
        crash_and_restart(cluster)
        cluster.wait_step(job_id, before.last_step.step + 5)
        after = cluster.job(job_id)
        assert after.attempt == 1 and after.request_id == before.request_id
        assert {each.pid for each in cluster.all_ranks()} == ranks, "the same processes go on"
        assert cluster.state(job_id) == "RUNNING"
        assert cluster.cancel(job_id).state == coordinator.JOB_STATE_CANCELLED


def test_stopped_coordinator_fails_no_job(own):
    with own() as cluster:
        job_id = cluster.submit(spec(steps=800))
        cluster.wait_step(job_id, 2)
        os.kill(cluster.coordinator.pid, signal.SIGSTOP)
        # Longer than the lease of an agent (10 s): no event ends this, the time itself is the fault.
        time.sleep(15)
        os.kill(cluster.coordinator.pid, signal.SIGCONT)
        cluster.wait_nodes(2)
        job = cluster.wait_state(job_id, "SUCCEEDED")
        assert job.attempt == 1, job
        assert "coordinator was suspended" in cluster.coordinator.text()


def test_job_that_ends_during_outage_succeeds(own):
    with own() as cluster:
        job_id = cluster.submit(spec(steps=100))
        cluster.wait_step(job_id, 1)
        crash_and_restart(cluster, lambda: wait_until("the ranks finish", lambda: not cluster.all_ranks()))
        job = cluster.wait_state(job_id, "SUCCEEDED")
        assert job.attempt == 1 and job.last_step.step == 100


def test_acknowledged_calls_survive_crashes(own):
    with own(agents=0) as cluster:
        ids = []
        for number in range(3):
            ids += [cluster.submit(spec(name=f"job-{number}-{index}")) for index in range(3)]
            cluster.coordinator.kill()
            cluster.start_coordinator(listen=cluster.address)
        known = [job.id for job in cluster.api().ListJobs(coordinator.ListJobsRequest(), timeout=60,
                                                           wait_for_ready=True).jobs]
        assert known == ids[::-1], "all of them, newest first"
        assert {cluster.state(job_id) for job_id in ids} == {"QUEUED"}


def test_coordinator_shutdown_keeps_jobs_running(own):
    with own() as cluster:
        job_id = cluster.submit(spec(steps=ENDLESS))
        cluster.wait_step(job_id, 2)
        assert cluster.coordinator.stop() == 0
        assert len(cluster.all_ranks()) == 4
        cluster.start_coordinator(listen=cluster.address)
        cluster.wait_nodes(2)
        cluster.cancel(job_id)


def test_port_in_use_fails_immediately(own):
    with own(agents=0) as cluster:
        first = cluster.coordinator
        second = Cluster(cluster.directory / "second", start=False)
        daemon = second.start_coordinator(listen=cluster.address, expect_serving=False)
        with measured("the second one has ended"):
            assert daemon.wait() == 1
        assert cluster.address in daemon.text(), daemon.text()
        assert first.running()
        cluster.nodes()


def test_rejects_second_coordinator_on_same_state(own):
    with own(agents=0) as cluster:
        second = Cluster(cluster.directory / "second", start=False)
        second.state_dir = cluster.state_dir
        daemon = second.start_coordinator(expect_serving=False)
        with measured("the second one has ended"):
            assert daemon.wait() == 1
        assert str(cluster.state_dir) in daemon.text(), daemon.text()
        cluster.nodes()


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk") as directory:
        yield directory


def submit_until_refused(cluster):
    """Submits until the disk is full: SQLite may have free pages for a few more jobs. Returns the jobs and the error.
    """
    taken = []
    for number in range(200):
        try:
            request = coordinator.SubmitJobRequest(spec=to_message(spec(name=f"more-{number}")))
            taken.append(cluster.api().SubmitJob(request, timeout=60).job.id)
        except grpc.RpcError as error:
            return taken, error
    return pytest.fail("a full disk took 200 jobs")


def test_cancel_works_on_full_state_disk(disk, tmp_path):
    cluster = Cluster(tmp_path / "cluster", agents=1)
    cluster.state_dir = disk / "state"
    with cluster:
        job_id = cluster.submit(one_rank(steps=ENDLESS))
        cluster.wait_step(job_id, 2)
        filler = fill(disk)
        submit_until_refused(cluster)
        cluster.api().CancelJob(coordinator.CancelJobRequest(id=job_id, grace_seconds=5), timeout=60)
        wait_until("its ranks are gone", lambda: not cluster.all_ranks())
        filler.unlink()
        cluster.wait_state(job_id, "CANCELLED")
        cluster.cancel_all()


def test_full_disk_rejects_jobs_and_loses_none(disk, tmp_path):
    cluster = Cluster(tmp_path / "cluster", agents=0)
    cluster.state_dir = disk / "state"
    with cluster:
        kept = [cluster.submit(spec(name="kept"))]
        filler = fill(disk)
        taken, refused = submit_until_refused(cluster)
        kept += taken
        assert refused.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert "disk" in refused.details().lower(), refused.details()
        assert cluster.coordinator.running()
        filler.unlink()
        kept.append(cluster.submit(spec(name="after")))
        cluster.coordinator.kill()
        cluster.start_coordinator(listen=cluster.address)
        request = coordinator.ListJobsRequest(page_size=500)
        known = [job.id for job in cluster.api().ListJobs(request, timeout=60, wait_for_ready=True).jobs]
        assert known[::-1] == kept, "each acknowledged job and no refused one"


def test_coordinator_starts_on_full_disk_and_recovers(disk, tmp_path):
    cluster = Cluster(tmp_path / "cluster", agents=1)
    cluster.state_dir = disk / "state"
    with cluster:
        job_id = cluster.submit(one_rank(steps=ENDLESS))
        cluster.wait_step(job_id, 2)
        rank = cluster.all_ranks()[0].pid
        # A clean exit leaves no free pages in SQLite's other files.
        assert cluster.coordinator.stop() == 0
        filler = fill(disk)
        cluster.start_coordinator(listen=cluster.address)
        assert "is full; free some space" in cluster.coordinator.text(), cluster.coordinator.text()
        cluster.wait_nodes(1)
        step = cluster.job(job_id).last_step.step
        cluster.wait_step(job_id, step + 2)
        assert [each.pid for each in cluster.all_ranks()] == [rank], "the rank lives on"
        with pytest.raises(grpc.RpcError) as refused:
            cluster.submit(one_rank())
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, refused.value
        assert f"the disk of {cluster.state_dir}/fsdpd.db is full" in refused.value.details(), refused.value
        reported = cluster.api().CancelJob(coordinator.CancelJobRequest(id=job_id, grace_seconds=5), timeout=60).job
        assert "not on disk yet" in reported.reason, reported
        wait_until("its rank is gone", lambda: not cluster.all_ranks())
        shown = wait_until("only the store is missing", lambda: (job := cluster.job(job_id)) and
                           job.reason.startswith("waiting only for the store: cancelled, all ranks are gone") and job)
        assert "not on disk yet" in shown.reason, shown
        listed = [job for job in cluster.jobs() if job.id == job_id][0]
        assert (listed.state, listed.reason) == (shown.state, shown.reason), "a list shows the reason of the job"
        result = cluster.ctl("cancel", job_id, "--wait", "--timeout", 1).expect(6)
        assert "did not end within --timeout; it is cancelling: waiting only for the store" in result.err, result
        filler.unlink()
        cluster.wait_state(job_id, "CANCELLED")
        cluster.wait_state(cluster.submit(one_rank()), "SUCCEEDED")
