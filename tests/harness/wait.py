"""Waiting with a deadline, for what other processes do. Tests never sleep for a fixed time. How long it took decides nothing
and is written to the file that FSDPD_MEASURED names, a line each: test, what, value."""

import contextlib
import os
import time


def tell(what, value):
    """Something that a test has measured, for tests/robustness/README.md."""
    path = os.environ.get("FSDPD_MEASURED")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{os.environ.get('PYTEST_CURRENT_TEST', '')}\t{what}\t{value}\n")


@contextlib.contextmanager
def measured(what):
    began = time.monotonic()
    yield
    tell(what, f"{time.monotonic() - began:.2f} s")


def wait_until(what, condition, timeout_s=120.0, interval_s=0.02):
    """Polls `condition` until it gives something true, and returns that. `what` says in the failure what never came.

    An AssertionError inside the condition counts as "not yet"; its text is in the failure.
    """
    with measured(what):
        return _polled(what, condition, timeout_s, interval_s)


def _polled(what, condition, timeout_s, interval_s):
    deadline = time.monotonic() + timeout_s
    last = None
    while True:
        try:
            last = condition()
            if last:
                return last
        except AssertionError as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}; at the end: {last!r}")
        time.sleep(interval_s)
