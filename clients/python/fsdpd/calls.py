"""Parts of requests and responses of the API that aio.py does not pass through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import grpc

from fsdpd.errors import InvalidRequest
from fsdpd.v1 import coordinator_pb2 as api
from fsdpd.v1.event_pb2 import EVENT_KIND_EVENTS_DELETED
from fsdpd.v1.plan_pb2 import Violation
from fsdpd.v1.steps_pb2 import ListStepsResponse, StepRecord
from fsdpd.v1.trace_pb2 import TraceJobResponse

PAGE = 100


@dataclass(frozen=True)
class Submission:
    """Result of submit(). `violations` are adjustments and warnings. Submitting again with `request_id` returns the same
    job."""
    job: api.Job
    violations: tuple[Violation, ...]
    request_id: str


def checked_etag(etag: str | None) -> str:
    """Rejects an empty etag: the server would treat it as unconditional, although the caller asked for a condition."""
    if etag == "":
        raise InvalidRequest("etag is empty: the job comes from a coordinator without etags",
                             code=grpc.StatusCode.INVALID_ARGUMENT)
    return etag or ""


def is_event_of(event: api.Event, job: str) -> bool:
    """True if the event proves that the job existed. An EVENTS_DELETED event proves it only if it names the job."""
    return event.kind != EVENT_KIND_EVENTS_DELETED or (bool(job) and event.job == job)


@dataclass(frozen=True)
class StepsMissing:
    """Steps `first` to `last` were completed, but no reachable node has their records. `unread` maps each node that may
    have them to the reason why it could not be read."""
    first: int
    last: int
    unread: Mapping[str, str]


@dataclass(frozen=True)
class StepsUnread:
    """Nodes that could not be read, with the reason. They may have other records of the steps before this one, such as
    those of another attempt that repeated the steps. No step is known to be missing."""
    unread: Mapping[str, str]


class StepPages:
    """Merges steps and missing ranges of the pages of one listing in the order of steps. Unreadable nodes are reported
    again only if they or their reasons change from one page to the next."""

    def __init__(self) -> None:
        self._reported: Mapping[str, str] = {}

    def take(self, page: ListStepsResponse) -> Iterator[StepRecord | StepsMissing | StepsUnread]:
        unread = {node.node: node.error for node in page.unread}
        holes = [StepsMissing(hole.first, hole.last, unread) for hole in page.missing]
        is_changed = bool(unread) and not holes and unread != self._reported
        if unread:
            self._reported = unread
        for step in page.steps:
            while holes and holes[0].last < step.step:
                yield holes.pop(0)
            yield step
        yield from holes
        if is_changed:
            yield StepsUnread(unread)


TraceOrder = TraceJobResponse.Order
TraceWritten = TraceJobResponse.Trace
TraceLine = TraceJobResponse.Line


def trace_updates(response: TraceJobResponse) -> Iterator[TraceOrder | TraceWritten | TraceLine]:
    """Yields nothing for an update of a kind that this release does not know."""
    if response.HasField("order"):
        yield response.order
    elif response.HasField("trace"):
        yield response.trace
    elif response.HasField("line"):
        yield response.line
