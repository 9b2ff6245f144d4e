"""Client for asyncio. All tasks of one event loop can share it. setup.py derives fsdpd/client.py from this file."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from fsdpd import calls
from fsdpd.calls import (StepPages, StepsMissing, StepsUnread, Submission, TraceLine, TraceOrder, TraceWritten,
                         checked_etag)
from fsdpd.connection import Connection
from fsdpd.errors import Error, NotFound, SpecError, from_rpc
from fsdpd.follow import (RECONNECT_FOR_S, Cursor, EventCursor, JobChanged, LogCursor, LogLine, Outage, Update,
                          WatchCursor, closed_stream, is_ended, is_lost)
from fsdpd.places import Tries
from fsdpd.spec import SpecSource, SpecText, load_spec
from fsdpd.transport import AsyncTransport
from fsdpd.v1 import coordinator_pb2 as api
from fsdpd.v1.coordinator_pb2 import Event, Job, JobState, Node
from fsdpd.v1.job_pb2 import JobSpec
from fsdpd.v1.plan_pb2 import Plan, PlanSearch, Violation
from fsdpd.v1.steps_pb2 import ListStepsRequest, ListStepsResponse, StepRecord
from fsdpd.v1.timeline_pb2 import GetStepTimelineRequest, GetStepTimelineResponse
from fsdpd.v1.trace_pb2 import TraceJobRequest

A = TypeVar("A")
U = TypeVar("U")


class AsyncClient:
    """Client of the coordinators at `address`: HOST:PORT, or several with commas, of which the leader serves the calls.

    Use it with `async with`, or await close(). `timeout_s` is the deadline of a call; its default comes from
    clients/calls.json. A call that is safe to repeat is retried until its deadline while no coordinator is reachable.
    All methods raise fsdpd.Error, and OSError if the file of a spec cannot be read.
    """

    def __init__(self, address: str | None = None, *, ca_file: str | os.PathLike[str] | None = None,
                 token_file: str | os.PathLike[str] | None = None, token: str | None = None,
                 environ: Mapping[str, str] | None = None) -> None:
        connection = Connection(address, ca_file=ca_file, token_file=token_file, token=token, environ=environ)
        self.address = connection.address
        self._transport = AsyncTransport(connection)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections, which also ends open streams."""
        await self._transport.close()

    async def _run(self, request: Message, answer: type[A], timeout_s: float | None) -> A:
        """Makes the call of the request, and returns the response, which is an `answer`."""
        tries = Tries(request, timeout_s)
        while True:
            address, stub = self._transport.current()
            try:
                response: A = await getattr(stub, tries.method)(request, timeout=tries.left_s())
                return response
            except grpc.RpcError as error:
                failed = from_rpc(error)
            pause_s = tries.pause_s(failed, self._transport.move(address, failed))
            if pause_s is None or await self._transport.pause(pause_s):
                raise await self._transport.diagnosed(failed, address)

    async def _run_spec(self, source: SpecSource, make: Callable[[JobSpec], Message], answer: type[A],
                        timeout_s: float | None) -> A:
        """Runs a call with a spec. A SpecError has all violations, with their position in the source."""
        text = load_spec(source)
        if text.violations:
            raise text.refusal(await self._remote_violations(text, timeout_s))
        try:
            return await self._run(make(text.spec), answer, timeout_s)
        except SpecError as error:
            # The status of an error has limited space; validate() returns all violations.
            violations = await self._remote_violations(text, timeout_s) if error.more_violations else []
            raise text.with_places(error, violations) from None

    async def _remote_violations(self, text: SpecText, timeout_s: float | None) -> list[Violation]:
        """Returns the coordinator's violations of the readable part of the spec; none if the call fails."""
        try:
            return await self._judge(text.spec, timeout_s) if text.is_tree else []
        except Error:
            return []

    async def _judge(self, spec: JobSpec, timeout_s: float | None) -> list[Violation]:
        response = await self._run(api.ValidateJobRequest(spec=spec), api.ValidateJobResponse, timeout_s)
        return list(response.violations)

    # --- specs

    async def submit(self, spec: SpecSource, *, request_id: str | None = None, after: Sequence[str] = (),
                     preemptible: bool = False, project: str = "", timeout_s: float | None = None) -> Submission:
        """Submits a job. Submitting again with the same `request_id` (at most 64 characters; default: a new one), spec
        and options returns the same job. `after`: ids of jobs that must succeed first. `preemptible`: the job may be
        paused for one of higher priority. `project`: default is the token's project."""
        made = request_id or uuid.uuid4().hex  # Once, so that a retry finds the job of the first try.

        def request(read: JobSpec) -> Message:
            return api.SubmitJobRequest(spec=read, request_id=made, after=after, preemptible=preemptible,
                                        project=project)

        response = await self._run_spec(spec, request, api.SubmitJobResponse, timeout_s)
        return Submission(response.job, tuple(response.violations), made)

    async def validate(self, spec: SpecSource, *, timeout_s: float | None = None) -> list[Violation]:
        """Returns all violations of a spec: those of its text, and those that the coordinator finds in the readable
        part. Raises SpecError if the text is not a map of fields."""
        text = load_spec(spec)
        if not text.is_tree:
            raise text.refusal(())
        violations = await self._judge(text.spec, timeout_s)
        return list(text.refusal(violations).violations)

    async def plan(self, spec: SpecSource, *, timeout_s: float | None = None) -> Plan:
        response = await self._run_spec(spec, lambda read: api.PlanJobRequest(spec=read), api.PlanJobResponse, timeout_s)
        return response.plan

    async def search(self, spec: SpecSource, *, hold: Sequence[str] = (), timeout_s: float | None = None) -> PlanSearch:
        """Returns the fastest equivalent configurations of a spec. Fields in `hold` are not changed."""
        held = [hold] if isinstance(hold, str) else hold
        response = await self._run_spec(spec, lambda read: api.SearchPlansRequest(spec=read, hold=held),
                                        api.SearchPlansResponse, timeout_s)
        return response.search

    # --- jobs

    async def get(self, job_id: str, *, timeout_s: float | None = None) -> Job:
        return (await self._run(api.GetJobRequest(id=job_id), api.GetJobResponse, timeout_s)).job

    async def jobs(self, *, states: Iterable[JobState] = (), project: str = "", all_projects: bool = False,
                   selector: str = "", order_by: str = "", timeout_s: float | None = None) -> AsyncIterator[Job]:
        """Yields jobs in `states` that match `selector`, by default the newest first, and fetches pages as needed.
        `timeout_s` applies to each page. `project`: default is the token's project; with `all_projects`, or for a token
        without a project, jobs of all projects."""
        token = ""
        wanted = tuple(states)
        while True:
            request = api.ListJobsRequest(page_size=calls.PAGE, page_token=token, states=wanted, project=project,
                                          all_projects=all_projects, selector=selector, order_by=order_by)
            page = await self._run(request, api.ListJobsResponse, timeout_s)
            for job in page.jobs:
                yield job
            token = page.next_page_token
            if not token:
                return

    async def cancel(self, job_id: str, *, reason: str = "", grace_s: int | None = None,
                     etag: str | None = None, timeout_s: float | None = None) -> Job:
        request = api.CancelJobRequest(id=job_id, reason=reason, grace_seconds=grace_s, etag=checked_etag(etag))
        return (await self._run(request, api.CancelJobResponse, timeout_s)).job

    async def pause(self, job_id: str, *, reason: str = "", grace_s: int | None = None,
                    etag: str | None = None, timeout_s: float | None = None) -> Job:
        request = api.PauseJobRequest(id=job_id, reason=reason, grace_seconds=grace_s, etag=checked_etag(etag))
        return (await self._run(request, api.PauseJobResponse, timeout_s)).job

    async def resume(self, job_id: str, *, reason: str = "", etag: str | None = None,
                     timeout_s: float | None = None) -> Job:
        request = api.ResumeJobRequest(id=job_id, reason=reason, etag=checked_etag(etag))
        return (await self._run(request, api.ResumeJobResponse, timeout_s)).job

    async def retry(self, job_id: str, *, reason: str = "", etag: str | None = None,
                    timeout_s: float | None = None) -> Job:
        request = api.RetryJobRequest(id=job_id, reason=reason, etag=checked_etag(etag))
        return (await self._run(request, api.RetryJobResponse, timeout_s)).job

    async def delete(self, job_id: str, *, etag: str | None = None, timeout_s: float | None = None) -> Job:
        """Deletes a job and returns its last state. Not retried, because NotFound could then be the effect of the first
        try."""
        request = api.DeleteJobRequest(id=job_id, etag=checked_etag(etag))
        return (await self._run(request, api.DeleteJobResponse, timeout_s)).job

    def watch(self, job_id: str, *, reconnect_for_s: float = RECONNECT_FOR_S) -> AsyncIterator[Update]:
        """Yields the current job, then each change and step report until the job has ended. Reconnects after a lost
        connection, and raises Unavailable if it stays lost for `reconnect_for_s`."""
        return self._follow(WatchCursor(job_id), reconnect_for_s)

    async def _follow(self, cursor: Cursor[U], reconnect_for_s: float) -> AsyncGenerator[U, None]:
        outage = Outage(reconnect_for_s)
        while True:
            address, stub = self._transport.current()
            stream = getattr(stub, cursor.method)(cursor.request())
            try:
                async for response in stream:
                    outage.reset()
                    for update in cursor.take(response):
                        yield update
                lost: Error = closed_stream()
            except grpc.RpcError as error:
                lost = from_rpc(error)
            finally:
                stream.cancel()
            if cursor.ended:
                return
            await self._reconnect(outage, lost, address)

    async def wait(self, job_id: str, *, until: Callable[[Job], bool] = is_ended,
             reconnect_for_s: float = RECONNECT_FOR_S) -> Job:
        """Returns the job when `until` is true for it, or when it has ended."""
        async with contextlib.aclosing(self._follow(WatchCursor(job_id), reconnect_for_s)) as updates:
            async for update in updates:
                if isinstance(update, JobChanged) and (is_ended(update.job) or until(update.job)):
                    return update.job
        raise AssertionError("a watch ends with its job")

    async def logs(self, job_id: str, *, rank: int | None = None, attempt: int | None = None, follow: bool = False,
                   tail_lines: int = 0, evidence: bool = False, reconnect_for_s: float = RECONNECT_FOR_S) -> AsyncIterator[LogLine]:
        """Yields log lines of one rank or of all, of one attempt (default: the newest). With `follow`, until the job
        has ended, with reconnects. Without `follow`, Unavailable may mean that a node is not ready. With `evidence`,
        yields the agents' records of hung ranks instead of logs (not with `follow` or `tail_lines`); raises
        UNIMPLEMENTED if the coordinator is too old. `tail_lines` is at most 100,000."""
        cursor = LogCursor(api.TailLogsRequest(id=job_id, rank=rank, attempt=attempt, follow=follow, tail_lines=tail_lines,
                                               evidence=evidence))
        outage = Outage(reconnect_for_s if follow else 0)
        while True:
            address, stub = self._transport.current()
            stream = stub.TailLogs(cursor.request())
            try:
                async for response in stream:
                    for line in cursor.take(response):
                        outage.reset()
                        yield line
                return
            except grpc.RpcError as error:
                lost = from_rpc(error)
            finally:
                stream.cancel()
            await self._reconnect(outage, lost, address)

    async def steps(self, job_id: str, *, attempt: int | None = None, from_step: int = 1, to_step: int = 0, every: int = 1,
                    timeout_s: float | None = None) -> AsyncIterator[StepRecord | StepsMissing | StepsUnread]:
        """Yields the records of completed steps from the agents: by default each step of the job once, or all steps of
        `attempt`. With `every`, only its multiples. A StepsMissing replaces steps that cannot be read. A StepsUnread
        lists unreachable nodes if no step is missing. Fetches pages as needed."""
        pages = calls.StepPages()
        while from_step:
            request = ListStepsRequest(id=job_id, attempt=attempt, from_step=from_step, to_step=to_step, every=every)
            page = await self._run(request, ListStepsResponse, timeout_s)
            for each in pages.take(page):
                yield each
            from_step = page.next_step

    async def step_timeline(self, job_id: str, *, timeout_s: float | None = None) -> GetStepTimelineResponse:
        """Returns the step timeline of the newest step that rank 0 reported (at most one per second): the instructions
        of each lane with their times, the memory by component, and the attempt. NotFound before the first report."""
        return await self._run(GetStepTimelineRequest(id=job_id), GetStepTimelineResponse, timeout_s)

    async def trace(self, job_id: str, *, steps: int = 1, attempt: int | None = None, rank: int | None = None,
                    memory_snapshot: bool = False) -> AsyncIterator[TraceOrder | TraceWritten | TraceLine]:
        """Traces the next steps of a running job on all ranks. Yields a TraceOrder with the steps; a TraceWritten for
        each rank and step with the path of its file or an error; then TraceLines with the content of the files, JSON
        for Perfetto. Lines of one rank and step are in order, interleaved with others. `steps=0` traces nothing and
        yields the lines of existing traces of an attempt (default: the newest). `rank` selects one rank. The trace
        starts when the iterator is first advanced, and is requested only once."""
        request = TraceJobRequest(id=job_id, steps=steps, attempt=attempt, rank=rank, memory_snapshot=memory_snapshot)
        outage = Outage(0)
        while True:
            address, stub = self._transport.current()
            stream, received = stub.TraceJob(request), False
            try:
                async for response in stream:
                    received = True
                    for update in calls.trace_updates(response):
                        yield update
                return
            except grpc.RpcError as error:
                lost = from_rpc(error)
            finally:
                stream.cancel()
            if received:  # A retry would trace other steps.
                raise lost
            await self._reconnect(outage, lost, address)

    async def _reconnect(self, outage: Outage, lost: Error, address: str) -> None:
        if not is_lost(lost) or self._transport.closed:
            raise lost
        if await self._transport.pause(outage.next_pause_s(lost, self._transport.move(address, lost))):
            raise lost

    # --- nodes

    async def nodes(self, *, order_by: str = "", timeout_s: float | None = None) -> list[Node]:
        return list((await self._run(api.ListNodesRequest(order_by=order_by), api.ListNodesResponse, timeout_s)).nodes)

    async def events(self, *, job: str = "", node: str = "", since_unix_nanos: int = 0, after: int = 0,
                     newest_first: bool = False, timeout_s: float | None = None) -> AsyncIterator[Event]:
        """Yields the retained events of jobs and nodes, oldest first by default, and fetches pages as needed. An event
        of kind EVENTS_DELETED has the number of deleted events of a job or node. NotFound if the job does not exist and has
        no retained events."""
        found = False
        async for event in self._events(job, node, since_unix_nanos, after, newest_first, timeout_s):
            found |= calls.is_event_of(event, job)
            yield event
        if found or not job:
            return
        try:
            await self.get(job, timeout_s=timeout_s)
        except NotFound:  # The job may be deleted, with retained events that the other arguments exclude.
            async for event in self._events(job, "", 0, 0, False, timeout_s):
                if calls.is_event_of(event, job):
                    return
            raise

    async def _events(self, job: str, node: str, since_unix_nanos: int, after: int, newest_first: bool,
                      timeout_s: float | None) -> AsyncIterator[Event]:
        token = ""
        while True:
            request = api.ListEventsRequest(
                page_token=token, job=job, node=node, since_unix_nanos=since_unix_nanos,
                after=after if newest_first or not token else 0,
                order_by="sequence desc" if newest_first else "")
            page = await self._run(request, api.ListEventsResponse, timeout_s)
            for event in page.events:
                yield event
            token = page.next_page_token
            if not token:
                return

    def watch_events(self, *, job: str = "", node: str = "", after: int = 0,
                     reconnect_for_s: float = RECONNECT_FOR_S) -> AsyncIterator[Event]:
        """Yields each event after the cursor `after` (an Event.sequence; 0: from the oldest retained event) once and in
        order, and then new events without end. Reconnects after a lost connection, and raises Unavailable if it stays
        lost for `reconnect_for_s`. Raises an Error with the reason EVENTS_EXPIRED if events after `after` are no longer
        retained."""
        request = api.WatchEventsRequest(job=job, node=node, after=after)
        return self._follow(EventCursor(request), reconnect_for_s)

    async def cordon(self, node: str, *, reason: str = "", timeout_s: float | None = None) -> Node:
        request = api.CordonNodeRequest(node=node, reason=reason)
        return (await self._run(request, api.CordonNodeResponse, timeout_s)).node

    async def uncordon(self, node: str, *, timeout_s: float | None = None) -> Node:
        return (await self._run(api.UncordonNodeRequest(node=node), api.UncordonNodeResponse, timeout_s)).node

    async def drain(self, node: str, *, reason: str = "", grace_s: int | None = None, force: bool = False,
                    timeout_s: float | None = None) -> Node:
        """Cordons a node and moves its jobs: they save a checkpoint, leave, and resume elsewhere. Node.cordon.drain of
        nodes() has the progress. `grace_s`: time for ranks to save. `force`: also move jobs without checkpoints, which
        lose their steps."""
        request = api.DrainNodeRequest(node=node, reason=reason, grace_seconds=grace_s, force=force)
        return (await self._run(request, api.DrainNodeResponse, timeout_s)).node

    async def delete_node(self, node: str, *, force: bool = False, timeout_s: float | None = None) -> Node:
        """Removes a node that is lost or has left, with its cordon and preflight result, and returns its last state. An
        agent of that name may register again. WrongState for a node that is ready, not lost yet, or hosts ranks;
        without `force` also for a lost node whose ranks may still run (Node.unconfirmed_jobs)."""
        return (await self._run(api.DeleteNodeRequest(node=node, force=force), api.DeleteNodeResponse, timeout_s)).node

    async def preflight(self, node: str, *, timeout_s: float | None = None) -> Node:
        """Starts a preflight. The result is in Node.preflight of nodes() when in_preflight is false."""
        return (await self._run(api.PreflightNodeRequest(node=node), api.PreflightNodeResponse, timeout_s)).node

    async def version(self, *, timeout_s: float | None = None) -> str:
        """Returns the version of the coordinator."""
        return (await self._run(api.GetVersionRequest(), api.GetVersionResponse, timeout_s)).version
