"""Jobs that wait: in order, with a reason that names what they wait for."""

import re

import grpc
import pytest

from harness.specs import ENDLESS, spec, to_message
from harness.stubs import coordinator
from harness.wait import wait_until


def test_a_job_waits_for_the_ranks_of_another_and_says_so(cluster):
    first = cluster.submit(spec(steps=ENDLESS, name="first"))
    cluster.wait_step(first, 1)
    second = cluster.submit(spec(steps=3, name="second"))
    wait_until("the second job says for whom it waits", lambda: first in cluster.job(second).reason)
    assert cluster.state(second) == "QUEUED"
    assert cluster.job(second).attempt == 0
    cluster.cancel(first)
    job = cluster.wait_state(second, "SUCCEEDED")
    assert job.start_unix_nanos >= cluster.job(first).end_unix_nanos


def test_jobs_start_in_the_order_of_their_submits(cluster):
    first = cluster.submit(spec(steps=ENDLESS, name="first"))
    cluster.wait_step(first, 1)
    waiting = [cluster.submit(spec(steps=2, name=f"waiting-{index}")) for index in range(3)]
    cluster.cancel(first)
    started = [cluster.wait_state(job_id, "SUCCEEDED").start_unix_nanos for job_id in waiting]
    assert started == sorted(started)


def test_a_waiting_job_can_be_cancelled(cluster):
    first = cluster.submit(spec(steps=ENDLESS, name="first"))
    cluster.wait_step(first, 1)
    second = cluster.submit(spec(name="second"))
    job = cluster.cancel(second)
    assert job.state == coordinator.JOB_STATE_CANCELLED and job.attempt == 0


def test_a_job_for_nodes_that_are_not_there_waits_or_is_refused_with_the_numbers(cluster):
    made = spec(resources={"nodes": 3}, train={"global_batch": 6})
    try:
        job = cluster.api().SubmitJob(coordinator.SubmitJobRequest(spec=to_message(made)), timeout=60).job
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.FAILED_PRECONDITION and "3" in error.details()
    else:
        wait_until("the reason says what is missing",
                   lambda: {"3", "2"} <= set(re.findall(r"\d+", cluster.job(job.id).reason)))
        assert cluster.state(job.id) == "QUEUED"


@pytest.mark.parametrize("late", [0, 1])
def test_a_waiting_job_starts_when_an_agent_joins(own, late):
    with own(agents=late) as cluster:
        job_id = cluster.submit(spec(steps=3, resources={"nodes": late + 1}, train={"global_batch": 4}))
        wait_until("it waits with a reason", lambda: cluster.job(job_id).reason)
        assert cluster.state(job_id) == "QUEUED"
        cluster.start_agent("late")
        cluster.wait_state(job_id, "SUCCEEDED")


def test_a_higher_priority_goes_first_and_each_that_waits_says_why(cluster):
    first = cluster.submit(spec(steps=ENDLESS, name="first"))
    cluster.wait_step(first, 1)
    plain = cluster.submit(spec(steps=2, name="plain"))
    urgent = cluster.submit(spec(steps=2, name="urgent", priority=7))
    codes = coordinator.Job.Waiting
    wait_until("both say in which place they wait", lambda: [
        (cluster.job(each).waiting.code, cluster.job(each).waiting.place) for each in (urgent, plain)
    ] == [(codes.CODE_RANKS, 1), (codes.CODE_BEHIND, 2)])
    assert list(cluster.job(urgent).waiting.jobs) == [first]
    assert list(cluster.job(plain).waiting.jobs) == [urgent]
    wait_until("the reason names the priority", lambda: f"behind job {urgent}, which has priority 7" in cluster.job(plain).reason)
    table = cluster.ctl("get", "--state", "queued").expect(0).out
    assert "#1 (ranks) " in table and "#2 (behind) " in table, table
    assert f"waits for: the end or a pause of {first}" in cluster.ctl("describe", urgent).expect(0).out
    cluster.cancel(first)
    started = [cluster.wait_state(each, "SUCCEEDED").start_unix_nanos for each in (urgent, plain)]
    assert started == sorted(started)
    assert not cluster.job(urgent).HasField("waiting")


def test_a_priority_beyond_its_bounds_is_refused_with_its_field(cluster):
    path = cluster.write_spec(spec(priority=1001))
    refused = cluster.ctl("submit", "-f", path).expect(3)
    assert "error: priority is 1001" in refused.err and "[priority_range]" in refused.err
