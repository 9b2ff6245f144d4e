"""Fixtures of client tests. The Python client is the wheel that users install: it is built from the tree, unpacked and
imported from there. Its stubs are also those of the harness, so this must run before anything else imports them."""

import sys

import pytest

from harness import wheel
from harness.wheel import TOOLS

if not TOOLS.exists():
    raise pytest.UsageError("run deploy/setup --tools, as tests/run does")
if "fsdpd" in sys.modules:
    raise pytest.UsageError("tests/clients runs in a process of its own: other directories' stubs are imported already")
SITE = wheel.installed()
sys.path.insert(0, str(SITE))

import fsdpd  # noqa: E402, F401
from harness.cluster import Cluster  # noqa: E402
from harness.security import Security  # noqa: E402


@pytest.fixture(scope="session")
def site():
    """Directory with the unpacked wheel."""
    return SITE


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """Cluster with authentication, for tests that do not change it."""
    directory = tmp_path_factory.mktemp("shared")
    with Cluster(directory, agents=1, slots=2, security=Security(directory / "security")) as cluster:
        yield cluster


@pytest.fixture
def own(tmp_path):
    """Cluster that the test may break."""
    with Cluster(tmp_path / "cluster", agents=1, slots=2, security=Security(tmp_path / "security")) as cluster:
        yield cluster


@pytest.fixture
def run_model(capfd, tmp_path, monkeypatch):
    """Runs `fsdpctl model` in the test's directory; returns (exit code, stdout, stderr)."""
    from fsdpd.model import command

    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = command.run(command.arguments_parser().parse_args([str(word) for word in words]))
        return (code, *capfd.readouterr())
    return call
