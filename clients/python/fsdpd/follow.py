"""Positions of streams (watches of a job or of events, and logs), so that a stream resumes after a lost connection
without duplicates.

The cursors do no I/O: they receive responses and return new updates. fsdpd/aio.py owns the streams.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from fsdpd import connection
from fsdpd.errors import Error, Unavailable
from fsdpd.places import MAX_IMMEDIATE_MOVES, is_standby
from fsdpd.v1 import coordinator_pb2 as api
from fsdpd.v1.telemetry_pb2 import StepReport

PAUSE_S: float = connection.CALLS["follow_pause_ms"] / 1000
RECONNECT_FOR_S: float = connection.CALLS["follow_reconnect_for_seconds"]
_ENDED = (api.JOB_STATE_SUCCEEDED, api.JOB_STATE_FAILED, api.JOB_STATE_CANCELLED)


def is_ended(job: api.Job) -> bool:
    return job.state in _ENDED


def is_lost(error: Error) -> bool:
    """True if the stream can resume. A coordinator that stops may cancel a stream, which another one resumes."""
    return error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def closed_stream() -> Unavailable:
    return Unavailable("the coordinator closed the stream", code=grpc.StatusCode.UNAVAILABLE)


@dataclass(frozen=True)
class JobChanged:
    """The current job. It may have changed several times while the connection was lost: `events` has all events since
    the last JobChanged (in the first: since submission) that the coordinator retains. `missed` is set when the job has
    ended: the number of steps of the last attempt after the last StepDone."""
    job: api.Job
    events: tuple[api.Job.Event, ...]
    missed: int = 0


@dataclass(frozen=True)
class StepDone:
    """Rank 0's report of a step. Reports of an attempt arrive in order. `missed` is the number of steps between the
    last report and this one, which were lost with a connection or because the job was faster than the reader."""
    report: StepReport
    missed: int


Update = JobChanged | StepDone


@dataclass(frozen=True)
class LogLine:
    """A line of a rank's log. A `notice` is not a line of the log, but a message of the agent about its state."""
    rank: int
    attempt: int
    text: str
    notice: bool = False


class Outage:
    """Duration of the current outage of a stream, with its limit. A limit of 0 raises the first error."""

    def __init__(self, reconnect_for_s: float) -> None:
        self._reconnect_for_s = reconnect_for_s
        self._since: float | None = None
        self._moves = 0

    def reset(self) -> None:
        self._since = None
        self._moves = 0

    def next_pause_s(self, error: Error, has_other: bool) -> float:
        """Returns the pause before the next try, or raises `error` after the limit. `has_other`: the next try uses
        another coordinator. A move away from a standby does not count as an outage, even with a limit of 0."""
        self._moves += 1
        immediate = has_other and self._moves <= MAX_IMMEDIATE_MOVES
        if immediate and is_standby(error):
            return 0.0
        if self._since is None:
            self._since = time.monotonic()
        if time.monotonic() - self._since >= self._reconnect_for_s:
            raise error
        return 0.0 if immediate else PAUSE_S


U_co = TypeVar("U_co", covariant=True)


class Cursor(Protocol[U_co]):
    """Position of a watch. A stream that closes before `ended` is opened again with request()."""
    method: ClassVar[str]

    @property
    def ended(self) -> bool: ...

    def request(self) -> Message: ...

    def take(self, response: Any) -> Iterator[U_co]: ...


class WatchCursor:
    method: ClassVar[str] = "WatchJob"

    def __init__(self, job_id: str) -> None:
        self._id = job_id
        self._step = 0  # The newest step of the attempt; 0 before its first report.
        self.job: api.Job | None = None

    def request(self) -> api.WatchJobRequest:
        return api.WatchJobRequest(id=self._id, after_revision=self.job.revision if self.job else 0)

    def take(self, response: api.WatchJobResponse) -> Iterator[Update]:
        if response.HasField("job"):
            yield from self._take_job(response.job)
        elif response.HasField("step"):
            yield from self._take_step(response.step)

    @property
    def ended(self) -> bool:
        return self.job is not None and is_ended(self.job)

    def _take_job(self, job: api.Job) -> Iterator[Update]:
        before = self.job
        if before is not None and job.revision == before.revision:
            return
        if before is None or job.attempt != before.attempt:
            self._step = 0
        self.job = job
        yield JobChanged(job, _events_after(before, job), self._missed_at_end(job))

    def _missed_at_end(self, job: api.Job) -> int:
        return max(job.last_step.step - self._step, 0) if self._step and is_ended(job) else 0

    def _take_step(self, report: StepReport) -> Iterator[Update]:
        if report.step <= self._step:
            return
        # The first report of an attempt does not reveal the step from which the attempt started.
        missed = report.step - self._step - 1 if self._step else 0
        self._step = report.step
        yield StepDone(report, missed)


class EventCursor:
    """Position in the log of events, which has no end."""
    method: ClassVar[str] = "WatchEvents"
    ended = False

    def __init__(self, request: api.WatchEventsRequest) -> None:
        self._request = request

    def request(self) -> api.WatchEventsRequest:
        return self._request

    def take(self, response: api.WatchEventsResponse) -> Iterator[api.Event]:
        is_new = response.HasField("event") and response.event.sequence > self._request.after
        self._request.after = max(self._request.after, response.cursor)
        if is_new:
            yield response.event


def _events_after(before: api.Job | None, job: api.Job) -> tuple[api.Job.Event, ...]:
    """Returns the events of `job` after those of `before`. The coordinator retains a limited number of them: if the
    last known event is no longer among them, all are new."""
    events = list(job.events)
    if before is not None and before.events:
        for index in range(len(events) - 1, -1, -1):
            if events[index] == before.events[-1]:
                return tuple(events[index + 1:])
    return tuple(events)


def _dropped_lines(notice: str) -> int:
    """Returns the number of dropped lines in an agent's notice, or 0 for another notice. Dropped lines count in
    positions as they did before they were dropped."""
    dropped = re.match(r"\[fsdpd-agent: (\d+) lines \(", notice)
    return int(dropped[1]) if dropped else 0


class LogCursor:
    """Position in the logs of all ranks; lines of one rank arrive in order. After a lost connection the log is read
    again from its start, and lines that were already returned are skipped. With `tail_lines` it is read from its last
    line, so that lines written during the outage are missing."""

    def __init__(self, request: api.TailLogsRequest) -> None:
        self._request = request
        self._from_start = request.tail_lines == 0
        self._shown: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], str] = {}
        self._notices: dict[tuple[int, int], str] = {}
        self._seen: dict[tuple[int, int], int] = {}  # Lines received on this connection.
        self._opened = False

    def request(self) -> api.TailLogsRequest:
        """Returns the request of the next connection."""
        if self._opened and not self._from_start:
            self._request.tail_lines = 1
        self._opened = True
        self._seen.clear()
        return self._request

    def take(self, response: api.TailLogsResponse) -> Iterator[LogLine]:
        if self._request.evidence and not response.evidence:
            raise Error("evidence is not supported by this coordinator, which is an older release; read the files "
                        "rank-N.hang.txt next to the logs on the nodes", code=grpc.StatusCode.UNIMPLEMENTED)
        source = (response.attempt, response.rank)
        line = LogLine(response.rank, response.attempt, response.line, response.notice)
        if response.notice:  # The agent repeats its notices on each connection.
            dropped = _dropped_lines(response.line) if self._from_start else 0
            if dropped:
                self._seen[source] = self._seen.get(source, 0) + dropped
                if self._seen[source] <= self._shown.get(source, 0):
                    return
                self._shown[source] = self._seen[source]
            if self._notices.get(source) != response.line:
                self._notices[source] = response.line
                yield line
            return
        self._seen[source] = self._seen.get(source, 0) + 1
        known = self._shown.get(source, 0)
        if self._from_start and self._seen[source] <= known:
            return
        if not self._from_start and self._seen[source] == 1 and self._last.get(source) == response.line:
            return  # Nothing was written during the outage.
        self._shown[source] = known + 1
        self._last[source] = response.line
        yield line
