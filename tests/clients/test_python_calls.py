"""How the Python client calls, against a server that fails as it is told: what is repeated, and how much it takes."""

from concurrent import futures

import fsdpd
import grpc
import pytest
from fsdpd.v1 import coordinator_pb2 as api, coordinator_pb2_grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from clients.jobs import small

DETAILS = "grpc-status-details-bin"


class Failing(coordinator_pb2_grpc.CoordinatorServicer):
    def __init__(self):
        self.failures, self.code, self.details = 0, grpc.StatusCode.UNAVAILABLE, []
        self.heard = []

    def _answer(self, request, context, response):
        self.heard.append(request)
        if len(self.heard) > self.failures:
            return response
        packed = [any_pb2.Any() for _ in self.details]
        for each, detail in zip(packed, self.details):
            each.Pack(detail)
        told = status_pb2.Status(code=self.code.value[0], message="as told", details=packed)
        context.set_trailing_metadata([(DETAILS, told.SerializeToString())])
        return context.abort(self.code, "as told")

    def SubmitJob(self, request, context):
        return self._answer(request, context, api.SubmitJobResponse(job=api.Job(id="one")))

    def ListJobs(self, request, context):
        return self._answer(request, context, api.ListJobsResponse())

    def DeleteJob(self, request, context):
        return self._answer(request, context, api.DeleteJobResponse())

    def GetJob(self, request, context):
        return self._answer(request, context, api.GetJobResponse(job=api.Job(id=request.id, reason="x" * (15 << 20))))


@pytest.fixture
def server():
    made = Failing()
    serving = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.max_send_message_length", -1)])
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(made, serving)
    port = serving.add_insecure_port("127.0.0.1:0")
    serving.start()
    made.client = fsdpd.Client(f"127.0.0.1:{port}", environ={})
    with made.client:
        yield made
    serving.stop(0).wait()


def test_a_submit_is_repeated_as_the_same_request(server):
    server.failures = 3
    submission = server.client.submit(small(), timeout_s=100)
    assert submission.job.id == "one" and len(server.heard) == 4
    assert {request.request_id for request in server.heard} == {submission.request_id}
    assert server.client.submit(small()).request_id != submission.request_id


def test_what_is_said_beside_the_spec_is_asked_for(server):
    server.client.submit(small(), after=["one", "two"], preemptible=True, project="vision")
    assert not list(server.client.jobs())
    assert not list(server.client.jobs(project="vision"))
    assert not list(server.client.jobs(all_projects=True))
    submit, *lists = server.heard
    assert (list(submit.after), submit.preemptible, submit.project) == (["one", "two"], True, "vision")
    assert [(each.project, each.all_projects) for each in lists] == [("", False), ("vision", False), ("", True)]


def test_a_delete_is_not_repeated(server):
    server.failures = 1
    with pytest.raises(fsdpd.Unavailable):
        server.client.delete("one")
    assert len(server.heard) == 1


def test_what_no_repeat_would_change_is_not_repeated(server):
    server.failures, server.code = 1, grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(fsdpd.Exhausted):
        server.client.submit(small())
    assert len(server.heard) == 1


def test_details_of_a_refusal_are_read_however_many_they_are(server):
    server.failures, server.code = 1, grpc.StatusCode.INVALID_ARGUMENT
    faults = [fsdpd.Fault(field=f"field_{index}", reason="x" * 100, rule="rule") for index in range(200)]
    server.details = [error_details_pb2.ErrorInfo(reason="BAD_SPEC", domain="fsdpd", metadata={"rules": "rule"}),
                      error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=2)),
                      api.SpecFaults(faults=faults, more=7)]
    with pytest.raises(fsdpd.SpecError) as raised:
        server.client.submit(small())
    error = raised.value
    assert (error.reason, error.metadata, error.retry_after_s, error.more_faults) == \
        ("BAD_SPEC", {"rules": "rule"}, 2, 7)
    assert list(error.faults) == faults and "and 7 more" in str(error)


def test_large_answers_are_taken(server):
    assert len(server.client.get("one").reason) == 15 << 20
