"""Hooks that all pytest files share."""

import os
import signal

import pytest

from harness.processes import become_subreaper

SHARDS, SHARD = int(os.environ.get("TEST_TOTAL_SHARDS", "1")), int(os.environ.get("TEST_SHARD_INDEX", "0"))


def stop_once():
    """Ends pytest on SIGTERM as on Ctrl-C, so that fixtures stop their processes: Bazel sends SIGTERM to the process
    group. A second signal does not interrupt the fixtures."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def interrupt(number, frame):
        for each in numbers:
            signal.signal(each, lambda *_: None)
        raise KeyboardInterrupt

    for each in numbers:
        signal.signal(each, interrupt)


def pytest_configure(config):
    # Before anything is started: harness/processes.py says why.
    become_subreaper()
    if "TEST_SRCDIR" in os.environ:
        stop_once()


def share(items, shards, shard):
    """Splits the items into those of this Bazel shard and the others."""
    return items[shard::shards], [item for at, item in enumerate(items) if at % shards != shard]


@pytest.hookimpl(trylast=True)  # After -m and -k, or a shard could get only tests that they deselect.
def pytest_collection_modifyitems(config, items):
    items[:], others = share(items, SHARDS, SHARD)
    config.hook.pytest_deselected(items=others)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """With -k, a shard may have nothing to run."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and SHARDS > 1:
        session.exitstatus = pytest.ExitCode.OK
