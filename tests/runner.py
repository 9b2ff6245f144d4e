"""Builds and tests the project: `tests/run` for what every commit must pass, `tests/run NAME...` for a tier or parts.
Bazel labels behind the names (`tests/run unit //agent/...`) narrow what is tested beside the code.

{tiers}

The last line is `N passed, N failed` (and `, N skipped` when there are any). Exit code: 0 when all passed, 1 when
anything failed or nothing ran, 2 for a wrong argument, 130 after Ctrl-C, which stops everything started from here.

Where a test's tier is written: the tags of its Bazel target (`gpu` with `manual`; `seeds` for one that also runs in the
commit tier, with fewer cases; `threads` for one that the part of that name runs under ThreadSanitizer, in minutes, where
a night runs all; `no-tsan` for one that neither does: in it a server of gRPC hands an agent's stream from thread to thread,
and Debian's library is not instrumented, so that each handover is reported), or its pytest mark (`nightly`, `gpu`);
without any it is of the commit tier.
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
from collections.abc import Callable
from dataclasses import dataclass

import line_coverage
from counts import Counts, count_bazel_tests, count_junit, test_results
from harness.processes import become_subreaper, descendants

ROOT = pathlib.Path(__file__).resolve().parent.parent
BAZEL = os.environ.get("BAZEL", "bazel").split()
# Bazel's exit codes: 3 is "built, and some tests failed"; what failed is then in the results.
BAZEL_TESTS_FAILED = 3
# Pytest's, for a file that has no test with the mark asked for.
PYTEST_FOUND_NONE = 5
# How many files of tests run at a time where they may run beside each other.
AT_ONCE = 3
# Files that hold a machine to seconds: how soon the end of ranks or a late scrape is noticed.
ALONE = {"test_hangs", "test_failures", "test_coordinator_metrics", "test_metrics_life", "test_recorded_scrapes"}

# How often a night rolls the dice for each time that a commit does, and how often under a sanitizer, which is slow.
NIGHT_SEEDS, SANITIZER_SEEDS = 100, 0.2
# Seconds of new cases for each fuzzer, of a replay and of a search.
REPLAY_SECONDS, FUZZ_SECONDS = 2, 300
# Seconds for a small, medium, large and enormous test where much more is asked of each.
LONGER = "--test_timeout=600,1800,1800,3600"

PROGRAMS = ["//coordinator:fsdpd-coordinator", "//agent:fsdpd-agent", "//fsdp:fsdpd-rank", "//client:fsdpctl",
            "//examples/plugin:residual_mlp.so", "//fsdp/model/testing:still_plugin.so",
            "//fsdp/model/testing:spike_plugin.so", "//agent/testing:fake_rank", "//fsdp/engine:train_local",
            "//tests/perf:scrape"]
CLIENT_PROGRAMS = ["//coordinator:fsdpd-coordinator", "//agent:fsdpd-agent", "//fsdp:fsdpd-rank", "//client:fsdpctl"]
PARITY_PROGRAMS = ["//coordinator:fsdpd-coordinator", "//agent:fsdpd-agent", "//fsdp:fsdpd-rank", "//client:fsdpctl",
                   "//fsdp/engine:train_local", "//fsdp/checkpoint/testing:dcp_program"]


class Interrupted(Exception):
    pass


class Children:
    """Runs commands, each in a process group of its own, so that an interrupt reaches all of it."""

    GRACE_S = 30  # Bazel stops its compilers first; pytest's fixtures stop their daemons.

    def __init__(self):
        become_subreaper()

    def run(self, command, **kwargs):
        child = self.start(command, **kwargs)
        try:
            return child.wait()
        finally:
            self.stop(child)

    def run_beside(self, commands, at_once, ended):
        """Runs commands, `at_once` of them at a time, and calls ended(number, what it said) for each; their exit codes."""
        waiting, running, codes = list(enumerate(commands)), {}, [None] * len(commands)
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    number, command = waiting.pop(0)
                    said = tempfile.TemporaryFile("w+", errors="replace")
                    running[number] = self.start(command, stdout=said, stderr=subprocess.STDOUT), said
                for number, (child, said) in list(running.items()):
                    if child.poll() is not None:
                        codes[number] = child.returncode
                        self.stop(child)
                        ended(number, self.said(running.pop(number)[1]))
                time.sleep(0.05)
        finally:
            self.stop(*(child for child, _ in running.values()))
            for _, said in running.values():
                print(self.said(said), end="", flush=True)
        return codes

    @staticmethod
    def said(file):
        file.seek(0)
        with file:
            return file.read()

    @staticmethod
    def start(command, **kwargs):
        sys.stdout.flush()
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True, **kwargs)

    def stop(self, *children):
        """No process of the groups outlives its command, whether that ended by itself or is being interrupted."""
        running = [child for child in children if child.poll() is None]
        for child in running:
            self.signal_group(child, signal.SIGINT)
        deadline = time.monotonic() + self.GRACE_S
        for child in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0, deadline - time.monotonic()))
        # The Bazel server daemonizes out of the group; stop_all() is for it.
        for child in children:
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


def bazel_tests(scratch, name, targets, *flags):
    events = scratch / f"{name}.json"
    code = CHILDREN.run(BAZEL + ["test", *quiet_progress(), "--keep_going", "--test_summary=terse",
                                 f"--build_event_json_file={events}", *flags, *targets])
    counts = count_bazel_tests(events) if events.exists() else Counts()
    if code not in (0, BAZEL_TESTS_FAILED):
        print(f"bazel test ended with {code}; its log is above", flush=True)
        counts.failed += 1
    return counts


def run_unit(scratch, labels):
    """GoogleTest cases of all folders; and the CUDA rank must compile, for which no GPU is needed."""
    counts = Counts() if labels else build(["//fsdp:fsdpd-rank"], "--config=cuda")
    return counts + bazel_tests(scratch, "unit", labels or ["//..."])


def run_seeds(scratch, labels):
    return bazel_tests(scratch, "seeds", labels or ["//..."], "--build_tests_only", "--test_tag_filters=seeds", LONGER,
                       f"--test_env=FSDPD_SEED_FACTOR={NIGHT_SEEDS}")


def run_sanitizer(name, *flags):
    return lambda scratch, labels: bazel_tests(
        scratch, name, labels or ["//..."], f"--config={name}", "--build_tests_only", LONGER,
        f"--test_env=FSDPD_SEED_FACTOR={SANITIZER_SEEDS}", *flags)


def run_fuzzers(what, seconds):
    """Each fuzzer is one case; tests/fuzz.py says what becomes of what it finds."""
    def part(scratch, labels):
        # They are `manual`, so no wildcard finds them.
        asked = f"attr(tags, '\\bfuzz\\b', set({' '.join(labels or ['//...'])}))"
        targets = query(asked if what == "search" else f"{asked} except attr(tags, '\\bnightly\\b', //...)")
        counts = build(targets, "--config=fuzz") if targets else Counts(failed=1)
        if counts.failed:
            return counts
        outputs, result = bazel_bin("--config=fuzz"), scratch / f"{what}.json"
        programs = [outputs / path_of(label) for label in targets]
        CHILDREN.run([ROOT / ".python/bin/python", ROOT / "tests/fuzz.py", what, str(seconds), result, *programs])
        if not result.exists():
            return Counts(failed=1)
        ended = json.loads(result.read_text())
        return Counts(passed=len(ended["passed"]), failed=len(ended["failed"]))
    return part


def run_gpu_unit(scratch, labels):
    """A test that needs more GPUs than there are skips itself."""
    if not any(pathlib.Path("/dev").glob("nvidia[0-9]*")):
        print("tests/run gpu: this machine has no NVIDIA GPU", flush=True)
        return Counts(failed=1)
    # They are `manual`, so no wildcard finds them.
    targets = query(f"attr(tags, '\\bgpu\\b', tests(set({' '.join(labels or ['//...'])})))")
    return bazel_tests(scratch, "gpu", targets, "--config=cuda", LONGER) if targets else Counts(failed=1)


def query(expression):
    done = subprocess.run(BAZEL + ["query", "--noshow_progress", expression], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.split()


def bazel_bin(config):
    done = subprocess.run(BAZEL + ["info", config, "bazel-bin"], cwd=ROOT, capture_output=True, text=True)
    return pathlib.Path(done.stdout.strip())


def path_of(label):
    return pathlib.PurePosixPath(label.removeprefix("//").replace(":", "/"))


def shipped_files():
    """The repository's, without those of tests: test files, and the cases, fakes and scripted peers that they share."""
    tests = query("labels(srcs, attr(testonly, 1, //...)) + labels(hdrs, attr(testonly, 1, //...))"
                  " + labels(srcs, tests(//...))")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return set(map(pathlib.PurePosixPath, listed)) - set(map(path_of, tests))


def run_coverage(scratch, labels):
    """Runs tests with clang's counters, and prints which lines of what ships they ran. Programs are read as well: a file
    that no test links would be missing rather than bare."""
    profiles, merged, summary = scratch / "profiles", scratch / "all.profdata", scratch / "lines.json"
    profiles.mkdir()
    config = "--config=coverage"
    programs = query(f"kind(cc_binary, set({' '.join(labels or ['//...'])})) except attr(tags, manual, //...)")
    counts = build(programs, config) if programs else Counts()
    counts += bazel_tests(scratch, "coverage", labels or ["//..."], config, "--build_tests_only", LONGER,
                          "--nocache_test_results", f"--sandbox_writable_path={profiles}",
                          # Two processes of one test write to two files; later ones add to them.
                          f"--test_env=LLVM_PROFILE_FILE={profiles}/%2m.profraw")
    outputs = bazel_bin(config)
    tests = [label for label, _ in test_results(scratch / "coverage.json")]
    objects = [f"--object={outputs / path_of(label)}" for label in programs + tests]
    with open(summary, "w") as exported:
        code = CHILDREN.run(["llvm-profdata-14", "merge", "--sparse", "-o", merged, *profiles.glob("*.profraw")])
        code = code or CHILDREN.run(["llvm-cov-14", "export", "--summary-only", f"--instr-profile={merged}", *objects],
                                    stdout=exported)
    if code != 0:
        return counts + Counts(failed=1)
    # A room whose own tests did not run would look bare.
    asked = query(f"buildfiles(set({' '.join(labels or ['//...'])}))")
    rooms = {path_of(label).parent for label in asked if label.endswith(":BUILD")}
    shipped = {path for path in shipped_files() if path.parent in rooms}
    files = line_coverage.by_file(json.loads(summary.read_text()), shipped.__contains__)
    print(line_coverage.table(files), flush=True)
    return counts


def pytest_command(path, junit, *arguments):
    return [str(ROOT / ".python/bin/python"), "-m", "pytest", path, f"--junitxml={junit}", *arguments]


def count_pytest(code, junit):
    if not junit.exists():
        return Counts(failed=1)
    counts = count_junit(junit)
    # A crash of pytest itself, or of what it collects, must not read as success.
    return counts if code == 0 or counts.failed else counts + Counts(failed=1)


def run_pytest(scratch, folder, *arguments):
    junit = scratch / f"{pathlib.PurePath(folder).stem}.xml"
    code = CHILDREN.run(pytest_command(f"tests/{folder}", junit, *arguments))
    return count_pytest(code, junit)


def run_with(targets, folder, mark, *flags):
    """Builds what the tests of a folder start, and runs those with a mark."""
    def part(scratch, labels):
        counts = build(targets, *flags)
        return counts if counts.failed else run_pytest(scratch, folder, "-m", mark)
    return part


def run_beside(targets, folder, mark):
    """The same, file beside file, as tests of real processes wait more than they work: the longest first, as far as its
    size tells. Those of ALONE come after, one by one."""
    def part(scratch, labels):
        counts = build(targets)
        if counts.failed:
            return counts
        files = sorted((ROOT / "tests" / folder).glob("test_*.py"), key=lambda path: -path.stat().st_size)
        for some, at_once in ([file for file in files if file.stem not in ALONE], AT_ONCE), (
                [file for file in files if file.stem in ALONE], 1):
            counts += run_files(scratch, some, at_once, "-m", mark)
        # A mark that no test has must not read as success.
        return counts if counts.passed or counts.failed else Counts(failed=1)
    return part


def run_files(scratch, files, at_once, *arguments):
    def tell(number, said):
        heading(f"{files[number].relative_to(ROOT)}")
        print(said, end="", flush=True)

    results = [scratch / f"{file.stem}.xml" for file in files]
    commands = [pytest_command(file, junit, *arguments) for file, junit in zip(files, results)]
    codes = CHILDREN.run_beside(commands, at_once, tell)
    counts = Counts()
    for code, junit in zip(codes, results):
        if code != PYTEST_FOUND_NONE:
            counts += count_pytest(code, junit)
    return counts


def run_kubelets(scratch, labels):
    """What it starts beside the project's programs is built into the user's cache first, once."""
    counts = build(CLIENT_PROGRAMS)
    for command in (["debian/build"], ["kubernetes/build"], ["kubernetes/build", "nodes"]):
        if not counts.failed and CHILDREN.run([str(ROOT / "tests" / command[0]), *command[1:]]) != 0:
            counts = Counts(failed=1)
    # With what each fault took.
    return counts if counts.failed else run_pytest(scratch, "integration/kubelets", "--capture=no")


@dataclass
class Part:
    what: str
    run: Callable[[pathlib.Path, list], Counts]
    takes_labels: bool = False


# In the order in which they run: the quickest verdict of a tier first.
PARTS = {
    "tidy": Part("how the repository is written", lambda scratch, labels: run_pytest(scratch, "tidy")),
    "unit": Part("the tests beside the code, and the CUDA rank compiles", run_unit, True),
    "corpora": Part("every case that the fuzzers keep, and new ones for seconds, with AddressSanitizer and UBSan",
                    run_fuzzers("replay", REPLAY_SECONDS), True),
    "threads": Part("those tagged so, with ThreadSanitizer", run_sanitizer("tsan", "--test_tag_filters=threads"), True),
    "integration": Part("real processes", run_beside(PROGRAMS, "integration", "not nightly")),
    "robustness": Part("real processes that are killed, stopped and cut off",
                       run_with(CLIENT_PROGRAMS, "robustness", "not nightly")),
    "clients": Part("the Python package and the Go module against real processes",
                    run_with(CLIENT_PROGRAMS, "clients", "not nightly")),
    "parity": Part("the engine against PyTorch FSDP2 and transformers, and checkpoints against PyTorch's",
                   run_with(PARITY_PROGRAMS, "parity", "not nightly")),
    "seeds": Part(f"property tests and fuzzing with {NIGHT_SEEDS} times the cases", run_seeds, True),
    "fuzz": Part(f"libFuzzer on the same for {FUZZ_SECONDS // 60} minutes each", run_fuzzers("search", FUZZ_SECONDS), True),
    "asan": Part("the tests beside the code, with AddressSanitizer and UBSan", run_sanitizer("asan"), True),
    "tsan": Part("the same with ThreadSanitizer", run_sanitizer("tsan", "--test_tag_filters=-no-tsan"), True),
    "long": Part("real processes, the tests marked nightly", run_with(PROGRAMS, "integration", "nightly")),
    "gpu-unit": Part("the tests beside the code that need a GPU", run_gpu_unit, True),
    "gpu-jobs": Part("jobs and FSDP2 on 2 GPUs", run_with(PROGRAMS + PARITY_PROGRAMS, "gpu", "gpu", "--config=cuda")),
    "kubelets": Part("the images on real kubelets, by root, with what ends there; among long's once this has built what it needs",
                     run_kubelets),
    "coverage": Part("line coverage of the tests beside the code, by room; no verdict of its own", run_coverage, True),
}

TIERS = {
    "commit": ("what CI runs; the default", ["tidy", "unit", "integration", "robustness", "clients", "parity"]),
    "nightly": ("besides, from a warm cache within two hours", ["corpora", "seeds", "fuzz", "asan", "tsan", "long"]),
    "gpu": ("on a machine with GPUs", ["gpu-unit", "gpu-jobs"]),
}


def usage():
    lines = ["Tiers:"]
    lines += [f"  {name:<12} {what}: {' '.join(parts)}" for name, (what, parts) in TIERS.items()]
    lines += ["Parts:"] + [f"  {name:<12} {part.what}" for name, part in PARTS.items()]
    return "usage: tests/run [NAME...]\n\n" + __doc__.replace("{tiers}", "\n".join(lines))


def parse(arguments):
    if any(argument in ("-h", "--help") for argument in arguments):
        print(usage().rstrip())
        sys.exit(0)
    labels = [argument for argument in arguments if argument.startswith("//")]
    asked = set()
    for argument in [each for each in arguments if each not in labels] or ["commit"]:
        if argument not in TIERS and argument not in PARTS:
            wrong(f"unknown name '{argument}'; there are: {' '.join([*TIERS, *PARTS])}")
        asked.update(TIERS[argument][1] if argument in TIERS else [argument])
    names = [name for name in PARTS if name in asked]
    whole = [name for name in names if labels and not PARTS[name].takes_labels]
    if whole:
        wrong(f"{labels[0]}: {whole[0]} takes no labels")
    return names, labels


def wrong(what):
    print(f"tests/run: {what}", file=sys.stderr)
    sys.exit(2)


def run(names, labels, scratch):
    heading("setup")
    if CHILDREN.run([str(ROOT / "deploy/setup"), "--tools"]) != 0:
        print("deploy/setup failed; its message is above")
        return Counts(failed=1)
    total = Counts()
    for name in names:
        heading(name)
        start = time.monotonic()
        counts = PARTS[name].run(scratch, labels)
        total += counts
        heading(f"{name}: {counts} in {time.monotonic() - start:.0f} s")
    return total


def interrupt(signum, frame):
    # Once: a second Ctrl-C must not cut short the clean-up that the first one began.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted()


def main():
    names, labels = parse(sys.argv[1:])
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, interrupt)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="fsdpd-tests-"))
    try:
        total = run(names, labels, scratch)
    except Interrupted:
        CHILDREN.stop_all()
        print("interrupted; everything that was started has been stopped", file=sys.stderr)
        return 130
    except BaseException:
        CHILDREN.stop_all()
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(total)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
