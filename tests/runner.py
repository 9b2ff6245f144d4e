"""Builds and tests the project: `tests/run` for everything, `tests/run NAME...` for some parts.

The last line is `N passed, N failed` (and `, N skipped` when there are any). Exit code: 0 when all passed, 1 when
anything failed or nothing ran, 2 for a wrong argument, 130 after Ctrl-C, which stops everything started from here.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from dataclasses import dataclass
from urllib.parse import unquote, urlparse

from harness.processes import become_subreaper, descendants

ROOT = pathlib.Path(__file__).resolve().parent.parent
BAZEL = os.environ.get("BAZEL", "bazel").split()
# Bazel's exit codes: 3 is "built, and some tests failed"; what failed is then in the results.
BAZEL_TESTS_FAILED = 3

PROGRAMS = ["//coordinator:fsdpd-coordinator", "//agent:fsdpd-agent", "//fsdp:fsdpd-rank", "//client:fsdpctl",
            "//examples/plugin:residual_mlp.so"]
PARITY_PROGRAMS = ["//fsdp/engine:train_local", "//client:fsdpctl"]


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other):
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self):
        text = f"{self.passed} passed, {self.failed} failed"
        return text + (f", {self.skipped} skipped" if self.skipped else "")


class Interrupted(Exception):
    pass


class Children:
    """Runs one command at a time, each in a process group of its own, so that an interrupt reaches all of it."""

    GRACE_S = 30  # Bazel stops its compilers first; pytest's fixtures stop their daemons.

    def __init__(self):
        self.current = None
        become_subreaper()

    def run(self, command, **kwargs):
        sys.stdout.flush()
        self.current = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **kwargs)
        try:
            return self.current.wait()
        finally:
            self.stop()

    def stop(self):
        """No process of the group outlives its command, whether it ended by itself or is being interrupted."""
        child, self.current = self.current, None
        if child.poll() is None:
            self.signal_group(child, signal.SIGINT)
            try:
                child.wait(self.GRACE_S)
            except subprocess.TimeoutExpired:
                pass
        # The Bazel server daemonizes out of the group; stop_all() is for it.
        self.signal_group(child, signal.SIGKILL)
        child.wait()

    def stop_all(self):
        """Also what left its group: a Bazel server is below this process all the same, and ends on SIGTERM, while
        `bazel shutdown` finds none that is only starting. A server that was here before stays."""
        for signum in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + self.GRACE_S
            for process in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):  # It ended since it was listed.
                    os.kill(process.pid, signum)
            while descendants(os.getpid()) and time.monotonic() < deadline:
                time.sleep(0.05)

    @staticmethod
    def signal_group(child, signum):
        try:
            os.killpg(child.pid, signum)
        except ProcessLookupError:
            pass


CHILDREN = Children()


def heading(text):
    # In color on a terminal only; a log file stays plain.
    print(f"\033[1m=== {text}\033[0m" if sys.stdout.isatty() else f"=== {text}", flush=True)


def quiet_progress():
    """Bazel's progress line overwrites itself on a terminal; elsewhere it is a new line, one in 15 s will do."""
    return [] if sys.stderr.isatty() else ["--color=no", "--curses=no", "--show_progress_rate_limit=15"]


def build(targets, *flags):
    if CHILDREN.run(BAZEL + ["build", *quiet_progress(), *flags, *targets]) != 0:
        print(f"build of {' '.join(targets)} failed; its log is above", flush=True)
        return Counts(failed=1)
    return Counts()


def count_junit(path):
    """Test cases in a JUnit file, as GoogleTest, pytest and Bazel's own wrapper write them."""
    counts = Counts()
    for case in xml.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts.failed += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            counts.skipped += 1
        else:
            counts.passed += 1
    return counts


def count_bazel_tests(events_file):
    """From Bazel's build event file, which names exactly the tests of this run, cached or not."""
    total = Counts()
    for line in events_file.read_text().splitlines():
        event = json.loads(line)
        result = event.get("testResult")
        if not result:
            continue
        counts = Counts()
        for output in result.get("testActionOutput", []):
            if output["name"] == "test.xml":
                try:
                    counts = count_junit(unquote(urlparse(output["uri"]).path))
                except (OSError, xml.ParseError):
                    pass
        if result.get("status") != "PASSED" and counts.failed == 0:
            # Crashed or timed out: no test case of its own says so.
            print(f"{event['id']['testResult']['label']}: {result.get('status', 'no result')}")
            counts.failed = 1
        total += counts
    return total


def run_unit(scratch):
    """GoogleTest cases of all folders; and the CUDA rank must compile, for which no GPU is needed."""
    counts = build(["//fsdp:fsdpd-rank"], "--config=cuda")
    events = scratch / "events.json"
    code = CHILDREN.run(BAZEL + ["test", *quiet_progress(), "--keep_going", "--test_summary=terse",
                                 f"--build_event_json_file={events}", "//..."])
    if code not in (0, BAZEL_TESTS_FAILED):
        print(f"bazel test ended with {code}; its log is above", flush=True)
        counts.failed += 1
    return counts + (count_bazel_tests(events) if events.exists() else Counts())


def run_pytest(scratch, folder, *arguments):
    junit = scratch / f"{folder}.xml"
    code = CHILDREN.run([str(ROOT / ".python/bin/python"), "-m", "pytest", f"tests/{folder}",
                         f"--junitxml={junit}", *arguments])
    if not junit.exists():
        return Counts(failed=1)
    counts = count_junit(junit)
    # A crash of pytest itself, or of what it collects, must not read as success.
    return counts if code == 0 or counts.failed else counts + Counts(failed=1)


def run_with(targets, folder):
    def part(scratch):
        counts = build(targets)
        return counts if counts.failed else run_pytest(scratch, folder)
    return part


# In the order of `tests/run` without arguments: the quickest verdict first.
PARTS = {
    "tidy": lambda scratch: run_pytest(scratch, "tidy"),
    "unit": run_unit,
    "integration": run_with(PROGRAMS, "integration"),
    "parity": run_with(PARITY_PROGRAMS, "parity"),
}


def parse(arguments):
    if any(argument in ("-h", "--help") for argument in arguments):
        print(f"usage: tests/run [NAME...]\n\n{__doc__}\nNames: {' '.join(PARTS)}")
        sys.exit(0)
    unknown = [argument for argument in arguments if argument not in PARTS]
    if unknown:
        print(f"tests/run: unknown part '{unknown[0]}'; there are: {' '.join(PARTS)}", file=sys.stderr)
        sys.exit(2)
    return [name for name in PARTS if name in arguments] or list(PARTS)


def run(names, scratch):
    heading("setup")
    if CHILDREN.run([str(ROOT / "deploy/setup")]) != 0:
        print("deploy/setup failed; its message is above")
        return Counts(failed=1)
    total = Counts()
    for name in names:
        heading(name)
        start = time.monotonic()
        counts = PARTS[name](scratch)
        total += counts
        heading(f"{name}: {counts} in {time.monotonic() - start:.0f} s")
    return total


def interrupt(signum, frame):
    # Once: a second Ctrl-C must not cut short the clean-up that the first one began.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted()


def main():
    names = parse(sys.argv[1:])
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, interrupt)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="fsdpd-tests-"))
    try:
        total = run(names, scratch)
    except Interrupted:
        CHILDREN.stop_all()
        print("interrupted; everything that was started has been stopped", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(total)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
