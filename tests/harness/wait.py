"""Waiting with a deadline, for what other processes do. Tests never sleep for a fixed time."""

import time


def wait_until(what, condition, timeout_s=120.0, interval_s=0.02):
    """Polls `condition` until it gives something true, and returns that. `what` says in the failure what never came.

    An AssertionError inside the condition counts as "not yet"; its text is in the failure.
    """
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
