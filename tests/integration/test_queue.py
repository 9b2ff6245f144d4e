"""Tests of queued jobs: their order, and the reason that names the resource they wait for."""

import re

import pytest

from harness.specs import ENDLESS, one_rank, spec, to_message
from harness.stubs import coordinator, plan
from harness.wait import wait_until


def test_queued_job_reports_reason(cluster):
    first = cluster.submit(spec(steps=ENDLESS, name="first"))
    cluster.wait_step(first, 1)
    second = cluster.submit(spec(steps=3, name="second"))
    wait_until("the second job says for whom it waits", lambda: first in cluster.job(second).reason)
    assert cluster.state(second) == "QUEUED"
    assert cluster.job(second).attempt == 0
    cluster.cancel(first)
    job = cluster.wait_state(second, "SUCCEEDED")
    assert job.start_unix_nanos >= cluster.job(first).end_unix_nanos


def test_jobs_start_in_submit_order(cluster):
    first = cluster.submit(spec(steps=ENDLESS, name="first"))
    cluster.wait_step(first, 1)
    waiting = [cluster.submit(spec(steps=2, name=f"waiting-{index}")) for index in range(3)]
    cluster.cancel(first)
    started = [cluster.wait_state(job_id, "SUCCEEDED").start_unix_nanos for job_id in waiting]
    assert started == sorted(started)


def test_queued_job_can_be_cancelled(cluster):
    first = cluster.submit(spec(steps=ENDLESS, name="first"))
    cluster.wait_step(first, 1)
    second = cluster.submit(spec(name="second"))
    job = cluster.cancel(second)
    assert job.state == coordinator.JOB_STATE_CANCELLED and job.attempt == 0


def test_job_larger_than_cluster_warns_and_waits(cluster):
    lacking = "needs 3 nodes with 2 free cpu slots each; node-0 has 2 of 2 free, node-1 has 2 of 2 free"
    made = spec(resources={"nodes": 3}, train={"global_batch": 6})
    answer = cluster.api().SubmitJob(coordinator.SubmitJobRequest(spec=to_message(made)), timeout=60)
    warned, = [fault for fault in answer.violations if fault.rule == "no_node_could_take_it"]
    assert (warned.severity, warned.field) == (plan.SEVERITY_WARN, "resources") and lacking in warned.reason, warned
    assert "only 2 ready nodes could take 2 ranks" in warned.reason and "the job waits for them" in warned.fix, warned
    wait_until("the reason says what is missing", lambda: lacking in cluster.job(answer.job.id).reason)
    assert cluster.state(answer.job.id) == "QUEUED"
    reported = cluster.ctl("submit", "-f", cluster.write_spec(made)).expect(0)
    assert ": warning: resources: " in reported.err and "[no_node_could_take_it]" in reported.err and lacking in reported.err, reported


@pytest.mark.parametrize("late", [0, 1])
def test_queued_job_starts_when_agent_joins(own, late):
    with own(agents=late) as cluster:
        job_id = cluster.submit(spec(steps=3, resources={"nodes": late + 1}, train={"global_batch": 4}))
        wait_until("it waits with a reason", lambda: cluster.job(job_id).reason)
        assert cluster.state(job_id) == "QUEUED"
        cluster.start_agent("late")
        cluster.wait_state(job_id, "SUCCEEDED")


def test_placement_by_labels_and_nvlink_domain(own):
    with own(agents=0) as cluster:
        cluster.start_agent("a", label="zone=a")
        cluster.start_agent("b", label="gpu=h200,zone=b", nvlink_domain="rack-1")
        cluster.start_agent("c", label="zone=c", nvlink_domain="rack-1")

        def nodes_of(job_id):
            return [each.node for each in cluster.wait_state(job_id, "SUCCEEDED").placements]

        chooses = one_rank(steps=2)
        chooses["resources"]["node_selector"] = "gpu=h200,zone!=a"
        path = cluster.write_spec(chooses)
        assert "node_selector" not in cluster.ctl("validate", "-f", path).expect(0).err
        assert nodes_of(cluster.submit(chooses)) == ["b"]
        cluster.wait_idle()  # A job has succeeded when its ranks have; their slots are free a moment later.
        assert nodes_of(cluster.submit(spec(steps=2))) == ["b", "c"], "a has no NVLink to another"
        chooses["resources"]["node_selector"] = "gpu=b300"
        waits = cluster.ctl("submit", "-f", cluster.write_spec(chooses)).expect(0)
        assert "[node_selector_meets_nodes]" in waits.err and "matches 0 of 3 ready nodes" in waits.err, waits
        job_id = waits.out.strip()
        wait_until("it waits for labels", lambda: cluster.job(job_id).waiting.code == coordinator.Job.Waiting.CODE_LABELS)
        reported = cluster.ctl("get", job_id).expect(0).out
        assert "(labels) needs 1 node of gpu=b300 with 1 free cpu slot; a is not gpu=b300, b is not gpu=b300" in reported, reported
        cluster.start_agent("new", label="gpu=b300")
        assert nodes_of(job_id) == ["new"]
        wide = cluster.ctl("nodes", "-o", "wide", "-l", "gpu=h200").expect(0).out.splitlines()
        assert len(wide) == 2 and re.search(r"^b .* rack-1 +gpu=h200,zone=b$", wide[1]), wide
        chooses["resources"]["node_selector"] = "gpu in (h200)"
        refused = cluster.ctl("submit", "-f", cluster.write_spec(chooses)).expect(3)
        assert "[node_selector_is_one]" in refused.err, refused


def test_higher_priority_starts_first(cluster):
    first = cluster.submit(spec(steps=ENDLESS, name="first"))
    cluster.wait_step(first, 1)
    plain = cluster.submit(spec(steps=2, name="plain"))
    urgent = cluster.submit(spec(steps=2, name="urgent", priority=7))
    codes = coordinator.Job.Waiting
    wait_until("both say in which place they wait", lambda: [
        (cluster.job(each).waiting.code, cluster.job(each).waiting.queue_position) for each in (urgent, plain)
    ] == [(codes.CODE_SLOTS, 1), (codes.CODE_QUEUE_ORDER, 2)])
    assert list(cluster.job(urgent).waiting.jobs) == [first]
    assert list(cluster.job(plain).waiting.jobs) == [urgent]
    wait_until("the reason names the priority", lambda: f"behind job {urgent}, which has priority 7" in cluster.job(plain).reason)
    table = cluster.ctl("get", "--state", "queued").expect(0).out
    assert "#1 (slots) " in table and "#2 (queue_order) " in table, table
    assert f"waits for: {first} to end or be paused" in cluster.ctl("describe", urgent).expect(0).out
    cluster.cancel(first)
    started = [cluster.wait_state(each, "SUCCEEDED").start_unix_nanos for each in (urgent, plain)]
    assert started == sorted(started)
    assert not cluster.job(urgent).HasField("waiting")


def test_rejects_priority_out_of_range(cluster):
    path = cluster.write_spec(spec(priority=1001))
    refused = cluster.ctl("submit", "-f", path).expect(3)
    assert "error: priority is 1001" in refused.err and "[priority_range]" in refused.err


def submit(cluster, made, *flags):
    """Submits with fsdpctl; returns the job's id."""
    return cluster.ctl("submit", "-f", cluster.write_spec(made), *flags).expect(0).out.strip()


def test_job_starts_after_dependencies(cluster):
    first = submit(cluster, one_rank(steps=ENDLESS, name="first"))
    second = submit(cluster, one_rank(steps=2, name="second"), "--after", first)
    third = submit(cluster, one_rank(steps=2, name="third"), "--after", f"{first},{second}")
    wait_until("it says for whom it waits", lambda: cluster.job(second).reason == f"waits for the success of {first}")
    passing = cluster.submit(one_rank(steps=2, name="passing"))
    cluster.wait_state(passing, "SUCCEEDED")  # A job that waits for another does not block the queue.
    cluster.cancel(first)
    wait_until("the reason says what helps", lambda: f"fsdpctl retry {first}" in cluster.job(second).reason)
    assert "(after_failed) job " in cluster.ctl("get", second).expect(0).out
    refused = cluster.ctl("delete", first).expect(7)
    assert "wait for its success" in refused.err and "[JOB_HAS_DEPENDENTS]" in refused.err
    late = cluster.ctl("submit", "-f", cluster.write_spec(one_rank()), "--after", first).expect(7)
    assert "has been cancelled, so this job would never start" in late.err, late.err
    assert cluster.ctl("submit", "-f", cluster.write_spec(one_rank()), "--after", "none-1").expect(4)
    for each in (second, third):
        cluster.ctl("cancel", each).expect(0)


def test_dependency_survives_coordinator_restart(own):
    with own(agents=1) as cluster:
        first = submit(cluster, one_rank(steps=300, name="first"))
        second = submit(cluster, one_rank(steps=2, name="second"), "--after", first)
        cluster.coordinator.kill()
        cluster.start_coordinator(listen=cluster.address)
        done = cluster.wait_state(second, "SUCCEEDED")
        assert done.start_unix_nanos >= cluster.job(first).end_unix_nanos > 0
        assert f"after:     {first} (succeeded)\n" in cluster.ctl("describe", second).expect(0).out


def test_array_creates_job_per_value(cluster, tmp_path):
    made = one_rank(steps=ENDLESS, name="sweep", checkpoint={"dir": str(tmp_path / "runs")})
    flags = ["--array", "train.seed=1,2", "--array", "optimizer.adamw.lr=1e-3,1e-2"]
    path = cluster.write_spec(made)
    submitted = cluster.ctl("submit", "-f", path, *flags, "--request-id", "sweep").expect(0)
    ids = submitted.out.split()
    array = re.search(r"fsdpctl cancel --array (\S+)`", submitted.err)[1]
    jobs = [cluster.job(each) for each in ids]
    assert array == "sweep"
    assert [(job.request_id, job.spec.train.seed, job.spec.optimizer.adamw.lr) for job in jobs] == [
        ("sweep/0", 1, 1e-3), ("sweep/1", 1, 1e-2), ("sweep/2", 2, 1e-3), ("sweep/3", 2, 1e-2)]
    assert [job.id.rsplit("-", 1)[0] for job in jobs] == [f"sweep-{index}" for index in range(4)]
    assert [job.spec.checkpoint.dir for job in jobs] == [str(tmp_path / "runs" / str(index)) for index in range(4)]
    again = cluster.ctl("submit", "-f", path, *flags, "--request-id", "sweep").expect(0)
    assert again.out == submitted.out and array in again.err, "a repeated submit is the same jobs"
    bad = cluster.ctl("submit", "-f", path, "--array", "train.seed=3,x", "--set", "checkpoint.dir=other").expect(3)
    assert "train.seed" in bad.err and len(cluster.ctl("get", "--array", array).expect(0).out.splitlines()) == 5
    for each in ids:
        cluster.wait_state(each, "RUNNING")
    assert cluster.ctl("cancel", "--array", array, "--wait").expect(0).out.count("\n") == 4
    assert {cluster.state(each) for each in ids} == {"CANCELLED"}
    cluster.ctl("cancel", "--array", "none").expect(4)
    cluster.ctl("cancel").expect(2)
