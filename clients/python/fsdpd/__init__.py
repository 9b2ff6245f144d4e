"""Client of fsdpd, a training service for sharded models.

    with fsdpd.Client("coordinator.example:7777", ca_file="ca.crt", token_file="alice.token") as client:
        job = client.submit(pathlib.Path("job.yaml")).job
        for update in client.watch(job.id):
            print(update)

`Client` is blocking and `AsyncClient` is for asyncio; both have the same methods. Jobs, specs and nodes are the
protobuf messages of the API (`fsdpd.v1`); proto/fsdpd/v1 documents their fields. A call that fails raises an
`fsdpd.Error`.
"""

from fsdpd.aio import AsyncClient
from fsdpd.calls import StepsMissing, StepsUnread, Submission, TraceLine, TraceOrder, TraceWritten
from fsdpd.client import Client
from fsdpd.errors import (AlreadyExists, Conflict, DeadlineExceeded, Error, Exhausted, InvalidRequest, NotFound, NotPermitted,
                          SpecError, Unavailable, WrongState)
from fsdpd.follow import JobChanged, LogLine, StepDone, Update, is_ended
from fsdpd.spec import SpecSource, read_spec
from fsdpd.v1.coordinator_pb2 import Event, Job, JobState, Node
from fsdpd.v1.event_pb2 import EventKind
from fsdpd.v1.job_pb2 import JobSpec
from fsdpd.v1.plan_pb2 import Plan, Violation
from fsdpd.v1.steps_pb2 import StepRecord
from fsdpd.v1.timeline_pb2 import StepTimeline

__all__ = [
    "AlreadyExists", "AsyncClient", "Client", "Conflict", "DeadlineExceeded", "Error", "Event", "EventKind",
    "Exhausted", "InvalidRequest", "Job", "JobChanged", "JobSpec", "JobState", "LogLine", "Node", "NotFound",
    "NotPermitted", "Plan", "SpecError", "SpecSource", "StepDone", "StepRecord", "StepTimeline", "StepsMissing", "StepsUnread",
    "Submission", "TraceLine", "TraceOrder", "TraceWritten", "Unavailable", "Update", "Violation", "WrongState", "is_ended", "read_spec",
]
