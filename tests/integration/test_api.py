"""Tests of the public gRPC API through Python's gRPC with stubs from the same protos."""

import os
import re
import subprocess
import sys
import uuid

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from harness.programs import ROOT
from harness.specs import spec, to_message
from harness.stubs import coordinator, plan as plan_pb


def details(error, kind):
    """Returns the google.rpc detail of one type in an error."""
    raw = dict(error.trailing_metadata())["grpc-status-details-bin"]
    for packed in status_pb2.Status.FromString(raw).details:
        if packed.Is(kind.DESCRIPTOR):
            unpacked = kind()
            packed.Unpack(unpacked)
            return unpacked
    return None


def refusal(call, request):
    with pytest.raises(grpc.RpcError) as raised:
        call(request, timeout=60)
    info = details(raised.value, error_details_pb2.ErrorInfo)
    assert info and info.domain == "fsdpd" and info.reason, "every refusal has an ErrorInfo"
    return raised.value


def test_health_and_reflection_respond(shared):
    # As bytes, so that no generated code is needed: HealthCheckRequest{service} in field 1, SERVING (1) in field 1.
    with grpc.insecure_channel(shared.address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        for service in (b"", b"fsdpd.v1.Coordinator", b"fsdpd.v1.AgentLink"):
            request = b"\x0a" + bytes([len(service)]) + service if service else b""
            assert check(request, timeout=60) == b"\x08\x01", service
        with pytest.raises(grpc.RpcError) as raised:
            check(b"\x0a\x07nothing", timeout=60)
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND
        # ServerReflectionRequest{list_services: ""}: field 7, an empty string.
        reflect = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        answer = next(reflect(iter([b"\x3a\x00"]), timeout=60))
        for service in (b"fsdpd.v1.Coordinator", b"grpc.health.v1.Health"):
            assert service in answer


def test_submit_with_same_request_id_returns_same_job(cluster):
    request = coordinator.SubmitJobRequest(spec=to_message(spec(steps=2)), request_id=uuid.uuid4().hex)
    first = cluster.api().SubmitJob(request, timeout=60).job
    assert cluster.api().SubmitJob(request, timeout=60).job.id == first.id
    cluster.wait_state(first.id, "SUCCEEDED")
    assert cluster.api().SubmitJob(request, timeout=60).job.id == first.id, "also after it has ended"
    other = coordinator.SubmitJobRequest(spec=to_message(spec(steps=3)), request_id=request.request_id)
    assert refusal(cluster.api().SubmitJob, other).code() == grpc.StatusCode.ALREADY_EXISTS


def test_unknown_job_is_not_found(shared):
    api = shared.api()
    for call, request in [(api.GetJob, coordinator.GetJobRequest(id="nobody-000000")),
                          (api.CancelJob, coordinator.CancelJobRequest(id="nobody-000000"))]:
        error = refusal(call, request)
        assert error.code() == grpc.StatusCode.NOT_FOUND and "nobody-000000" in error.details()
    for call, request in [(api.WatchJob, coordinator.WatchJobRequest(id="nobody-000000")),
                          (api.TailLogs, coordinator.TailLogsRequest(id="nobody-000000"))]:
        with pytest.raises(grpc.RpcError) as raised:
            list(call(request, timeout=60))
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND


def test_list_jobs_has_pages(cluster):
    api = cluster.api()
    # No cluster has such nodes: these jobs stay where they are.
    made = [api.SubmitJob(coordinator.SubmitJobRequest(
        spec=to_message(spec(name=f"paged-{index}", resources={"nodes": 50}, train={"global_batch": 100}))),
        timeout=60).job.id for index in range(5)]
    found, token = [], ""
    while True:
        page = api.ListJobs(coordinator.ListJobsRequest(page_size=2, page_token=token,
                                                        states=[coordinator.JOB_STATE_QUEUED]), timeout=60)
        assert len(page.jobs) <= 2
        found += [job.id for job in page.jobs]
        token = page.next_page_token
        if not token:
            break
    assert found == made[::-1]
    assert refusal(api.ListJobs, coordinator.ListJobsRequest(page_token="nonsense")).code() == \
        grpc.StatusCode.INVALID_ARGUMENT
    assert refusal(api.ListJobs, coordinator.ListJobsRequest(page_size=-1)).code() == grpc.StatusCode.INVALID_ARGUMENT


def test_watch_reports_whole_life_of_job(cluster):
    job_id = cluster.submit(spec(steps=3))
    updates = list(cluster.api().WatchJob(coordinator.WatchJobRequest(id=job_id), timeout=180))
    jobs = [update.job for update in updates if update.HasField("job")]
    assert jobs[-1].state == coordinator.JOB_STATE_SUCCEEDED, "the stream ends with the job"
    revisions = [job.revision for job in jobs]
    assert revisions == sorted(set(revisions))
    steps = [update.step.step for update in updates if update.HasField("step")]
    assert steps == sorted(set(steps))
    resumed = list(cluster.api().WatchJob(
        coordinator.WatchJobRequest(id=job_id, after_revision=jobs[-1].revision), timeout=60))
    assert all(update.job.revision >= jobs[-1].revision for update in resumed if update.HasField("job"))


def test_plan_and_validate_create_no_job(shared):
    api = shared.api()
    before = len(api.ListJobs(coordinator.ListJobsRequest(page_size=500), timeout=60).jobs)
    plan = api.PlanJob(coordinator.PlanJobRequest(spec=to_message(spec())), timeout=60).plan
    assert plan.world_size == 4 and plan.program_hash and plan.memory.peak_bytes > 0
    assert plan.memory.peak_bytes == sum(component.bytes for component in plan.memory.components)
    assert [unit.name for unit in plan.units] == ["embedding", "layer.0", "layer.1", "head"]
    assert plan.parameters == sum(unit.parameters for unit in plan.units)
    assert {instruction.op for instruction in plan.instructions} >= {"Gather", "Forward", "Backward", "Reduce", "Update"}
    faults = api.ValidateJob(coordinator.ValidateJobRequest(spec=to_message(spec())), timeout=60).violations
    # A model this small over four ranks deserves a warning, and nothing worse.
    assert [fault.severity for fault in faults] == [plan_pb.SEVERITY_WARN] and "resources" in faults[0].field
    assert len(api.ListJobs(coordinator.ListJobsRequest(page_size=500), timeout=60).jobs) == before


def test_nodes_report_slots_and_devices(shared):
    nodes = {node.name: node for node in shared.nodes()}
    assert set(nodes) == {"node-0", "node-1"}
    for name, node in nodes.items():
        assert node.connected and node.slots == 2 and node.metrics_endpoint == shared.metrics[name]
        assert node.version == shared.api().GetVersion(coordinator.GetVersionRequest(), timeout=60).version


def test_rejects_oversized_request(shared):
    made = to_message(spec())
    made.data.tokens.add(path="x" * (2 << 20))
    error = refusal(shared.api().SubmitJob, coordinator.SubmitJobRequest(spec=made))
    assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert shared.nodes()


BESIDE_PROTO_PLUS = """
import proto  # proto-plus, which every client library of Google Cloud brings along.

class Label(proto.Message):
    text = proto.Field(proto.STRING, number=1)

assert Label.deserialize(Label.serialize(Label(text="x"))).text == "x"
"""


def test_documented_stubs_work_with_proto_plus(shared, tmp_path):
    document = (ROOT / "docs/clients.md").read_text()
    command, = re.findall(r"^python (-m grpc_tools\.protoc .*?)\s+#", document, re.MULTILINE)
    client, = re.findall(r"^```python\n(.*?)^```", document, re.MULTILINE | re.DOTALL)
    subprocess.run(f"{sys.executable} {command.replace('OUT', str(tmp_path))}", shell=True, cwd=ROOT, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["fsdpd"]
    done = subprocess.run([sys.executable, "-c", BESIDE_PROTO_PLUS + client.replace("HOST:7777", shared.address)],
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [
                              str(tmp_path), os.environ.get("PYTHONPATH")]))}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"node-0", "node-1"}
