"""Requests of the API, shared by the blocking and the asyncio client.

A unary call is a `Call`: the method, the request, and a function from the response to the result. For a streaming call
there is only a function that makes the request.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from fsdpd.errors import InvalidRequest
from fsdpd.v1 import coordinator_pb2 as api
from fsdpd.v1.event_pb2 import EVENT_KIND_EVENTS_DELETED
from fsdpd.v1.job_pb2 import JobSpec
from fsdpd.v1.plan_pb2 import Plan, PlanSearch, Violation
from fsdpd.v1.steps_pb2 import ListStepsRequest, ListStepsResponse, StepRecord
from fsdpd.v1.timeline_pb2 import GetStepTimelineRequest, GetStepTimelineResponse
from fsdpd.v1.trace_pb2 import TraceJobRequest, TraceJobResponse

A = TypeVar("A")
PAGE = 100


@dataclass(frozen=True)
class Call(Generic[A]):
    method: str
    request: Message
    answer: Callable[[Any], A]


@dataclass(frozen=True)
class Submission:
    """Result of submit(). `violations` are adjustments and warnings. Submitting again with `request_id` returns the same
    job."""
    job: api.Job
    violations: tuple[Violation, ...]
    request_id: str


def _job(response: Any) -> api.Job:
    return response.job  # type: ignore[no-any-return]


def _node(response: Any) -> api.Node:
    return response.node  # type: ignore[no-any-return]


def submit(spec: JobSpec, request_id: str | None, after: Sequence[str], preemptible: bool,
           project: str) -> Call[Submission]:
    # Generated once per call, so that a retry of the call finds the job of the first try.
    made = request_id or uuid.uuid4().hex
    request = api.SubmitJobRequest(spec=spec, request_id=made, after=after, preemptible=preemptible,
                                   project=project)
    return Call("SubmitJob", request,
                lambda response: Submission(response.job, tuple(response.violations), made))


def validate(spec: JobSpec) -> Call[list[Violation]]:
    return Call("ValidateJob", api.ValidateJobRequest(spec=spec), lambda response: list(response.violations))


def plan(spec: JobSpec) -> Call[Plan]:
    return Call("PlanJob", api.PlanJobRequest(spec=spec), lambda response: response.plan)


def search(spec: JobSpec, hold: Sequence[str]) -> Call[PlanSearch]:
    return Call("SearchPlans", api.SearchPlansRequest(spec=spec, hold=[hold] if isinstance(hold, str) else hold),
                lambda response: response.search)


def get(job_id: str) -> Call[api.Job]:
    return Call("GetJob", api.GetJobRequest(id=job_id), _job)


def jobs(states: Iterable[api.JobState], page_token: str, project: str, all_projects: bool, filter: str,
         order_by: str) -> Call[api.ListJobsResponse]:
    request = api.ListJobsRequest(page_size=PAGE, page_token=page_token, states=states, project=project,
                                  all_projects=all_projects, filter=filter, order_by=order_by)
    return Call("ListJobs", request, lambda response: response)


def _checked_etag(etag: str | None) -> str:
    """Rejects an empty etag: the server would treat it as unconditional, although the caller asked for a condition."""
    if etag == "":
        raise InvalidRequest("etag is empty: the job comes from a coordinator without etags",
                             code=grpc.StatusCode.INVALID_ARGUMENT)
    return etag or ""


def cancel(job_id: str, reason: str, grace_s: int | None, etag: str | None) -> Call[api.Job]:
    request = api.CancelJobRequest(id=job_id, reason=reason, grace_seconds=grace_s, etag=_checked_etag(etag))
    return Call("CancelJob", request, _job)


def pause(job_id: str, reason: str, grace_s: int | None, etag: str | None) -> Call[api.Job]:
    request = api.PauseJobRequest(id=job_id, reason=reason, grace_seconds=grace_s, etag=_checked_etag(etag))
    return Call("PauseJob", request, _job)


def resume(job_id: str, reason: str, etag: str | None) -> Call[api.Job]:
    return Call("ResumeJob", api.ResumeJobRequest(id=job_id, reason=reason, etag=_checked_etag(etag)), _job)


def retry(job_id: str, reason: str, etag: str | None) -> Call[api.Job]:
    return Call("RetryJob", api.RetryJobRequest(id=job_id, reason=reason, etag=_checked_etag(etag)), _job)


def delete(job_id: str, etag: str | None) -> Call[api.Job]:
    return Call("DeleteJob", api.DeleteJobRequest(id=job_id, etag=_checked_etag(etag)), _job)


def nodes(filter: str, order_by: str) -> Call[list[api.Node]]:
    return Call("ListNodes", api.ListNodesRequest(filter=filter, order_by=order_by),
                lambda response: list(response.nodes))


def events(page_token: str, job: str, node: str, since_unix_nanos: int, after: int, filter: str,
           newest_first: bool) -> Call[api.ListEventsResponse]:
    request = api.ListEventsRequest(page_token=page_token, job=job, node=node, since_unix_nanos=since_unix_nanos,
                                    after=after if newest_first or not page_token else 0, filter=filter,
                                    order_by="sequence desc" if newest_first else "")
    return Call("ListEvents", request, lambda response: response)


def is_event_of(event: api.Event, job: str) -> bool:
    """True if the event proves that the job existed. An EVENTS_DELETED event proves it only if it names the job."""
    return event.kind != EVENT_KIND_EVENTS_DELETED or (bool(job) and event.job == job)


def cordon(node: str, reason: str) -> Call[api.Node]:
    return Call("CordonNode", api.CordonNodeRequest(node=node, reason=reason), _node)


def uncordon(node: str) -> Call[api.Node]:
    return Call("UncordonNode", api.UncordonNodeRequest(node=node), _node)


def drain(node: str, reason: str, grace_s: int | None, force: bool) -> Call[api.Node]:
    request = api.DrainNodeRequest(node=node, reason=reason, grace_seconds=grace_s, force=force)
    return Call("DrainNode", request, _node)


def delete_node(node: str, force: bool) -> Call[api.Node]:
    return Call("DeleteNode", api.DeleteNodeRequest(node=node, force=force), _node)


def preflight(node: str) -> Call[api.Node]:
    return Call("PreflightNode", api.PreflightNodeRequest(node=node), _node)


def step_timeline(job_id: str) -> Call[GetStepTimelineResponse]:
    return Call("GetStepTimeline", GetStepTimelineRequest(id=job_id), lambda response: response)


def version() -> Call[str]:
    return Call("GetVersion", api.GetVersionRequest(), lambda response: response.version)


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


def steps(job_id: str, attempt: int | None, from_step: int, to_step: int,
          every: int) -> Call[ListStepsResponse]:
    request = ListStepsRequest(id=job_id, attempt=attempt, from_step=from_step, to_step=to_step, every=every)
    return Call("ListSteps", request, lambda response: response)


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


def logs(job_id: str, *, rank: int | None, attempt: int | None, follow: bool, tail_lines: int,
         evidence: bool) -> api.TailLogsRequest:
    return api.TailLogsRequest(id=job_id, rank=rank, attempt=attempt, follow=follow, tail_lines=tail_lines,
                               evidence=evidence)


def watch_events(job: str, node: str, after: int, filter: str) -> api.WatchEventsRequest:
    return api.WatchEventsRequest(job=job, node=node, after=after, filter=filter)


TraceOrder = TraceJobResponse.Order
TraceWritten = TraceJobResponse.Trace
TraceLine = TraceJobResponse.Line


def trace(job_id: str, steps: int, attempt: int | None, rank: int | None, memory_snapshot: bool) -> TraceJobRequest:
    return TraceJobRequest(id=job_id, steps=steps, attempt=attempt, rank=rank, memory_snapshot=memory_snapshot)


def trace_updates(response: TraceJobResponse) -> Iterator[TraceOrder | TraceWritten | TraceLine]:
    """Yields nothing for an update of a kind that this release does not know."""
    if response.HasField("order"):
        yield response.order
    elif response.HasField("trace"):
        yield response.trace
    elif response.HasField("line"):
        yield response.line
