"""Selection of the leader among several coordinators, and the retry policy, as in client/connect/coordinator_client.h.

A standby rejects a call that only the leader may serve, without any effect, and returns the leader's address. The
client then calls the leader, even if it is not in the list of addresses. Unreachable coordinators are skipped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from fsdpd.connection import CALLS, deadline_s
from fsdpd.errors import Error
from fsdpd.v1.coordinator_pb2_grpc import CoordinatorStub

C = TypeVar("C")
MAX_PLACES = 16
MAX_IMMEDIATE_MOVES = 4  # Moves to another coordinator without a pause.

_POLICY = CALLS["service_config"]["methodConfig"][0]
_REPEATED = {each["method"] for each in _POLICY["name"]}
_BACKOFF = _POLICY["retryPolicy"]


def _seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def is_standby(error: Error) -> bool:
    """True if a standby rejected the call, which then had no effect."""
    return error.reason == "NOT_LEADER"


class Places(Generic[C]):
    """Channels to the coordinators, opened on first use by `open_channel` and then reused. Thread-safe."""

    def __init__(self, addresses: list[str], open_channel: Callable[[str], C]) -> None:
        self._open = open_channel
        self._lock = threading.Lock()
        self._addresses = list(addresses)
        self._channels: dict[str, tuple[C, Any]] = {}
        self._current = 0
        self.closed = False

    def current(self) -> tuple[str, Any]:
        """Returns the address of the coordinator to call, and its stub."""
        if self.closed:
            raise Error("the client is closed", code=grpc.StatusCode.CANCELLED)
        with self._lock:
            address = self._addresses[self._current]
            if address not in self._channels:
                channel = self._open(address)
                self._channels[address] = channel, CoordinatorStub(channel)  # type: ignore[no-untyped-call]
            return address, self._channels[address][1]

    def channels(self) -> list[C]:
        with self._lock:
            return [channel for channel, _ in self._channels.values()]

    def move(self, current: str, error: Error) -> bool:
        """Handles an error from the address `current`. Returns whether to call another coordinator immediately."""
        unreachable = error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        if not unreachable:
            return False
        leader = error.metadata.get("leader", "")
        with self._lock:
            if self._addresses[self._current] != current:
                return True  # Another thread has already moved.
            if not is_standby(error) or not leader:
                self._current = (self._current + 1) % len(self._addresses)
                return not is_standby(error) and len(self._addresses) > 1
            if leader not in self._addresses:
                if len(self._addresses) >= MAX_PLACES:
                    self._current = 0
                    return False
                self._addresses.append(leader)
            self._current = self._addresses.index(leader)
            return leader != current


class Tries:
    """Deadline and retries of one call. If its answer is lost, the call may have taken effect, so only methods listed
    in calls.json are retried. A call with an etag is not retried: it would conflict with its own change. A call that a
    standby rejected had no effect, and is always retried."""

    def __init__(self, request: Message, timeout_s: float | None) -> None:
        self.method = request.DESCRIPTOR.name.removesuffix("Request")
        self._repeated = self.method in _REPEATED and not getattr(request, "etag", "")
        self._until = time.monotonic() + (deadline_s(self.method) if timeout_s is None else timeout_s)
        self._pause_s = _seconds(_BACKOFF["initialBackoff"])
        self._moves = 0

    def left_s(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def pause_s(self, error: Error, has_other: bool) -> float | None:
        """Returns the pause before the next try, or None if the call must not be tried again."""
        if error.code != grpc.StatusCode.UNAVAILABLE or not (self._repeated or is_standby(error)):
            return None
        self._moves += 1
        immediate = has_other and self._moves <= MAX_IMMEDIATE_MOVES
        pause_s = 0.0 if immediate else self._pause_s if error.retry_after_s is None else error.retry_after_s
        if pause_s >= self.left_s():
            return None
        if not immediate:
            self._pause_s = min(self._pause_s * _BACKOFF["backoffMultiplier"], _seconds(_BACKOFF["maxBackoff"]))
        return pause_s
