"""Which of several coordinators is asked, and when a call is made again: as client/coordinator_client.h has it.

Of several coordinators one leads. What another one may not do itself it has not done, and it says who leads: that one
is asked then, also where it is not among the addresses. Who is gone is passed over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc

from fsdpd.calls import Call
from fsdpd.connection import CALLS, deadline_s
from fsdpd.errors import Error

P = TypeVar("P")
MOST_PLACES = 16
MOVES_AT_ONCE = 4  # From one coordinator to another without a pause.

_POLICY = CALLS["service_config"]["methodConfig"][0]
_REPEATED = {each["method"] for each in _POLICY["name"]}
_BACKOFF = _POLICY["retryPolicy"]


def _seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def stands_by(error: Error) -> bool:
    """It was heard by a coordinator that does not lead, and was not done."""
    return error.reason == "NOT_LEADER"


class Places(Generic[P]):
    """`open_place` makes the connection to an address, which is kept. Thread-safe."""

    def __init__(self, addresses: list[str], open_place: Callable[[str], P]) -> None:
        self._open = open_place
        self._lock = threading.Lock()
        self._addresses = list(addresses)
        self._places: dict[str, P] = {}
        self._asked = 0

    def asked(self) -> tuple[str, P]:
        with self._lock:
            address = self._addresses[self._asked]
            if address not in self._places:
                self._places[address] = self._open(address)
            return address, self._places[address]

    def opened(self) -> list[P]:
        with self._lock:
            return list(self._places.values())

    def move(self, asked: str, error: Error) -> bool:
        """After an error of `asked`: whether another one is to be asked, at once."""
        gone = error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        if not gone:
            return False
        leader = error.metadata.get("leader", "")
        with self._lock:
            if self._addresses[self._asked] != asked:
                return True  # Another thread was faster.
            if not stands_by(error) or not leader:
                self._asked = (self._asked + 1) % len(self._addresses)
                return not stands_by(error) and len(self._addresses) > 1
            if leader not in self._addresses:
                if len(self._addresses) >= MOST_PLACES:
                    self._asked = 0
                    return False
                self._addresses.append(leader)
            self._asked = self._addresses.index(leader)
            return leader != asked


class Tries:
    """Of one call: how much time it has, and whether it is made again. One whose answer was lost may have been done, so
    calls.json says which are repeated, and one with an etag is not: it would meet its own change. What a coordinator that
    stands by has refused was not done."""

    def __init__(self, call: Call[Any], timeout_s: float | None) -> None:
        self._repeated = call.method in _REPEATED and not getattr(call.request, "etag", "")
        self._until = time.monotonic() + (deadline_s(call.method) if timeout_s is None else timeout_s)
        self._pause_s = _seconds(_BACKOFF["initialBackoff"])
        self._moves = 0

    def left_s(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def pause_s(self, error: Error, elsewhere: bool) -> float | None:
        """For how long to wait before the next one; None: there is to be none."""
        if error.code != grpc.StatusCode.UNAVAILABLE or not (self._repeated or stands_by(error)):
            return None
        self._moves += 1
        at_once = elsewhere and self._moves <= MOVES_AT_ONCE
        pause_s = 0.0 if at_once else self._pause_s if error.retry_after_s is None else error.retry_after_s
        if pause_s >= self.left_s():
            return None
        if not at_once:
            self._pause_s = min(self._pause_s * _BACKOFF["backoffMultiplier"], _seconds(_BACKOFF["maxBackoff"]))
        return pause_s
