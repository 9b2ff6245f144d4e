"""Tests of the step timeline of a real job, as measured by rank 0 and shown by the API, the web UI and fsdpctl."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request

import grpc
import pytest

from harness.cluster import Cluster
from harness.specs import ENDLESS, one_rank, spec
from harness.stubs import timeline as api
from harness.wait import wait_until

PLANNED = ["main_params", "optimizer", "gradients", "replica", "gather_buffers", "reduce_buffers"]


def reported(cluster, job_id):
    return cluster.api().GetStepTimeline(api.GetStepTimelineRequest(id=job_id), timeout=30)


def newest(cluster, job_id, after=0):
    """Waits for the first timeline of a step after the given one."""
    def answer():
        try:
            found = reported(cluster, job_id)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.NOT_FOUND, error
            return None
        return found if found.timeline.step > after else None
    return wait_until(f"a timeline of a step after {after}", answer)


def refused(cluster, job_id, says, code=grpc.StatusCode.NOT_FOUND):
    with pytest.raises(grpc.RpcError) as raised:
        reported(cluster, job_id)
    assert raised.value.code() == code and says in raised.value.details(), raised.value


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("timeline"), agents=2, slots=2,
                 coordinator_flags=["--web-listen", "127.0.0.1:0"]) as made:
        yield made


@pytest.fixture(scope="module")
def job(cluster):
    """Four fully sharded ranks with two micro-batches each, which train until the module's tests are done."""
    job_id = cluster.submit(spec(steps=ENDLESS, train={"global_batch": 8}, fsdp={"strategy": "optim_grads_params"}))
    yield job_id
    cluster.cancel(job_id)


@pytest.fixture(scope="module")
def warm(cluster, job):
    """The timeline of a step after the first, which allocates memory that later steps reuse."""
    return newest(cluster, job, after=newest(cluster, job).timeline.step).timeline


def lanes(timeline):
    found = {}
    for run in timeline.runs:
        found.setdefault(run.lane, []).append((run.start_seconds, run.start_seconds + run.seconds, run.instruction))
    return found


def test_instructions_cover_step(warm):
    spans = [span for lane, each in lanes(warm).items() if lane != "copy" for span in each]
    assert max(stop for _, stop, _ in spans) == pytest.approx(warm.step_seconds, rel=0.05)
    assert min(start for start, _, _ in spans) > -warm.step_seconds
    assert warm.runs_omitted == 0 and warm.samples_merged == 0


def test_lane_runs_one_instruction_at_a_time(warm):
    assert set(lanes(warm)) == {"compute", "gather", "reduce"}
    for lane, spans in lanes(warm).items():
        for before, after in zip(spans, spans[1:]):
            assert before[1] <= after[0] + 1e-9, (lane, before, after)


def test_has_every_instruction(warm):
    """Each unit gathers for forward and backward of each micro-batch, computes both, and reduces."""
    names = [run.instruction for run in warm.runs]
    for name in ("Forward layer.0 mb 0", "Backward layer.0 mb 1", "Reduce layer.1 mb 1 adding", "Norm", "Update layer.0"):
        assert names.count(name) == 1, (name, names)
    assert names.count("Gather layer.0") >= 2 and not any("Release" in name for name in names)


def test_highest_memory_matches_reported_peak(cluster, job, warm):
    assert list(warm.components)[:6] == PLANNED
    assert list(warm.components)[6:] == ["arena_unused", "activations_and_workspace"]
    assert all(len(sample.bytes) == len(warm.components) and min(sample.bytes) >= 0 for sample in warm.memory)
    times = [sample.start_seconds for sample in warm.memory]
    assert times[0] == 0 and times == sorted(set(times)) and times[-1] <= warm.step_seconds * 1.05
    report = cluster.job(job).last_step.memory
    highest = max(sum(sample.bytes) for sample in warm.memory)
    assert highest == pytest.approx(report.peak_bytes, rel=0.02)
    plan = {component.name: component.bytes for component in cluster.job(job).memory_plan.components}
    for index, component in enumerate(PLANNED[:3]):
        assert warm.memory[0].bytes[index] == plan[component], component
    arena = {sum(sample.bytes[3:7]) for sample in warm.memory}
    assert arena == {report.arena_bytes}, "it stands, and is divided among what is live in it"
    gathered = {sample.bytes[PLANNED.index("gather_buffers")] for sample in warm.memory}
    assert min(gathered) == 0 < max(gathered) <= report.arena_bytes


def test_updates_during_training(cluster, job):
    first = newest(cluster, job)
    second = newest(cluster, job, after=first.timeline.step)
    assert first.attempt == second.attempt == 1
    assert second.timeline.unix_nanos > first.timeline.unix_nanos


def test_fsdpctl_prints_timeline(cluster, job, warm):
    found = json.loads(cluster.ctl("get", job, "--timeline", "-o", "json").expect(0).out)
    assert found["attempt"] == 1 and found["timeline"]["components"] == list(warm.components)
    assert {"lane", "instruction", "start_seconds", "seconds"} == set(found["timeline"]["runs"][0])
    text = cluster.ctl("get", job, "--timeline").expect(0).out
    assert re.match(r"step \d+ of attempt 1: [\d.]+ ms\n", text) and "\n  main_params " in text
    rows = [line.split() for line in text.splitlines()]
    assert {row[0] for row in rows if row} >= {"LANE", "compute", "gather", "reduce", "allocated"}


def page(cluster, method, job_id):
    url = re.findall(r"serving web UI url=(\S+)", cluster.coordinator.text())[-1]
    query = urllib.parse.quote(json.dumps({"id": job_id}))
    with urllib.request.urlopen(f"{url}api/{method}?q={query}", timeout=30) as answer:
        return json.load(answer)


def test_web_ui_fetches_timeline(cluster, job, warm):
    found = page(cluster, "GetStepTimeline", job)["timeline"]
    assert len(found["runs"]) == len(warm.runs) and found["components"] == list(warm.components)
    with pytest.raises(urllib.error.HTTPError) as raised:
        page(cluster, "GetStepTimeline", "nobody-abcdef")
    assert raised.value.code == 404 and json.load(raised.value)["reason"] == "JOB_NOT_FOUND"


def test_no_timeline_before_first_step(cluster):
    refused(cluster, "nobody-abcdef", "nobody-abcdef")
    job_id = cluster.submit(spec(resources={"nodes": 9}, train={"global_batch": 18}))
    refused(cluster, job_id, f"job {job_id} was not launched", grpc.StatusCode.FAILED_PRECONDITION)
    assert "[JOB_NOT_LAUNCHED]" in cluster.ctl("get", job_id, "--timeline").expect(7).err
    cluster.cancel(job_id)


def test_last_timeline_remains_until_job_is_deleted(own):
    with own(agents=1, slots=1) as cluster:
        job_id = cluster.submit(one_rank(steps=3))
        cluster.wait_state(job_id, "SUCCEEDED")
        assert reported(cluster, job_id).timeline.step >= 1
        cluster.ctl("delete", job_id).expect(0)
        refused(cluster, job_id, job_id)


def test_restarted_coordinator_receives_next_timeline(own):
    with own(agents=1, slots=1) as cluster:
        job_id = cluster.submit(one_rank(steps=ENDLESS))
        before = newest(cluster, job_id)
        cluster.coordinator.kill()
        cluster.start_coordinator(listen=cluster.address)
        after = newest(cluster, job_id, after=before.timeline.step)
        assert after.attempt == 1
        cluster.cancel(job_id)
