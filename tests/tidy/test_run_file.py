"""tests/run_file.sh: the environment of a pytest file as a Bazel test, and its cleanup."""

import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest

import conftest
from harness.programs import ROOT
from harness.wait import wait_until

SHARED = ["conftest.py", "pytest.ini", "harness/__init__.py", "harness/processes.py"]


@pytest.fixture
def started(tmp_path):
    """Starts a test with this text as Bazel does, in its own process group."""
    inputs = tmp_path / "runfiles/fsdpd"
    for name in SHARED:
        (inputs / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / name, inputs / "tests" / name)
    (inputs / "declared.txt").write_text("as it was")
    machine = {"python": (ROOT / ".python").resolve(), "tools": "/none", "home": tmp_path, "cache": tmp_path, "open_files": 500,
               "capabilities": re.search(r"^CapEff:\s(\w+)$", pathlib.Path("/proc/self/status").read_text(), re.M)[1]}
    for name in ("tmp", "outputs"):
        (tmp_path / name).mkdir()
    environment = {"PATH": os.environ["PATH"], "TEST_SRCDIR": str(inputs.parent), "TEST_WORKSPACE": "fsdpd",
                   "TEST_TMPDIR": str(tmp_path / "tmp"), "TEST_UNDECLARED_OUTPUTS_DIR": str(tmp_path / "outputs"),
                   "XML_OUTPUT_FILE": str(tmp_path / "test.xml")}

    def start(text, **recorded):
        (inputs / "machine.txt").write_text("".join(f"{name}={value}\n" for name, value in (machine | recorded).items()))
        (inputs / "tests/test_it.py").write_text(text)
        return subprocess.Popen([ROOT / "tests/run_file.sh", "tests/test_it.py"], env=environment, start_new_session=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return start


def test_a_test_sees_copies_of_its_inputs_and_nothing_else(started, tmp_path):
    running = started(f"""
import os, pathlib
def test_it(tmp_path):
    here = pathlib.Path.cwd()
    assert (here / "declared.txt").read_text() == "as it was" and not (here / "README.md").exists()
    (here / "declared.txt").write_text("changed")
    assert os.environ["HOME"] == "{tmp_path}" and str(tmp_path).startswith("/tmp/fsdpd-test-")
    pathlib.Path("{tmp_path}/scratch").write_text(str(tmp_path))
""")
    said = running.communicate(timeout=60)[0]
    assert running.returncode == 0, said
    assert (tmp_path / "runfiles/fsdpd/declared.txt").read_text() == "as it was"
    assert not pathlib.Path((tmp_path / "scratch").read_text()).exists() and not list((tmp_path / "tmp").iterdir())


def test_a_test_finds_no_program_in_usr_local(started):
    """A program there was started instead of Debian's, and is not an input."""
    running = started("""
import os
def test_it():
    assert "/usr/local" not in os.environ["PATH"] and "/usr/bin" in os.environ["PATH"]
""")
    said = running.communicate(timeout=60)[0]
    assert running.returncode == 0, said


def test_a_test_runs_with_the_recorded_limits(started):
    """It had the limits of the shell that started the Bazel server."""
    running = started("""
import resource
def test_it():
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (500, 500)
""")
    said = running.communicate(timeout=60)[0]
    assert running.returncode == 0, said


@pytest.mark.parametrize("recorded", [{"capabilities": "0000000000000001"}, {"open_files": 1 << 40}], ids=str)
def test_a_test_fails_on_a_machine_that_differs_from_the_record(started, recorded):
    running = started("def test_it(): pass", **recorded)
    said = running.communicate(timeout=60)[0]
    assert running.returncode == 1 and "run: bazel shutdown" in said, said


def test_a_failed_test_keeps_its_logs(started, tmp_path):
    running = started("""
def test_it(tmp_path):
    (tmp_path / "coordinator.log").write_text("why")
    assert False
""")
    said = running.communicate(timeout=60)[0]
    assert running.returncode == 1, said
    assert [path.read_text() for path in (tmp_path / "outputs").rglob("coordinator.log")] == ["why"]


def test_a_stopped_test_runs_its_fixtures(started, tmp_path):
    """Bazel signals the process group, at a time limit and on Ctrl-C. Daemons of the test are in other groups."""
    running = started(f"""
import pathlib, time, pytest
@pytest.fixture
def daemon():
    pathlib.Path("{tmp_path}/began").touch()
    yield
    time.sleep(0.3)
    pathlib.Path("{tmp_path}/stopped").touch()
def test_it(daemon):
    time.sleep(100)
""")
    wait_until("the test runs", (tmp_path / "began").exists, timeout_s=60)
    os.killpg(running.pid, signal.SIGTERM)
    said = running.communicate(timeout=60)[0]
    assert running.returncode != 0 and (tmp_path / "stopped").exists(), said
    assert not list((tmp_path / "tmp").iterdir())


def test_every_test_is_in_one_shard():
    items = list(range(7))
    shards = [conftest.share(items, 3, shard) for shard in range(3)]
    assert sorted(item for mine, _ in shards for item in mine) == items
    assert all(sorted(mine + others) == items for mine, others in shards)


def test_a_run_stops_an_orphaned_run_of_the_same_test(started, tmp_path):
    """When the orphaned run ended, it removed the files of the new run."""
    text = f"""
import pathlib, time, pytest
@pytest.fixture
def daemon():
    pathlib.Path("{tmp_path}/began").touch()
    yield
    pathlib.Path("{tmp_path}/stopped").touch()
def test_it(daemon):
    time.sleep(SLEEP)
    assert pathlib.Path("tests/test_it.py").exists()
"""
    former = started(text.replace("SLEEP", "100"))
    wait_until("the test runs", (tmp_path / "began").exists, timeout_s=60)
    running = started(text.replace("SLEEP", "0"))
    said = running.communicate(timeout=90)[0]
    assert running.returncode == 0 and (tmp_path / "stopped").exists(), said
    assert former.wait(60) != 0
