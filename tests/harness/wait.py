"""Polling with a timeout. Tests never sleep for a fixed time. Durations do not decide a test; they are appended to
the file FSDPD_MEASURED, one line each: test, what, value."""

import contextlib
import os
import time


def tell(what, value):
    """Records a measurement of a test, for tests/robustness/README.md."""
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
    """Polls `condition` until it returns a truthy value, and returns that. `what` names the condition in the error.

    An AssertionError inside the condition counts as "not yet"; its text is part of the error.
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
            raise AssertionError(f"{what}: timeout after {timeout_s:g} s; last result: {last!r}")
        time.sleep(interval_s)
