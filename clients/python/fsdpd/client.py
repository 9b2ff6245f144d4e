"""The client that blocks. Thread-safe: calls and streams of several threads share the connection."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import grpc

from fsdpd import calls, connection
from fsdpd.calls import (Call, StepPages, StepsMissing, StepsUnread, Submission, TraceLine, TraceOrder,
                         TraceWritten)
from fsdpd.errors import Error, NotFound, SpecError, Unavailable, from_rpc
from fsdpd.follow import (RECONNECT_FOR_S, Cursor, EventCursor, JobChanged, LogCursor, LogLine, Outage, Update,
                          WatchCursor, is_ended)
from fsdpd.places import Places, Tries
from fsdpd.spec import SpecSource, SpecText, load_spec
from fsdpd.v1.coordinator_pb2 import Event, Job, JobState, Node
from fsdpd.v1.coordinator_pb2_grpc import CoordinatorStub
from fsdpd.v1.course_pb2 import GetStepCourseResponse
from fsdpd.v1.job_pb2 import JobSpec
from fsdpd.v1.plan_pb2 import Fault, Plan, PlanSearch
from fsdpd.v1.steps_pb2 import StepRecord

A = TypeVar("A")
U = TypeVar("U")
_Place = tuple[grpc.Channel, Any]  # With its stub.
# A coordinator that stops may cancel a stream; another one goes on with it.
LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def closed_stream() -> Unavailable:
    return Unavailable("the coordinator closed the stream", code=grpc.StatusCode.UNAVAILABLE)


class Client:
    """`address` is HOST:PORT, or several with commas, of which the one that leads is asked. `timeout_s` of a call is its
    deadline; without one it is that of clients/calls.json. A call that finds no coordinator is tried again for so long,
    where it may be repeated. Every method raises fsdpd.Error; a spec's file that cannot be read, an OSError."""

    def __init__(self, address: str | None = None, *, ca_file: str | os.PathLike[str] | None = None,
                 token_file: str | os.PathLike[str] | None = None, token: str | None = None,
                 environ: Mapping[str, str] | None = None) -> None:
        self._connection = connection.Connection(
            address, ca_file=ca_file, token_file=token_file, token=token, environ=environ)
        self.address = self._connection.address
        self._places: Places[_Place] = Places(self._connection.addresses, self._open)
        self._closed = threading.Event()

    def _open(self, address: str) -> _Place:
        channel = self._connection.channel(address)
        return channel, CoordinatorStub(channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends every stream too."""
        self._closed.set()
        for channel, _ in self._places.opened():
            channel.close()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise Error("the client is closed", code=grpc.StatusCode.CANCELLED)

    def _run(self, call: Call[A], timeout_s: float | None) -> A:
        tries = Tries(call, timeout_s)
        while True:
            self._check_open()
            address, (_, stub) = self._places.asked()
            try:
                return call.answer(getattr(stub, call.method)(call.request, timeout=tries.left_s()))
            except grpc.RpcError as error:
                failed = from_rpc(error)
            pause_s = tries.pause_s(failed, self._places.move(address, failed))
            if pause_s is None or self._closed.wait(pause_s):
                raise self._connection.explained(failed, address)

    def _run_spec(self, source: SpecSource, make: Callable[[JobSpec], Call[A]], timeout_s: float | None) -> A:
        """Where a spec is refused, every fault of it is told, with its place."""
        text = load_spec(source)
        if text.faults:
            raise text.refusal(self._judged(text, timeout_s))
        try:
            return self._run(make(text.spec), timeout_s)
        except SpecError as error:
            # A refusal holds as many as fit.
            faults = self._judged(text, timeout_s) if error.more_faults else []
            raise text.with_places(error, faults) from None

    def _judged(self, text: SpecText, timeout_s: float | None) -> list[Fault]:
        """What the coordinator says of what could be read; nothing where it says nothing."""
        try:
            return self._run(calls.validate(text.spec), timeout_s) if text.is_tree else []
        except Error:
            return []

    # --- specs

    def submit(self, spec: SpecSource, *, request_id: str | None = None, after: Sequence[str] = (),
               preemptible: bool = False, project: str = "", timeout_s: float | None = None) -> Submission:
        """Queues a job. With the same `request_id` (at most 64 characters; default: a new one), spec and options it is
        the same job, however often and from wherever it is submitted. `after`: ids of jobs that have to succeed first.
        `preemptible`: it may be told to save and leave for others. `project`: default is that of the token."""
        return self._run_spec(
            spec, lambda read: calls.submit(read, request_id, after, preemptible, project), timeout_s)

    def validate(self, spec: SpecSource, *, timeout_s: float | None = None) -> list[Fault]:
        """All faults of a spec: of its text, and what the coordinator says of what could be read. SpecError where the
        text has no fields at all."""
        text = load_spec(spec)
        if not text.is_tree:
            raise text.refusal(())
        judged = self._run(calls.validate(text.spec), timeout_s)
        return list(text.refusal(judged).faults)

    def plan(self, spec: SpecSource, *, timeout_s: float | None = None) -> Plan:
        return self._run_spec(spec, calls.plan, timeout_s)

    def search(self, spec: SpecSource, *, hold: Sequence[str] = (), timeout_s: float | None = None) -> PlanSearch:
        """The fastest ways to run a spec that train the same; fields in `hold` stay as they are."""
        return self._run_spec(spec, lambda read: calls.search(read, hold), timeout_s)

    # --- jobs

    def get(self, job_id: str, *, timeout_s: float | None = None) -> Job:
        return self._run(calls.get(job_id), timeout_s)

    def jobs(self, *, states: Iterable[JobState] = (), project: str = "", all_projects: bool = False,
             filter: str = "", order_by: str = "", timeout_s: float | None = None) -> Iterator[Job]:
        """Newest first, or as `order_by` says, all pages; `timeout_s` is of each. Those of `project`, whose default is
        that of the token; of all projects for who has none, and where `all_projects` says so. Of these those that
        `filter` holds for."""
        token = ""
        wanted = tuple(states)
        while True:
            page = self._run(calls.jobs(wanted, token, project, all_projects, filter, order_by), timeout_s)
            yield from page.jobs
            token = page.next_page_token
            if not token:
                return

    def cancel(self, job_id: str, *, reason: str = "", grace_s: int | None = None,
               etag: str | None = None, timeout_s: float | None = None) -> Job:
        return self._run(calls.cancel(job_id, reason, grace_s, etag), timeout_s)

    def pause(self, job_id: str, *, reason: str = "", grace_s: int | None = None,
              etag: str | None = None, timeout_s: float | None = None) -> Job:
        return self._run(calls.pause(job_id, reason, grace_s, etag), timeout_s)

    def resume(self, job_id: str, *, reason: str = "", etag: str | None = None,
               timeout_s: float | None = None) -> Job:
        return self._run(calls.resume(job_id, reason, etag), timeout_s)

    def retry(self, job_id: str, *, reason: str = "", etag: str | None = None,
              timeout_s: float | None = None) -> Job:
        return self._run(calls.retry(job_id, reason, etag), timeout_s)

    def delete(self, job_id: str, *, etag: str | None = None, timeout_s: float | None = None) -> Job:
        """The job as it was. Not tried again: of a repeated call nobody could say whether the first one was heard."""
        return self._run(calls.delete(job_id, etag), timeout_s)

    def watch(self, job_id: str, *, reconnect_for_s: float = RECONNECT_FOR_S) -> Iterator[Update]:
        """The job now, then each change of it and each step report, until it has ended. A lost connection is made anew,
        and Unavailable raised only when it stayed lost for `reconnect_for_s`."""
        return self._follow(WatchCursor(job_id), reconnect_for_s)

    def _follow(self, cursor: Cursor[U], reconnect_for_s: float) -> Generator[U, None, None]:
        outage = Outage(reconnect_for_s)
        while True:
            self._check_open()
            address, (_, stub) = self._places.asked()
            stream = getattr(stub, cursor.method)(cursor.request())
            try:
                for response in stream:
                    outage.over()
                    yield from cursor.take(response)
                lost: Error = closed_stream()
            except grpc.RpcError as error:
                lost = from_rpc(error)
            finally:
                stream.cancel()
            if cursor.ended:
                return
            self._reconnect(outage, lost, address)

    def wait(self, job_id: str, *, until: Callable[[Job], bool] = is_ended,
             reconnect_for_s: float = RECONNECT_FOR_S) -> Job:
        """The job once it is as `until` says, or has ended. `fsdpd.is_ended` is the default."""
        with contextlib.closing(self._follow(WatchCursor(job_id), reconnect_for_s)) as updates:
            for update in updates:
                if isinstance(update, JobChanged) and (is_ended(update.job) or until(update.job)):
                    return update.job
        raise AssertionError("a watch ends with its job")

    def logs(self, job_id: str, *, rank: int | None = None, attempt: int | None = None, follow: bool = False,
             tail_lines: int = 0, evidence: bool = False, reconnect_for_s: float = RECONNECT_FOR_S) -> Iterator[LogLine]:
        """Lines of one rank or all, of an attempt (default: the newest). With `follow` until the job has ended, also
        over lost connections; without, Unavailable may mean that a node is not ready. With `evidence` what agents kept of
        ranks that stood still instead, without `follow` and `tail_lines`; UNIMPLEMENTED where a coordinator sends logs.
        `tail_lines` is at most 100,000."""
        cursor = LogCursor(calls.logs(job_id, rank=rank, attempt=attempt, follow=follow, tail_lines=tail_lines,
                                      evidence=evidence))
        outage = Outage(reconnect_for_s if follow else 0)
        while True:
            self._check_open()
            address, (_, stub) = self._places.asked()
            stream = stub.TailLogs(cursor.request())
            try:
                for response in stream:
                    for line in cursor.take(response):
                        outage.over()
                        yield line
                return
            except grpc.RpcError as error:
                lost = from_rpc(error)
            finally:
                stream.cancel()
            self._reconnect(outage, lost, address)

    def steps(self, job_id: str, *, attempt: int | None = None, from_step: int = 1, to_step: int = 0, every: int = 1,
              timeout_s: float | None = None) -> Iterator[StepRecord | StepsMissing | StepsUnread]:
        """Every step that the job has made, from agents' records: of the run, each once, or all of an attempt; only those
        that `every` divides. What cannot be read is a StepsMissing in its place, and a StepsUnread where no
        step is missing and nodes may have more. A page at a time."""
        pages = calls.StepPages()
        while from_step:
            page = self._run(calls.steps(job_id, attempt, from_step, to_step, every), timeout_s)
            yield from pages.take(page)
            from_step = page.next_step

    def course(self, job_id: str, *, timeout_s: float | None = None) -> GetStepCourseResponse:
        """How the newest step went that the job's rank 0 has told of, at most once a second: what its lanes ran when, and
        its memory by component; and which attempt made it. NotFound where the coordinator has heard of none yet."""
        return self._run(calls.course(job_id), timeout_s)

    def trace(self, job_id: str, *, steps: int = 1, attempt: int | None = None, rank: int | None = None,
              memory_snapshot: bool = False) -> Iterator[TraceOrder | TraceWritten | TraceLine]:
        """Has the next steps of a running job traced by all its ranks: a TraceOrder says which, a TraceWritten of each rank
        and step where its file is or why it is not, and then TraceLines are what the files hold, which is JSON for
        Perfetto: those of one rank and step in order, between those of others. `steps=0`: only lines, of what an attempt
        (default: the newest) has written. `rank`: only of this one. Begins when it is iterated, and is asked once."""
        request = calls.trace(job_id, steps, attempt, rank, memory_snapshot)
        outage = Outage(0)
        while True:
            self._check_open()
            address, (_, stub) = self._places.asked()
            stream, heard = stub.TraceJob(request), False
            try:
                for response in stream:
                    heard = True
                    yield from calls.traced(response)
                return
            except grpc.RpcError as error:
                lost = from_rpc(error)
            finally:
                stream.cancel()
            if heard:  # Another call would trace other steps.
                raise lost
            self._reconnect(outage, lost, address)

    def _reconnect(self, outage: Outage, lost: Error, address: str) -> None:
        if lost.code not in LOST or self._closed.is_set():
            raise lost
        if self._closed.wait(outage.goes_on(lost, self._places.move(address, lost))):
            raise lost

    # --- nodes

    def nodes(self, *, filter: str = "", order_by: str = "",
              timeout_s: float | None = None) -> list[Node]:
        return self._run(calls.nodes(filter, order_by), timeout_s)

    def events(self, *, job: str = "", node: str = "", since_unix_nanos: int = 0, after: int = 0, filter: str = "",
               newest_first: bool = False, timeout_s: float | None = None) -> Iterator[Event]:
        """What has happened to jobs and nodes, oldest first or not, all pages, as far as it is kept. Where some of a
        job or node is not, an event of the kind FORGOTTEN says how many. NotFound for a job that does not exist and that
        no event is kept of."""
        found = False
        for event in self._events(job, node, since_unix_nanos, after, filter, newest_first, timeout_s):
            found |= calls.is_event_of(event, job)
            yield event
        if found or not job:
            return
        try:
            self.get(job, timeout_s=timeout_s)
        except NotFound:  # Or deleted, with events that the other arguments exclude.
            if not any(calls.is_event_of(each, job) for each in self._events(job, "", 0, 0, "", False, timeout_s)):
                raise

    def _events(self, job: str, node: str, since_unix_nanos: int, after: int, filter: str, newest_first: bool,
                timeout_s: float | None) -> Iterator[Event]:
        token = ""
        while True:
            call = calls.events(token, job, node, since_unix_nanos, after, filter, newest_first)
            page = self._run(call, timeout_s)
            yield from page.events
            token = page.next_page_token
            if not token:
                return

    def watch_events(self, *, job: str = "", node: str = "", after: int = 0, filter: str = "",
                     reconnect_for_s: float = RECONNECT_FOR_S) -> Iterator[Event]:
        """Each event after the cursor `after` (an Event.sequence; 0: from the oldest that is kept), once and in order, and
        then each as it comes, without end. A lost connection is made anew, and Unavailable raised only when it stayed lost
        for `reconnect_for_s`. An Error with the reason EVENTS_GONE: some after `after` are kept no more."""
        return self._follow(EventCursor(calls.watch_events(job, node, after, filter)), reconnect_for_s)

    def cordon(self, node: str, *, reason: str = "", timeout_s: float | None = None) -> Node:
        return self._run(calls.cordon(node, reason), timeout_s)

    def uncordon(self, node: str, *, timeout_s: float | None = None) -> Node:
        return self._run(calls.uncordon(node), timeout_s)

    def drain(self, node: str, *, reason: str = "", grace_s: int | None = None, force: bool = False,
              timeout_s: float | None = None) -> Node:
        """Cordons it and has the jobs there save, leave and go on elsewhere; Node.cordon.drain of nodes() says how far
        it is. `grace_s`: that ranks have to save. `force`: also jobs that write no checkpoints, and lose their steps."""
        return self._run(calls.drain(node, reason, grace_s, force), timeout_s)

    def delete_node(self, node: str, *, force: bool = False, timeout_s: float | None = None) -> Node:
        """Removes a node that is lost or has left, with its cordon and preflight result; an agent of that name may register
        again. WrongState for a node that is ready, not lost yet, or hosts ranks; without `force` also for a lost node whose
        ranks may still run (Node.unconfirmed_jobs). Returns the node as it was."""
        return self._run(calls.delete_node(node, force), timeout_s)

    def preflight(self, node: str, *, timeout_s: float | None = None) -> Node:
        """Begins it; Node.preflight of nodes() has the result once in_preflight is false there."""
        return self._run(calls.preflight(node), timeout_s)

    def version(self, *, timeout_s: float | None = None) -> str:
        """Of the coordinator."""
        return self._run(calls.version(), timeout_s)
