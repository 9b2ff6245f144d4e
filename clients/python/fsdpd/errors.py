"""Exceptions of the client: one class for each way to handle an error, with the decoded details of the gRPC status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from fsdpd.v1.coordinator_pb2 import SpecViolations
from fsdpd.v1.plan_pb2 import SEVERITY_ADJUST, SEVERITY_ERROR, SEVERITY_WARN, Violation

_DETAILS = "grpc-status-details-bin"
_MARKS = {SEVERITY_ADJUST: "adjusted: ", SEVERITY_WARN: "warning: "}


class Error(Exception):
    """A failed call. `reason` is its error id: stable, registered in proto/fsdpd/v1/reason.proto, and explained by
    `fsdpctl explain ID`. It is the name of the code if no coordinator answered. `violations` are violations of fields,
    if the error is about fields."""

    def __init__(self, message: str, *, code: grpc.StatusCode, reason: str = "", violations: Sequence[Violation] = (),
                 more_violations: int = 0, metadata: Mapping[str, str] | None = None,
                 retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason or code.name
        self.violations = tuple(violations)
        self.more_violations = more_violations  # Number of violations that did not fit; validate() returns all.
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.message} [{self.reason}]"


class InvalidRequest(Error):
    """A field of the request is wrong; `violations` names it."""


class SpecError(InvalidRequest):
    """The spec is invalid. `violations` has violations found in its text by this client, or those of the coordinator."""

    def __str__(self) -> str:
        lines = [f"{_place(fault)}{_MARKS.get(fault.severity, '')}{_reason(fault)} [{fault.rule}]" for fault in self.violations]
        more = [f"and {self.more_violations} more"] if self.more_violations else []
        return "\n".join([super().__str__(), *lines, *more])


class NotFound(Error):
    """The job, node, attempt or checkpoint does not exist."""


class AlreadyExists(Error):
    """The request id was already used with another spec."""


class WrongState(Error):
    """The state of the job or node does not allow the call; `reason` identifies the state."""


class Conflict(Error):
    """The etag does not match: the job has changed since it was read, and the call had no effect."""


class NotPermitted(Error):
    """The caller is not authenticated, or not authorized for this call."""


class Exhausted(Error):
    """A limit or quota of the coordinator is exhausted; retry later."""


class Unavailable(Error):
    """No coordinator is reachable, or it cannot serve the call now. The same call may succeed later."""


class DeadlineExceeded(Error, TimeoutError):
    """The deadline expired. The call may or may not have taken effect."""


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


def spec_message(violations: Sequence[Violation]) -> str:
    """Returns the message of a SpecError whose text lists these violations."""
    count = sum(fault.severity not in _MARKS for fault in violations)
    return f"the job spec has {count} error{'s' * (count != 1)}"


def _place(fault: Violation) -> str:
    return f"{fault.file}:{fault.line}:{fault.column}: " if fault.line else ""


def _reason(fault: Violation) -> str:
    """"field: reason; fix" without empty parts: a syntax error has no field."""
    return (fault.field and f"{fault.field}: ") + fault.reason + (fault.fix and f"; {fault.fix}")


def _unpacked(details: status_pb2.Status, kind: Any) -> Any:
    """Returns the status detail of that type, or an empty message."""
    found = kind()
    for packed in details.details:
        if packed.Is(kind.DESCRIPTOR):
            packed.Unpack(found)
    return found


def from_rpc(error: grpc.RpcError) -> Error:
    """Converts an RpcError of a unary or streaming call of either client."""
    call: Any = error
    code: grpc.StatusCode = call.code()
    raw = next((value for key, value in call.trailing_metadata() or () if key == _DETAILS), b"")
    details = status_pb2.Status.FromString(raw)
    info = _unpacked(details, error_details_pb2.ErrorInfo)
    violations = _unpacked(details, SpecViolations)
    found = list(violations.violations) or [
        Violation(severity=SEVERITY_ERROR, field=each.field, reason=each.description)
        for each in _unpacked(details, error_details_pb2.BadRequest).field_violations]
    delay = _unpacked(details, error_details_pb2.RetryInfo).retry_delay
    kind = SpecError if info.reason == "INVALID_SPEC" else _KINDS.get(code, Error)
    return kind(call.details() or code.name, code=code, reason=info.reason, violations=found,
                more_violations=violations.more, metadata=dict(info.metadata),
                retry_after_s=delay.ToTimedelta().total_seconds() or None)
