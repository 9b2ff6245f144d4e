"""Tests of the Python client's retries and limits, against a server with scripted failures."""

import asyncio
import contextlib
import inspect
import itertools
import re
import socket
from concurrent import futures

import fsdpd
import grpc
import pytest
from fsdpd.v1 import coordinator_pb2 as api, coordinator_pb2_grpc, plan_pb2, timeline_pb2, steps_pb2, trace_pb2
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from clients.jobs import small

DETAILS = "grpc-status-details-bin"


class Failing(coordinator_pb2_grpc.CoordinatorServicer):
    def __init__(self):
        self.failures, self.code, self.details = 0, grpc.StatusCode.UNAVAILABLE, []
        self.received, self.judged = [], []

    def _answer(self, request, context, response):
        self.received.append(request)
        if len(self.received) > self.failures:
            return response
        packed = [any_pb2.Any() for _ in self.details]
        for each, detail in zip(packed, self.details):
            each.Pack(detail)
        reported = status_pb2.Status(code=self.code.value[0], message="as told", details=packed)
        context.set_trailing_metadata([(DETAILS, reported.SerializeToString())])
        return context.abort(self.code, "as told")

    def SubmitJob(self, request, context):
        return self._answer(request, context, api.SubmitJobResponse(job=api.Job(id="one")))

    def ValidateJob(self, request, context):
        return api.ValidateJobResponse(violations=self.judged)

    def SearchPlans(self, request, context):
        return self._answer(request, context, api.SearchPlansResponse())

    def ListJobs(self, request, context):
        return self._answer(request, context, api.ListJobsResponse())

    def ListSteps(self, request, context):
        """A page of two; nobody has steps 3 and 4, and the job has made 6. Of "whole" nothing is missing, and a node
        that is away may have more."""
        if request.id == "whole":
            page = steps_pb2.ListStepsResponse(steps=[{"step": request.from_step}],
                                               next_step=(request.from_step + 1) % 5)
            page.unread.add(node="node-1", error="is away" if request.from_step < 4 else "is old")
            return self._answer(request, context, page)
        made = [step for step in (1, 2, 5, 6) if step >= request.from_step][:2]
        page = steps_pb2.ListStepsResponse(steps=[{"step": step} for step in made], next_step=3 if made[0] == 1 else 0)
        if made[0] == 5:
            page.missing.add(first=3, last=4)
            page.unread.add(node="node-1", error="is away")
        return self._answer(request, context, page)

    def GetStepTimeline(self, request, context):
        return self._answer(request, context, timeline_pb2.GetStepTimelineResponse(timeline={"step": 7}, attempt=3))

    def WatchEvents(self, request, context):
        """The newest event that the watcher has, the next two, and how far it is beyond them; then the stream is lost."""
        self.received.append(request.after)
        for sequence in range(max(request.after, 1), request.after + 3):
            yield api.WatchEventsResponse(event={"sequence": sequence}, cursor=sequence)
        yield api.WatchEventsResponse(cursor=request.after + 3)
        context.abort(grpc.StatusCode.UNAVAILABLE, "as told")

    def TraceJob(self, request, context):
        self.received.append(request)
        yield trace_pb2.TraceJobResponse(order={"first_step": 7, "steps": request.steps})
        context.abort(grpc.StatusCode.UNAVAILABLE, "as told")

    def DrainNode(self, request, context):
        return self._answer(request, context, api.DrainNodeResponse(node={"name": request.node}))

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


def test_submit_retry_has_same_request_id(server):
    server.failures = 3
    submission = server.client.submit(small(), timeout_s=100)
    assert submission.job.id == "one" and len(server.received) == 4
    assert {request.request_id for request in server.received} == {submission.request_id}
    assert server.client.submit(small()).request_id != submission.request_id


def test_submit_sends_options(server):
    server.client.submit(small(), after=["one", "two"], preemptible=True, project="vision")
    assert not list(server.client.jobs())
    assert not list(server.client.jobs(project="vision"))
    assert not list(server.client.jobs(all_projects=True))
    submit, *lists = server.received
    assert (list(submit.after), submit.preemptible, submit.project) == (["one", "two"], True, "vision")
    assert [(each.project, each.all_projects) for each in lists] == [("", False), ("vision", False), ("", True)]


def test_skips_unresponsive_coordinator(server):
    with socket.socket() as off, contextlib.ExitStack() as waiting:
        off.bind(("127.0.0.1", 0))
        off.listen(0)
        for _ in range(3):  # Who comes after them gets no answer.
            each = waiting.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(off.getsockname())
        addresses = f"127.0.0.1:{off.getsockname()[1]},{server.client.address}"
        with fsdpd.Client(addresses, environ={}) as client:
            assert not list(client.jobs())
    assert len(server.received) == 1


def test_delete_is_not_retried(server):
    server.failures = 1
    with pytest.raises(fsdpd.Unavailable):
        server.client.delete("one")
    assert len(server.received) == 1


def test_permanent_errors_are_not_retried(server):
    server.failures, server.code = 1, grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(fsdpd.Exhausted):
        server.client.submit(small())
    assert len(server.received) == 1


def test_reads_many_error_details(server):
    server.failures, server.code = 1, grpc.StatusCode.INVALID_ARGUMENT
    violations = [fsdpd.Violation(field=f"field_{index}", reason="x" * 100, rule="rule") for index in range(200)]
    server.details = [error_details_pb2.ErrorInfo(reason="INVALID_SPEC", domain="fsdpd", metadata={"rules": "rule"}),
                      error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=2)),
                      api.SpecViolations(violations=violations, more=7)]
    with pytest.raises(fsdpd.SpecError) as raised:
        server.client.submit(small())
    error = raised.value
    assert (error.reason, error.metadata, error.retry_after_s, error.more_violations) == \
        ("INVALID_SPEC", {"rules": "rule"}, 2, 7)
    assert list(error.violations) == violations and "and 7 more" in str(error)
    assert str(error).splitlines()[0].endswith("[INVALID_SPEC]")


def test_text_ends_with_the_error_id(server):
    server.failures, server.code = 1, grpc.StatusCode.RESOURCE_EXHAUSTED
    server.details = [error_details_pb2.ErrorInfo(reason="RESOURCE_EXHAUSTED", domain="fsdpd")]
    with pytest.raises(fsdpd.Exhausted) as raised:
        server.client.submit(small())
    assert raised.value.reason == "RESOURCE_EXHAUSTED" and str(raised.value).endswith(" [RESOURCE_EXHAUSTED]")


def test_reason_without_a_coordinator_is_the_code(server):
    server.failures = 1
    with pytest.raises(fsdpd.Unavailable) as raised:
        server.client.delete("one")
    assert raised.value.reason == "UNAVAILABLE" and str(raised.value).endswith(" [UNAVAILABLE]")
    with pytest.raises(fsdpd.InvalidRequest) as raised:
        server.client.cancel("one", etag="")
    assert raised.value.reason == "INVALID_ARGUMENT" and str(raised.value).endswith(" [INVALID_ARGUMENT]")


def test_accepts_large_responses(server):
    assert len(server.client.get("one").reason) == 15 << 20


@pytest.mark.parametrize("made", [fsdpd.Client, fsdpd.AsyncClient, fsdpd.connection.Connection])
def test_signatures_do_not_contain_environment(made, monkeypatch):
    monkeypatch.setenv("FSDPD_TOKEN", "a-secret")
    assert "a-secret" not in str(inspect.signature(made))


def public_methods(made):
    return {name: [str(each) for each in inspect.signature(method).parameters.values()]
            for name, method in inspect.getmembers(made, inspect.isfunction) if not name.startswith("_")}


def test_blocking_client_has_the_methods_of_the_asyncio_client():
    assert public_methods(fsdpd.Client) == public_methods(fsdpd.AsyncClient)
    source = inspect.getsource(fsdpd.client)
    assert not re.search(r"async|await", source.replace("asyncio", "").lower()), "setup.py derives it from aio.py"
    assert all(method.__doc__ == getattr(fsdpd.AsyncClient, name).__doc__
               for name, method in inspect.getmembers(fsdpd.Client, inspect.isfunction) if not name.startswith("_"))


SPEC = """name: two
train:
  stps: 5
  micro_batch: many
  global_batch: 3
data: {synthetic: {}, sequence_length: 8}
"""
JUDGED = [fsdpd.Violation(rule="steps_needed", field="train.steps", reason="is missing"),
          fsdpd.Violation(rule="micro_batch", field="train.micro_batch", reason="is missing"),
          fsdpd.Violation(rule="batch", field="train.global_batch", reason="3 do not divide"),
          fsdpd.Violation(rule="model", field="model", reason="is missing")]
# An unreadable step is not missing; steps without a record are reported at their position.
PLACES = [("model", 1, 1), ("unknown_field", 3, 3), ("wrong_type", 4, 16), ("batch", 5, 3)]


def places(violations):
    return [(fault.rule, fault.line, fault.column) for fault in violations]


def test_text_and_coordinator_faults_have_places(server, tmp_path):
    server.judged = JUDGED
    path = tmp_path / "two.yaml"
    path.write_text(SPEC)
    for call in (server.client.submit, server.client.plan, server.client.search):
        with pytest.raises(fsdpd.SpecError) as raised:
            call(path)
        assert places(raised.value.violations) == PLACES
        assert f"{path}:5:3: train.global_batch: 3 do not divide" in str(raised.value)
    assert places(server.client.validate(path)) == PLACES
    assert not server.received, "none was submitted"

    async def validated():
        async with fsdpd.AsyncClient(server.client.address, environ={}) as client:
            with pytest.raises(fsdpd.SpecError) as refused:
                await client.submit(path)
            return refused.value.violations, await client.validate(path)

    assert [places(violations) for violations in asyncio.run(validated())] == [PLACES, PLACES]


def test_coordinator_error_has_places_and_all_faults(server, tmp_path):
    server.judged = [fsdpd.Violation(rule="b", field="train.global_batch"), fsdpd.Violation(rule="a", field="name")]
    server.failures, server.code = 1, grpc.StatusCode.INVALID_ARGUMENT
    server.details = [error_details_pb2.ErrorInfo(reason="INVALID_SPEC", domain="fsdpd"),
                      api.SpecViolations(violations=server.judged[:1], more=1)]
    path = tmp_path / "one.yaml"
    path.write_text(SPEC.replace("stps", "steps").replace("many", "1"))
    with pytest.raises(fsdpd.SpecError) as raised:
        server.client.submit(path)
    assert places(raised.value.violations) == [("a", 1, 1), ("b", 5, 3)] and raised.value.more_violations == 0


def test_spec_error_counts_errors_and_marks_warnings(server, tmp_path):
    server.judged = [fsdpd.Violation(rule="a", field="name", reason="is long", severity=plan_pb2.SEVERITY_WARN)]
    path = tmp_path / "one.yaml"
    path.write_text(SPEC)
    with pytest.raises(fsdpd.SpecError) as raised:
        server.client.submit(path)
    assert raised.value.message == "the job spec has 2 errors" and len(raised.value.violations) == 3
    assert f"{path}:1:1: warning: name: is long [a]" in str(raised.value).splitlines()


def test_spec_error_has_each_violation_once(server):
    server.failures, server.code = 1, grpc.StatusCode.INVALID_ARGUMENT
    server.details = [error_details_pb2.ErrorInfo(reason="INVALID_SPEC", domain="fsdpd"),
                      api.SpecViolations(violations=[fsdpd.Violation(rule="a", field="name", reason="is long")])]
    with pytest.raises(fsdpd.SpecError) as raised:
        server.client.submit(small())
    assert str(raised.value).splitlines() == ["the job spec has 1 error [INVALID_SPEC]", "name: is long [a]"]


def test_str_path_suggests_pathlib(server):
    with pytest.raises(fsdpd.SpecError, match="pathlib"):
        server.client.submit("base.yaml")


def test_closed_client_raises(server):
    client = fsdpd.Client(server.client.address, environ={})
    client.close()
    for call in (lambda: client.get("one"), lambda: next(client.watch("one")), lambda: next(client.logs("one"))):
        with pytest.raises(fsdpd.Error, match="closed"):
            call()

    async def closed():
        made = fsdpd.AsyncClient(server.client.address, environ={})
        await made.close()
        with pytest.raises(fsdpd.Error, match="closed"):
            await made.get("one")

    asyncio.run(closed())


@pytest.mark.parametrize("address", ["h:99999", "h:0", "h:\u0667", "h:", ":7", "h", "ok:1,h:65536"])
def test_rejects_port_out_of_range(address):
    for kind in (fsdpd.Client, fsdpd.AsyncClient):
        with pytest.raises(ValueError, match="is not HOST:PORT with a port from 1 to 65535") as raised:
            kind(address, environ={})
        assert repr(address.split(",")[-1]) in str(raised.value)


def test_hold_accepts_single_string(server):
    server.client.search(small(), hold="parallel")
    server.client.search(small(), hold=["parallel", "fsdp"])
    assert [list(request.hold) for request in server.received] == [["parallel"], ["parallel", "fsdp"]]


def test_zero_timeout_is_not_default(server):
    with pytest.raises(fsdpd.DeadlineExceeded):
        server.client.get("one", timeout_s=0)


def ended(step):
    return api.WatchJobResponse(job=api.Job(revision=9, attempt=1, state=api.JOB_STATE_SUCCEEDED,
                                            last_step={"step": step}))


def test_watch_counts_missed_steps_at_end():
    cursor = fsdpd.follow.WatchCursor("one")
    running = api.WatchJobResponse(job=api.Job(revision=1, attempt=1, state=api.JOB_STATE_RUNNING))
    received = [running, api.WatchJobResponse(step={"step": 19}), ended(300)]
    assert [update.missed for each in received for update in cursor.take(each)] == [0, 0, 281]
    # Who comes after the end has missed nothing.
    assert [update.missed for update in fsdpd.follow.WatchCursor("one").take(ended(300))] == [0]


def test_dropped_lines_do_not_hide_new_lines():
    cursor = fsdpd.follow.LogCursor(api.TailLogsRequest(follow=True))

    def shown(gone, *lines):
        cursor.request()
        notice = f"[fsdpd-agent: {gone} lines (100 bytes) are gone here: of a rank's log the newest 1.00 MiB are kept]"
        received = [api.TailLogsResponse(attempt=1, line=notice, notice=True)] if gone else []
        received += [api.TailLogsResponse(attempt=1, line=line) for line in lines]
        return [line.text for each in received for line in cursor.take(each) if not line.notice]
    assert shown(0, "0", "1", "2") == ["0", "1", "2"]
    assert shown(2, "2", "3") == ["3"]
    assert shown(5, "5") == ["5"]


def test_evidence_requires_new_coordinator():
    cursor = fsdpd.follow.LogCursor(api.TailLogsRequest(evidence=True))
    assert [line.text for line in cursor.take(api.TailLogsResponse(line="lanes:", evidence=True))] == ["lanes:"]
    with pytest.raises(fsdpd.Error, match="evidence is not supported by this coordinator") as refused:
        list(cursor.take(api.TailLogsResponse(line="step 1")))
    assert refused.value.code == grpc.StatusCode.UNIMPLEMENTED


def test_steps_merge_pages_and_missing_ranges(server):
    server.failures = 1

    async def awaited():
        async with fsdpd.AsyncClient(server.client.address, environ={}) as client:
            return [each async for each in client.steps("one")]
    for read in (list(server.client.steps("one")), asyncio.run(awaited())):
        assert [each.first if isinstance(each, fsdpd.StepsMissing) else each.step for each in read] == [1, 2, 3, 5, 6]
        assert read[2] == fsdpd.StepsMissing(3, 4, {"node-1": "is away"})


def test_step_timeline_has_attempt(server):
    async def awaited():
        async with fsdpd.AsyncClient(server.client.address, environ={}) as client:
            return await client.step_timeline("one")
    for reported in (server.client.step_timeline("one"), asyncio.run(awaited())):
        assert (reported.timeline.step, reported.attempt) == (7, 3)


def test_reports_unreadable_nodes_without_missing_steps(server):
    async def awaited():
        async with fsdpd.AsyncClient(server.client.address, environ={}) as client:
            return [each async for each in client.steps("whole")]
    for read in (list(server.client.steps("whole")), asyncio.run(awaited())):
        reported = [each if isinstance(each, fsdpd.StepsUnread) else each.step for each in read]
        assert reported == [1, fsdpd.StepsUnread({"node-1": "is away"}), 2, 3, 4, fsdpd.StepsUnread({"node-1": "is old"})]


def test_event_watch_resumes_without_duplicates(server):
    async def awaited():
        async with fsdpd.AsyncClient(server.client.address, environ={}) as client:
            reported = []
            async for event in client.watch_events():
                reported.append(event)
                if len(reported) == 5:
                    return reported
    for read in (lambda: list(itertools.islice(server.client.watch_events(), 5)), lambda: asyncio.run(awaited())):
        server.received.clear()
        assert [event.sequence for event in read()] == [1, 2, 4, 5, 7]
        assert server.received == [0, 3, 6]


def test_started_trace_is_not_retried(server):
    async def awaited():
        async with fsdpd.AsyncClient(server.client.address, environ={}) as client:
            async for update in client.trace("one", steps=2):
                assert update == fsdpd.TraceOrder(first_step=7, steps=2)
    for read in (lambda: list(server.client.trace("one", steps=2)), lambda: asyncio.run(awaited())):
        server.received.clear()
        with pytest.raises(fsdpd.Unavailable, match="as told"):
            read()
        assert len(server.received) == 1


def test_drain_retry_has_same_arguments(server):
    server.failures = 1
    assert server.client.drain("node-0", reason="a fan", grace_s=5, force=True).name == "node-0"
    assert [(each.node, each.reason, each.grace_seconds, each.force) for each in server.received] == [("node-0", "a fan", 5, True)] * 2
