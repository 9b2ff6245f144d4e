"""Client for asyncio, with the methods of fsdpd/client.py. All tasks of one event loop can share it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import grpc

from fsdpd import calls, connection
from fsdpd.calls import (Call, StepPages, StepsMissing, StepsUnread, Submission, TraceLine, TraceOrder,
                         TraceWritten)
from fsdpd.client import LOST, closed_stream
from fsdpd.errors import Error, NotFound, SpecError, from_rpc
from fsdpd.follow import (RECONNECT_FOR_S, Cursor, EventCursor, JobChanged, LogCursor, LogLine, Outage, Update,
                          WatchCursor, is_ended)
from fsdpd.places import Places, Tries
from fsdpd.spec import SpecSource, SpecText, load_spec
from fsdpd.v1.coordinator_pb2 import Event, Job, JobState, Node
from fsdpd.v1.coordinator_pb2_grpc import CoordinatorStub
from fsdpd.v1.job_pb2 import JobSpec
from fsdpd.v1.plan_pb2 import Plan, PlanSearch, Violation
from fsdpd.v1.steps_pb2 import StepRecord
from fsdpd.v1.timeline_pb2 import GetStepTimelineResponse

A = TypeVar("A")
U = TypeVar("U")
_Place = tuple[grpc.aio.Channel, Any]  # Channel and its stub.


class AsyncClient:
    """Asyncio version of fsdpd.Client, with the same methods. Use it with `async with`, or await close()."""

    def __init__(self, address: str | None = None, *, ca_file: str | os.PathLike[str] | None = None,
                 token_file: str | os.PathLike[str] | None = None, token: str | None = None,
                 environ: Mapping[str, str] | None = None) -> None:
        self._connection = connection.Connection(
            address, ca_file=ca_file, token_file=token_file, token=token, environ=environ)
        self.address = self._connection.address
        self._places: Places[_Place] = Places(self._connection.addresses, self._open)
        self._closed = False

    def _open(self, address: str) -> _Place:
        channel = self._connection.async_channel(address)
        return channel, CoordinatorStub(channel)  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections, which also ends open streams."""
        self._closed = True
        for channel, _ in self._places.open_places():
            await channel.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Error("the client is closed", code=grpc.StatusCode.CANCELLED)

    async def _run(self, call: Call[A], timeout_s: float | None) -> A:
        tries = Tries(call, timeout_s)
        while True:
            self._check_open()
            address, (_, stub) = self._places.current()
            try:
                return call.answer(await getattr(stub, call.method)(call.request, timeout=tries.left_s()))
            except grpc.RpcError as error:
                failed = from_rpc(error)
            pause_s = tries.pause_s(failed, self._places.move(address, failed))
            if pause_s is None:
                raise await asyncio.to_thread(self._connection.diagnosed, failed, address)
            await asyncio.sleep(pause_s)

    async def _run_spec(self, source: SpecSource, make: Callable[[JobSpec], Call[A]], timeout_s: float | None) -> A:
        """Runs a call with a spec. A SpecError has all violations, with their position in the source."""
        text = load_spec(source)
        if text.violations:
            raise text.refusal(await self._remote_violations(text, timeout_s))
        try:
            return await self._run(make(text.spec), timeout_s)
        except SpecError as error:
            # The status of an error has limited space; validate() returns all violations.
            violations = await self._remote_violations(text, timeout_s) if error.more_violations else []
            raise text.with_places(error, violations) from None

    async def _remote_violations(self, text: SpecText, timeout_s: float | None) -> list[Violation]:
        """Returns the coordinator's violations of the readable part of the spec; none if the call fails."""
        try:
            return await self._run(calls.validate(text.spec), timeout_s) if text.is_tree else []
        except Error:
            return []

    # --- specs

    async def submit(self, spec: SpecSource, *, request_id: str | None = None, after: Sequence[str] = (),
                     preemptible: bool = False, project: str = "", timeout_s: float | None = None) -> Submission:
        """Submits a job. Submitting again with the same `request_id` (at most 64 characters; default: a new one), spec
        and options returns the same job. `after`: ids of jobs that must succeed first. `preemptible`: the job may be
        paused for one of higher priority. `project`: default is the token's project."""
        return await self._run_spec(
            spec, lambda read: calls.submit(read, request_id, after, preemptible, project), timeout_s)

    async def validate(self, spec: SpecSource, *, timeout_s: float | None = None) -> list[Violation]:
        """Returns all violations of a spec: those of its text, and those that the coordinator finds in the readable
        part. Raises SpecError if the text is not a map of fields."""
        text = load_spec(spec)
        if not text.is_tree:
            raise text.refusal(())
        violations = await self._run(calls.validate(text.spec), timeout_s)
        return list(text.refusal(violations).violations)

    async def plan(self, spec: SpecSource, *, timeout_s: float | None = None) -> Plan:
        return await self._run_spec(spec, calls.plan, timeout_s)

    async def search(self, spec: SpecSource, *, hold: Sequence[str] = (), timeout_s: float | None = None) -> PlanSearch:
        """Returns the fastest equivalent configurations of a spec. Fields in `hold` are not changed."""
        return await self._run_spec(spec, lambda read: calls.search(read, hold), timeout_s)

    # --- jobs

    async def get(self, job_id: str, *, timeout_s: float | None = None) -> Job:
        return await self._run(calls.get(job_id), timeout_s)

    async def jobs(self, *, states: Iterable[JobState] = (), project: str = "", all_projects: bool = False,
                   filter: str = "", order_by: str = "", timeout_s: float | None = None) -> AsyncIterator[Job]:
        """Yields jobs that match `states` and `filter`, by default the newest first, and fetches pages as needed.
        `timeout_s` applies to each page. `project`: default is the token's project; with `all_projects`, or for a token
        without a project, jobs of all projects."""
        token = ""
        wanted = tuple(states)
        while True:
            page = await self._run(calls.jobs(wanted, token, project, all_projects, filter, order_by), timeout_s)
            for job in page.jobs:
                yield job
            token = page.next_page_token
            if not token:
                return

    async def cancel(self, job_id: str, *, reason: str = "", grace_s: int | None = None,
               etag: str | None = None, timeout_s: float | None = None) -> Job:
        return await self._run(calls.cancel(job_id, reason, grace_s, etag), timeout_s)

    async def pause(self, job_id: str, *, reason: str = "", grace_s: int | None = None,
              etag: str | None = None, timeout_s: float | None = None) -> Job:
        return await self._run(calls.pause(job_id, reason, grace_s, etag), timeout_s)

    async def resume(self, job_id: str, *, reason: str = "", etag: str | None = None,
                     timeout_s: float | None = None) -> Job:
        return await self._run(calls.resume(job_id, reason, etag), timeout_s)

    async def retry(self, job_id: str, *, reason: str = "", etag: str | None = None,
                    timeout_s: float | None = None) -> Job:
        return await self._run(calls.retry(job_id, reason, etag), timeout_s)

    async def delete(self, job_id: str, *, etag: str | None = None, timeout_s: float | None = None) -> Job:
        """Deletes a job and returns its last state. Not retried, because NotFound could then be the effect of the first
        try."""
        return await self._run(calls.delete(job_id, etag), timeout_s)

    def watch(self, job_id: str, *, reconnect_for_s: float = RECONNECT_FOR_S) -> AsyncIterator[Update]:
        """Yields the current job, then each change and step report until the job has ended. Reconnects after a lost
        connection, and raises Unavailable if it stays lost for `reconnect_for_s`."""
        return self._follow(WatchCursor(job_id), reconnect_for_s)

    async def _follow(self, cursor: Cursor[U], reconnect_for_s: float) -> AsyncGenerator[U, None]:
        outage = Outage(reconnect_for_s)
        while True:
            self._check_open()
            address, (_, stub) = self._places.current()
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
        cursor = LogCursor(calls.logs(job_id, rank=rank, attempt=attempt, follow=follow, tail_lines=tail_lines,
                                      evidence=evidence))
        outage = Outage(reconnect_for_s if follow else 0)
        while True:
            self._check_open()
            address, (_, stub) = self._places.current()
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
            page = await self._run(calls.steps(job_id, attempt, from_step, to_step, every), timeout_s)
            for each in pages.take(page):
                yield each
            from_step = page.next_step

    async def step_timeline(self, job_id: str, *, timeout_s: float | None = None) -> GetStepTimelineResponse:
        """Returns the step timeline of the newest step that rank 0 reported (at most one per second): the instructions
        of each lane with their times, the memory by component, and the attempt. NotFound before the first report."""
        return await self._run(calls.step_timeline(job_id), timeout_s)

    async def trace(self, job_id: str, *, steps: int = 1, attempt: int | None = None, rank: int | None = None,
                    memory_snapshot: bool = False) -> AsyncIterator[TraceOrder | TraceWritten | TraceLine]:
        """Traces the next steps of a running job on all ranks. Yields a TraceOrder with the steps; a TraceWritten for
        each rank and step with the path of its file or an error; then TraceLines with the content of the files, JSON
        for Perfetto. Lines of one rank and step are in order, interleaved with others. `steps=0` traces nothing and
        yields the lines of existing traces of an attempt (default: the newest). `rank` selects one rank. The trace
        starts when the iterator is first advanced, and is requested only once."""
        request = calls.trace(job_id, steps, attempt, rank, memory_snapshot)
        outage = Outage(0)
        while True:
            self._check_open()
            address, (_, stub) = self._places.current()
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
        if lost.code not in LOST or self._closed:
            raise lost
        await asyncio.sleep(outage.next_pause_s(lost, self._places.move(address, lost)))

    # --- nodes

    async def nodes(self, *, filter: str = "", order_by: str = "",
                    timeout_s: float | None = None) -> list[Node]:
        return await self._run(calls.nodes(filter, order_by), timeout_s)

    async def events(self, *, job: str = "", node: str = "", since_unix_nanos: int = 0, after: int = 0, filter: str = "",
                     newest_first: bool = False, timeout_s: float | None = None) -> AsyncIterator[Event]:
        """Yields the retained events of jobs and nodes, oldest first by default, and fetches pages as needed. An event
        of kind EVENTS_DELETED has the number of deleted events of a job or node. NotFound if the job does not exist and has
        no retained events."""
        found = False
        async for event in self._events(job, node, since_unix_nanos, after, filter, newest_first, timeout_s):
            found |= calls.is_event_of(event, job)
            yield event
        if found or not job:
            return
        try:
            await self.get(job, timeout_s=timeout_s)
        except NotFound:  # The job may be deleted, with retained events that the other arguments exclude.
            async for event in self._events(job, "", 0, 0, "", False, timeout_s):
                if calls.is_event_of(event, job):
                    return
            raise

    async def _events(self, job: str, node: str, since_unix_nanos: int, after: int, filter: str, newest_first: bool,
                      timeout_s: float | None) -> AsyncIterator[Event]:
        token = ""
        while True:
            call = calls.events(token, job, node, since_unix_nanos, after, filter, newest_first)
            page = await self._run(call, timeout_s)
            for event in page.events:
                yield event
            token = page.next_page_token
            if not token:
                return

    def watch_events(self, *, job: str = "", node: str = "", after: int = 0, filter: str = "",
                     reconnect_for_s: float = RECONNECT_FOR_S) -> AsyncIterator[Event]:
        """Yields each event after the cursor `after` (an Event.sequence; 0: from the oldest retained event) once and in
        order, and then new events without end. Reconnects after a lost connection, and raises Unavailable if it stays
        lost for `reconnect_for_s`. Raises an Error with the reason EVENTS_EXPIRED if events after `after` are no longer
        retained."""
        return self._follow(EventCursor(calls.watch_events(job, node, after, filter)), reconnect_for_s)

    async def cordon(self, node: str, *, reason: str = "", timeout_s: float | None = None) -> Node:
        return await self._run(calls.cordon(node, reason), timeout_s)

    async def uncordon(self, node: str, *, timeout_s: float | None = None) -> Node:
        return await self._run(calls.uncordon(node), timeout_s)

    async def drain(self, node: str, *, reason: str = "", grace_s: int | None = None, force: bool = False,
                    timeout_s: float | None = None) -> Node:
        """Cordons a node and moves its jobs: they save a checkpoint, leave, and resume elsewhere. Node.cordon.drain of
        nodes() has the progress. `grace_s`: time for ranks to save. `force`: also move jobs without checkpoints, which
        lose their steps."""
        return await self._run(calls.drain(node, reason, grace_s, force), timeout_s)

    async def delete_node(self, node: str, *, force: bool = False, timeout_s: float | None = None) -> Node:
        """Removes a node that is lost or has left, with its cordon and preflight result, and returns its last state. An
        agent of that name may register again. WrongState for a node that is ready, not lost yet, or hosts ranks;
        without `force` also for a lost node whose ranks may still run (Node.unconfirmed_jobs)."""
        return await self._run(calls.delete_node(node, force), timeout_s)

    async def preflight(self, node: str, *, timeout_s: float | None = None) -> Node:
        return await self._run(calls.preflight(node), timeout_s)

    async def version(self, *, timeout_s: float | None = None) -> str:
        """Returns the version of the coordinator."""
        return await self._run(calls.version(), timeout_s)
