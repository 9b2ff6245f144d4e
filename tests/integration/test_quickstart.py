"""Tests of deploy/quickstart: the daemons, the job, the HTML page in a real browser, and a complete cleanup."""

import os
import pathlib
import re
import signal
import subprocess
import uuid

import pytest

from harness import processes
from harness.programs import ROOT
from harness.wait import wait_until

QUICKSTART = ROOT / "deploy/quickstart"
CHROMIUM = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync"]
# At night one of them runs the build too, which may have something to do.
pytestmark = pytest.mark.timeout(600)


class Quickstart:
    """A run with a separate temporary directory, and a marker that identifies its processes."""

    def __init__(self, tmp_path, *arguments, bazel="true"):
        self.mark = uuid.uuid4().hex
        self.scratch = tmp_path / "scratch"
        self.scratch.mkdir()
        self.output = tmp_path / "output.txt"
        environment = {**os.environ, "TMPDIR": str(self.scratch), processes.MARK: self.mark}
        if bazel:  # `true`: the programs are built already, as for every test of this directory.
            environment["BAZEL"] = str(bazel)
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen([QUICKSTART, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=output,
                                            stderr=output, env=environment, start_new_session=True)

    def text(self):
        return self.output.read_text(errors="replace")

    def wait(self, timeout_s=500):
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s; it said:\n{self.text()}") from None

    def wait_ranks(self):
        wait_until("ranks run", lambda: "fsdpd-rank" in self.programs() or self.process.poll() is not None, timeout_s=500)
        assert self.process.poll() is None, self.text()

    def programs(self):
        """Names of the live programs that this run started."""
        return {process.program for process in processes.marked(self.mark)}

    def assert_nothing_left(self):
        assert not processes.marked(self.mark)
        ports = re.search(r"ports ([\d, ]+) are closed", self.text())
        assert ports, self.text()
        # The coordinator and two agents, and whatever ranks listened on.
        assert len(ports[1].split(",")) >= 3
        assert not [port for port in ports[1].split(",") if processes.listening(int(port))]


@pytest.fixture
def start(tmp_path):
    runs = []

    def begin(*arguments, **options):
        runs.append(Quickstart(tmp_path, *arguments, **options))
        return runs[-1]

    yield begin
    for run in runs:
        run.process.kill()
        run.process.wait()
        for process in processes.marked(run.mark):
            os.kill(process.pid, signal.SIGKILL)


def chromium(tmp_path, *arguments):
    done = subprocess.run([*CHROMIUM, f"--user-data-dir={tmp_path / 'browser'}", *map(str, arguments)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shape(output):
    """The output from the corpus on, without names and numbers. Progress lines depend on the terminal, and states
    before `running` on timing."""
    text = output[output.index("corpus "):]
    text = re.sub(r"^(?:\[=|step +\d+/\d|\S+ (?:queued|starting): ).*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"tiny-llama-\w+", "JOB", text)
    text = re.sub(r"[+-]?\d[\d.,]*(?: (?:ms|s|m|h|B|KiB|MiB|GiB|k|M|G)\b)?", "N", text)
    lines = [re.sub(r"(?:N ?)+", "N ", line).split() for line in text.splitlines()]
    # Where the page lies is the run's matter.
    return [line[:1] if line[:1] == ["page"] else line for line in lines if line]


@pytest.mark.parametrize("bazel", ["true", pytest.param(None, marks=pytest.mark.nightly)], ids=["built", "builds"])
def test_trains_and_leaves_only_html_page(start, tmp_path, bazel):
    run = start("--steps", "20", bazel=bazel)
    assert run.wait() == 0, run.text()
    printed = run.text()
    assert re.search(r"^start .*node-0 and node-1 with 2 cpu ranks each", printed, re.MULTILINE), printed
    run.assert_nothing_left()
    sample = re.search(r"^```\n(corpus .*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[1]
    assert shape(printed) == shape(sample), "README.md shows another output than this"
    page = pathlib.Path(re.search(r"^page\s+(\S+)$", printed, re.MULTILINE)[1])
    assert [path for path in run.scratch.rglob("*") if path.is_file()] == [page]

    source = page.read_text()
    assert not re.findall(r"(?:https?:)?//[\w.-]+\.\w", source), "the page must need nothing but itself"
    document = chromium(tmp_path, "--dump-dom", page.as_uri())
    assert document.count("<svg") == 6 and "Not measured" not in document
    assert "succeeded" in document and "20 steps" in document
    # A line for each series: five charts with one, and the memory of a rank with three.
    assert document.count("<polyline") == 8
    assert all(len(points.split()) == 20 for points in re.findall(r'<polyline[^>]* points="([^"]*)"', document))
    picture = tmp_path / "page.png"
    chromium(tmp_path, "--window-size=1200,1900", f"--screenshot={picture}", page.as_uri())
    assert picture.stat().st_size > 50_000, "an almost empty picture"


def test_output_and_keep_place_files(start, tmp_path):
    page = tmp_path / "here.html"
    run = start("--steps", "2", "--keep", "--output", page)
    assert run.wait() == 0, run.text()
    assert page.exists()
    kept = {path.name for path in run.scratch.rglob("*")}
    assert {"coordinator.log", "node-0.log", "node-1.log", "steps.jsonl", "tiny-llama.yaml", "corpus.txt"} <= kept
    assert {"rank-0.log", "rank-1.log", "rank-2.log", "rank-3.log"} <= kept


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_interrupt_leaves_nothing(start, number):
    run = start("--steps", "100000")
    run.wait_ranks()
    # To the whole group, as a terminal sends it.
    os.killpg(run.process.pid, number)
    assert run.wait(60) == 130, run.text()
    run.assert_nothing_left()
    assert "interrupted; everything that was started has been stopped" in run.text()
    assert not list(run.scratch.iterdir())


def test_interrupt_during_bazel_start_leaves_no_server(start, tmp_path):
    """Regression: `bazel shutdown` finds no server before it listens."""
    bazel = tmp_path / "bazel"
    bazel.write_text('#!/bin/sh\n[ "$1" = shutdown ] && exit 0\n'
                     f'setsid python3 -c "import time; time.sleep(1000)" --workspace_directory={ROOT} &\nwait\n')
    bazel.chmod(0o755)
    run = start(bazel=bazel)
    wait_until("its server is there", lambda: "python3" in {each.program for each in processes.marked(run.mark)
                                                            if "--workspace_directory" in each.command}, timeout_s=60)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(60) == 130, run.text()
    assert not processes.marked(run.mark)


def test_dead_daemon_is_named_and_directory_kept(start):
    run = start("--steps", "100000")
    run.wait_ranks()
    coordinator = next(each for each in processes.marked(run.mark) if each.program == "fsdpd-coordinator")
    os.kill(coordinator.pid, signal.SIGKILL)
    assert run.wait(90) == 1, run.text()
    assert "quickstart: coordinator was killed by SIGKILL" in run.text()
    assert "the end of" in run.text() and list(run.scratch.rglob("coordinator.log"))
    assert not processes.marked(run.mark)


@pytest.mark.parametrize("arguments, printed", [
    (["--bogus"], "unrecognized arguments: --bogus"),
    (["--steps", "many"], "'many' is not a number of steps"),
    (["--steps", "0"], "'0' is not a number of steps"),
    (["--steps", "1000000001"], "'1000000001' is not a number of steps from 1 to 1000000000"),
    (["--steps", 5000 * "9"], f"'{20 * '9'}...' is not a number of steps from 1 to 1000000000"),
    (["--step", "5"], "unrecognized arguments: --step 5"),
    (["--output", "/no/such/directory/page.html"], "no such directory: /no/such/directory"),
])
def test_unknown_flag_is_usage_error(start, arguments, printed):
    run = start(*arguments)
    assert run.wait(20) == 2
    assert printed in run.text() and "usage: deploy/quickstart" in run.text()
    assert not list(run.scratch.iterdir())


def test_help_lists_every_flag(start):
    run = start("--help")
    assert run.wait(20) == 0
    assert all(flag in run.text() for flag in ("--gpus", "--steps", "--output", "--keep"))


def test_gpus_without_driver_fails_before_build(start, tmp_path):
    if any(pathlib.Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has GPUs")
    run = start("--gpus")
    assert run.wait(20) == 1
    assert "quickstart: --gpus: " in run.text() and "build" not in run.text()
    assert not list(run.scratch.iterdir())
