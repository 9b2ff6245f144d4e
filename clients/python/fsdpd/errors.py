"""What a call can end with: one exception for each way to go on, with the coordinator's details decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from fsdpd.v1.coordinator_pb2 import SpecFaults
from fsdpd.v1.plan_pb2 import SEVERITY_ERROR, Fault

_DETAILS = "grpc-status-details-bin"


class Error(Exception):
    """A call that failed. `reason` is stable and for programs: a name of proto/fsdpd/v1/reason.proto without REASON_,
    empty where no coordinator answered. `faults` are the fields that are wrong, where fields are."""

    def __init__(self, message: str, *, code: grpc.StatusCode, reason: str = "", faults: Sequence[Fault] = (),
                 more_faults: int = 0, metadata: Mapping[str, str] | None = None,
                 retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.faults = tuple(faults)
        self.more_faults = more_faults  # How many did not fit; validate() answers with all.
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.message} [{self.reason or self.code.name}]"


class InvalidRequest(Error):
    """A field of the request is wrong; `faults` names it."""


class SpecError(InvalidRequest):
    """The spec has faults: those of its text, which were found here, or those that the coordinator found."""

    def __str__(self) -> str:
        told = [f"{_place(fault)}{_reason(fault)} [{fault.rule}]" for fault in self.faults]
        more = [f"and {self.more_faults} more"] if self.more_faults else []
        return "\n".join([self.message, *told, *more])


class NotFound(Error):
    """No such job, node, attempt or checkpoint."""


class AlreadyExists(Error):
    """The request id was used before, with another spec."""


class WrongState(Error):
    """The job's state does not allow the call now; `reason` says which state that is."""


class Conflict(Error):
    """The job is not as it was seen any more: what was asked for with its etag was not done."""


class NotPermitted(Error):
    """Who calls is not known, or may not do this."""


class Exhausted(Error):
    """The coordinator does as much as it can at once."""


class Unavailable(Error):
    """No coordinator could be reached, or it cannot answer now. The same call may go through later."""


class DeadlineExceeded(Error, TimeoutError):
    """Nobody answered in time; whether the call took effect is not known."""


_KINDS: dict[grpc.StatusCode, type[Error]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: WrongState,
    grpc.StatusCode.ABORTED: Conflict,
    grpc.StatusCode.PERMISSION_DENIED: NotPermitted,
    grpc.StatusCode.UNAUTHENTICATED: NotPermitted,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Exhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
}


def _place(fault: Fault) -> str:
    return f"{fault.file}:{fault.line}:{fault.column}: " if fault.line else ""


def _reason(fault: Fault) -> str:
    """Without the empty parts: a syntax error belongs to no field."""
    return (fault.field and f"{fault.field}: ") + fault.reason + (fault.fix and f"; {fault.fix}")


def _unpacked(details: status_pb2.Status, kind: Any) -> Any:
    """The detail of that kind, an empty one where there is none."""
    found = kind()
    for packed in details.details:
        if packed.Is(kind.DESCRIPTOR):
            packed.Unpack(found)
    return found


def from_rpc(error: grpc.RpcError) -> Error:
    """`error` is as a call or a stream raises it, blocking or not."""
    call: Any = error
    code: grpc.StatusCode = call.code()
    raw = next((value for key, value in call.trailing_metadata() or () if key == _DETAILS), b"")
    details = status_pb2.Status.FromString(raw)
    info = _unpacked(details, error_details_pb2.ErrorInfo)
    faults = _unpacked(details, SpecFaults)
    found = list(faults.faults) or [
        Fault(severity=SEVERITY_ERROR, field=each.field, reason=each.description)
        for each in _unpacked(details, error_details_pb2.BadRequest).field_violations]
    delay = _unpacked(details, error_details_pb2.RetryInfo).retry_delay
    kind = SpecError if info.reason == "BAD_SPEC" else _KINDS.get(code, Error)
    return kind(call.details() or code.name, code=code, reason=info.reason, faults=found, more_faults=faults.more,
                metadata=dict(info.metadata), retry_after_s=delay.ToTimedelta().total_seconds() or None)
