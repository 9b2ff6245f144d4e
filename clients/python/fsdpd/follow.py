"""Where a log reader or a watch, of a job or of events, is, so that it goes on after a lost connection and nothing comes
twice.

Pure: what came goes in, what is new comes out; fsdpd/client.py and fsdpd/aio.py have the streams.
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
from fsdpd.errors import Error
from fsdpd.places import MOVES_AT_ONCE, stands_by
from fsdpd.v1 import coordinator_pb2 as api
from fsdpd.v1.telemetry_pb2 import StepReport

PAUSE_S: float = connection.CALLS["follow_pause_ms"] / 1000
RECONNECT_FOR_S: float = connection.CALLS["follow_reconnect_for_seconds"]
_ENDED = (api.JOB_STATE_SUCCEEDED, api.JOB_STATE_FAILED, api.JOB_STATE_CANCELLED)


def is_ended(job: api.Job) -> bool:
    return job.state in _ENDED


@dataclass(frozen=True)
class JobChanged:
    """The job as it is now. While the connection was lost it may have changed more than once: `events` has all that
    happened since the last one (at first: ever), as far as the coordinator keeps events. `missed`, of a job that has
    ended: how many steps of its last attempt after the last report here have none."""
    job: api.Job
    events: tuple[api.Job.Event, ...]
    missed: int = 0


@dataclass(frozen=True)
class StepDone:
    """Rank 0's report of a step; those of an attempt come in order. `missed`: how many of the attempt's steps before
    it have no report here, as the connection was lost or the job was faster than its reader."""
    report: StepReport
    missed: int


Update = JobChanged | StepDone


@dataclass(frozen=True)
class LogLine:
    """`notice`: a word of the agent's on the log as it is now, and no line of it."""
    rank: int
    attempt: int
    text: str
    notice: bool = False


class Outage:
    """Since when nothing is heard, and for how long that may go on."""

    def __init__(self, reconnect_for_s: float) -> None:
        self._reconnect_for_s = reconnect_for_s
        self._since: float | None = None
        self._moves = 0

    def over(self) -> None:
        self._since = None
        self._moves = 0

    def goes_on(self, why: Error, elsewhere: bool) -> float:
        """For how long to wait before the next try. Raises `why` when it has gone on for too long. `elsewhere`: another
        coordinator is asked then; one that stands by has lost nothing, and is left however short an outage may be."""
        self._moves += 1
        at_once = elsewhere and self._moves <= MOVES_AT_ONCE
        if at_once and stands_by(why):
            return 0.0
        if self._since is None:
            self._since = time.monotonic()
        if time.monotonic() - self._since >= self._reconnect_for_s:
            raise why
        return 0.0 if at_once else PAUSE_S


U_co = TypeVar("U_co", covariant=True)


class Cursor(Protocol[U_co]):
    """Of a watch. A stream that ends before it has `ended` is made anew, with its next request."""
    method: ClassVar[str]

    @property
    def ended(self) -> bool: ...

    def request(self) -> Message: ...

    def take(self, response: Any) -> Iterator[U_co]: ...


class WatchCursor:
    method: ClassVar[str] = "WatchJob"

    def __init__(self, job_id: str) -> None:
        self._id = job_id
        self._step = 0  # The newest of the attempt, 0 before the first.
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
        # Of an attempt's first report nobody knows here after which step it began.
        missed = report.step - self._step - 1 if self._step else 0
        self._step = report.step
        yield StepDone(report, missed)


class EventCursor:
    """Of all that happens, which has no end."""
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
    """The coordinator keeps the newest so many: where the last one known is not among them, all are new."""
    events = list(job.events)
    if before is not None and before.events:
        for index in range(len(events) - 1, -1, -1):
            if events[index] == before.events[-1]:
                return tuple(events[index + 1:])
    return tuple(events)


def _lines_gone(notice: str) -> int:
    """Of a word of the agent's on lines that it has dropped how many these are, which count as they did when they were
    there; 0 of any other."""
    gone = re.match(r"\[fsdpd-agent: (\d+) lines \(", notice)
    return int(gone[1]) if gone else 0


class LogCursor:
    """Lines of a rank come in order. After a lost connection the log is read again from its start and what was shown is
    passed over; with `tail_lines`, from its last line, so that what was written meanwhile is missing."""

    def __init__(self, request: api.TailLogsRequest) -> None:
        self._request = request
        self._from_start = request.tail_lines == 0
        self._shown: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], str] = {}
        self._notices: dict[tuple[int, int], str] = {}
        self._seen: dict[tuple[int, int], int] = {}  # On this connection.
        self._opened = False

    def request(self) -> api.TailLogsRequest:
        """For the next connection."""
        if self._opened and not self._from_start:
            self._request.tail_lines = 1
        self._opened = True
        self._seen.clear()
        return self._request

    def take(self, response: api.TailLogsResponse) -> Iterator[LogLine]:
        if self._request.evidence and not response.evidence:
            raise Error("this coordinator is of an older release, which sends no evidence: it is in files beside the ranks' "
                        "logs on their nodes, rank-N.hang.txt", code=grpc.StatusCode.UNIMPLEMENTED)
        source = (response.attempt, response.rank)
        line = LogLine(response.rank, response.attempt, response.line, response.notice)
        if response.notice:  # Each connection is told again.
            gone = _lines_gone(response.line) if self._from_start else 0
            if gone:
                self._seen[source] = self._seen.get(source, 0) + gone
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
            return  # Nothing was written since.
        self._shown[source] = known + 1
        self._last[source] = response.line
        yield line
