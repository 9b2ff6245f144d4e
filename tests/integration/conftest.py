"""Fixtures with clusters: one per module for tests that can share it, and a separate one for tests that break it."""

import pytest

from harness.cluster import Cluster
from harness.training import WholeRun, saving


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Two agents with two slots each, for all tests of a module."""
    with Cluster(tmp_path_factory.mktemp("shared")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared):
    """The shared cluster with all slots free; jobs that a test leaves behind are cancelled."""
    shared.wait_idle()
    yield shared
    shared.cancel_all()


@pytest.fixture(scope="module")
def whole(shared, tmp_path_factory):
    """Results of an uninterrupted run of the job that saves."""
    directory = tmp_path_factory.mktemp("whole")
    return WholeRun(shared, directory, saving(directory, name="whole"))


@pytest.fixture
def own(tmp_path):
    """Creates a cluster that the test may break: `with own(agents=1) as cluster`."""
    return lambda **arguments: Cluster(tmp_path, **arguments)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    shared_cluster = item.funcargs.get("shared") if hasattr(item, "funcargs") else None
    if report.failed and shared_cluster:
        report.sections.append(("cluster", shared_cluster.logs()))
    return report
