"""Builds and tests the project: `tests/run` for the tests of every commit, `tests/run NAME...` for a tier or parts.
Bazel labels after the names restrict the tests: `tests/run unit //agent/...`, `tests/run integration
//tests/integration:test_queue`.

{tiers}

The last line is `N passed, N failed` (and `, N skipped` if there are any). Exit code: 0 if all passed, 1 if a test failed
or nothing ran, 2 for an invalid argument, 130 after Ctrl-C, which stops all started processes.

The tier of a test is in the tags of its Bazel target or in its pytest mark (`nightly`, `gpu`); the default is the commit
tier. Tags: `gpu` with `manual`; `seeds` for a test that also runs in the commit tier with fewer cases; `threads` for a test
in the part `threads`, which runs with ThreadSanitizer in minutes instead of a night; `no-tsan` for a test that never does,
because its gRPC server passes an agent's stream between threads, and ThreadSanitizer reports each handover, since Debian's
library is not instrumented.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import line_coverage
from counts import Counts, count_bazel_tests, count_junit, durations, executed, test_results
from harness.processes import become_subreaper, descendants, interrupt_with_parent

ROOT = pathlib.Path(__file__).resolve().parent.parent
BAZEL = os.environ.get("BAZEL", "bazel").split()
# Bazel's exit codes: 3 is "built, and some tests failed"; what failed is then in the results.
BAZEL_TESTS_FAILED = 3
# Directories of pytest files that Bazel runs (third_party/rules/pytest.bzl).
PROCESS_TESTS = ["integration", "robustness", "clients", "parity"]
# Targets of unit tests: all but those of process tests.
UNIT = ["//...", *(f"-//tests/{directory}/..." for directory in PROCESS_TESTS)]
# Process tests mostly wait: this many run at a time per core, and each takes up to 3 GiB.
PER_CORE, GIB_EACH = 2, 3
SLOWEST = 20

# How often a night rolls the dice for each time that a commit does, and how often under a sanitizer, which is slow.
NIGHT_SEEDS, SANITIZER_SEEDS = 100, 0.2
# Settings that change how the math libraries round.
PROCESSORS = ["OMP_NUM_THREADS=2", "ATEN_CPU_CAPABILITY=default", "MKL_CBWR=COMPATIBLE"]
# Seconds of new cases for each fuzzer, of a replay and of a search.
REPLAY_SECONDS, FUZZ_SECONDS = 2, 300
# Seconds for a small, medium, large and enormous test where much more is asked of each.
LONGER = "--test_timeout=600,1800,1800,3600"

CLUSTER = ["//tests:cluster"]
PROGRAMS = [*CLUSTER, "//examples/plugin:residual_mlp.so", "//fsdp/model/testing:still_plugin.so",
            "//fsdp/model/testing:spike_plugin.so", "//agent/testing:fake_rank", "//fsdp/engine:train_local",
            "//tests/perf:scrape"]
# (seconds, name) of the test cases that Bazel ran in this run.
SLOW: list[tuple[float, str]] = []


# SIGHUP, when the terminal closes, does not reach children: they have their own sessions.
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    pass


class Children:
    """Runs commands, each in a separate process group, so that an interrupt reaches all of its processes."""

    GRACE_S = 90  # More than Bazel gives tests, whose fixtures stop daemons (.bazelrc: local_termination_grace_seconds).

    def __init__(self):
        become_subreaper()

    def run(self, command, **kwargs):
        child = self.start(command, **kwargs)
        try:
            return child.wait()
        finally:
            self.stop(child)

    @staticmethod
    def start(command, **kwargs):
        sys.stdout.flush()
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True, preexec_fn=interrupt_with_parent, **kwargs)

    def stop(self, child):
        """Stops all processes of the group, also after its command has exited."""
        if child.poll() is None:
            self.signal_group(child, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(self.GRACE_S)
        # The Bazel server daemonizes out of the group; stop_all() is for it.
        self.signal_group(child, signal.SIGKILL)
        child.wait()

    def stop_all(self):
        """Also stops descendants that left their group: a Bazel server exits on SIGTERM, while `bazel shutdown` does
        not find a server that is starting. Keeps a server that existed before."""
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
    """Bazel's progress line overwrites itself on a terminal. Elsewhere each update is a new line, so print one per 15
    s."""
    return [] if sys.stderr.isatty() else ["--color=no", "--curses=no", "--show_progress_rate_limit=15"]


def build(targets, *flags):
    if CHILDREN.run(BAZEL + ["build", *quiet_progress(), *flags, *targets]) != 0:
        print(f"build of {' '.join(targets)} failed; its log is above", flush=True)
        return Counts(failed=1)
    return Counts()


def nothing_to_run(parts, labels):
    print(f"{parts}: no tests of {' '.join(labels)}", flush=True)
    return Counts()


def bazel_tests(scratch, name, targets, *flags):
    events = scratch / f"{name}.json"
    code = CHILDREN.run(BAZEL + ["test", *quiet_progress(), "--keep_going", "--test_summary=terse",
                                 f"--build_event_json_file={events}", *flags, "--", *targets])
    counts = count_bazel_tests(events) if events.exists() else Counts()
    if events.exists():
        ran, reused = executed(events)
        print(f"{name}: targets and shards: {ran} ran, {reused} reused", flush=True)
        SLOW.extend(durations(events))
    if code not in (0, BAZEL_TESTS_FAILED):
        print(f"bazel test ended with {code}; its log is above", flush=True)
        counts.failed += 1
    return counts


def below(label, directory):
    """Returns the part of a label or pattern below tests/`directory` as a pattern; None if there is none."""
    package = f"//tests/{directory}"
    if label in ("//...", "//tests/..."):
        return f"{package}/..."
    return label if re.match(rf"{package}(:|/|$)", label) else None


def is_unit(label):
    return label not in [below(label, directory) for directory in PROCESS_TESTS]


def run_unit(scratch, labels):
    """Runs GoogleTest cases of all directories, and compiles the CUDA rank, which needs no GPU."""
    if not labels:
        return build(["//fsdp:fsdpd-rank"], "--config=cuda") + bazel_tests(scratch, "unit", UNIT)
    own = [label for label in labels if is_unit(label)]
    return bazel_tests(scratch, "unit", [*own, *UNIT[1:]]) if own else nothing_to_run("unit", labels)


def run_processes(scratch, directories, labels):
    """Runs all process tests in one Bazel invocation: separate ones leave cores idle at the end of each."""
    requested = [below(label, directory) for directory in directories for label in labels or ["//tests/..."]]
    targets = [pattern for pattern in requested if pattern]
    if not targets:
        return nothing_to_run(", ".join(directories), labels)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    at_once = max(1, min(PER_CORE * len(os.sched_getaffinity(0)), memory_gib // GIB_EACH))
    counts = build(targets)
    return counts if counts.failed else bazel_tests(
        scratch, "processes", targets, f"--jobs={at_once}", f"--local_cpu_resources={at_once}")


def run_processors(scratch, labels):
    """Results must not depend on the processor: each of these settings has another summation order."""
    counts = Counts()
    for setting in PROCESSORS:
        # Excluded labels come before the one that brings parity back.
        counts += bazel_tests(scratch, f"processors-{setting}", [*UNIT, "//tests/parity/..."], LONGER, f"--test_env={setting}")
    return counts


def run_seeds(scratch, labels):
    return bazel_tests(scratch, "seeds", labels or UNIT, "--build_tests_only", "--test_tag_filters=seeds", LONGER,
                       f"--test_env=FSDPD_SEED_FACTOR={NIGHT_SEEDS}")


def run_sanitizer(name, *flags):
    return lambda scratch, labels: bazel_tests(
        scratch, name, labels or UNIT, f"--config={name}", "--build_tests_only", LONGER,
        f"--test_env=FSDPD_SEED_FACTOR={SANITIZER_SEEDS}", *flags)


def run_fuzzers(what, seconds):
    """Each fuzzer is one case; tests/fuzz.py handles its findings."""
    def part(scratch, labels):
        # They are `manual`, so no wildcard finds them.
        requested = f"attr(tags, '\\bfuzz\\b', set({' '.join(labels or ['//...'])}))"
        targets = query(requested if what == "search" else f"{requested} except attr(tags, '\\bnightly\\b', //...)")
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
    """A test that needs more GPUs than available skips itself."""
    if not any(pathlib.Path("/dev").glob("nvidia[0-9]*")):
        print("tests/run gpu: this machine has no NVIDIA GPU", flush=True)
        return Counts(failed=1)
    # They are `manual`, so no wildcard finds them.
    targets = query(f"attr(tags, '\\bgpu\\b', tests(set({' '.join(labels or ['//...'])})))")
    return bazel_tests(scratch, "gpu", targets, "--config=cuda", LONGER) if targets else Counts(failed=1)


def ask_bazel(*arguments):
    done = subprocess.run([*BAZEL, *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bazel {' '.join(arguments)} failed with exit code {done.returncode}:\n{done.stderr}")
    return done.stdout


def query(expression):
    return ask_bazel("query", "--noshow_progress", expression).split()


def bazel_bin(config):
    return pathlib.Path(ask_bazel("info", config, "bazel-bin").strip())


def path_of(label):
    return pathlib.PurePosixPath(label.removeprefix("//").replace(":", "/"))


def shipped_files():
    """Files of the repository except those of tests: test files, and their shared cases, fakes and scripted peers."""
    tests = query("labels(srcs, attr(testonly, 1, //...)) + labels(hdrs, attr(testonly, 1, //...))"
                  " + labels(srcs, tests(//...))")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return set(map(pathlib.PurePosixPath, listed)) - set(map(path_of, tests))


def run_coverage(scratch, labels):
    """Runs tests with clang's counters, and prints the shipped lines that they ran. Reads the programs too: otherwise a
    file that no test links would be missing instead of uncovered."""
    profiles, merged, summary = scratch / "profiles", scratch / "all.profdata", scratch / "lines.json"
    profiles.mkdir()
    config = "--config=coverage"
    programs = query(f"kind(cc_binary, set({' '.join(labels or ['//...'])})) except attr(tags, manual, //...)")
    counts = build(programs, config) if programs else Counts()
    counts += bazel_tests(scratch, "coverage", labels or UNIT, config, "--build_tests_only", LONGER,
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
    requested = query(f"buildfiles(set({' '.join(labels or ['//...'])}))")
    rooms = {path_of(label).parent for label in requested if label.endswith(":BUILD")}
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


def run_pytest(scratch, directory, *arguments):
    junit = scratch / f"{pathlib.PurePath(directory).stem}.xml"
    code = CHILDREN.run(pytest_command(f"tests/{directory}", junit, *arguments))
    return count_pytest(code, junit)


def run_with(targets, directories, mark, *flags):
    """Builds the programs for the tests of these directories, and runs the tests with a mark outside Bazel."""
    def part(scratch, labels):
        counts = build(targets, *flags)
        return counts if counts.failed else sum((run_pytest(scratch, directory, "-m", mark) for directory in directories), counts)
    return part


def run_kubelets(scratch, labels):
    """Programs of other projects are built into the user's cache once."""
    counts = build(CLUSTER)
    for command in (["debian/build"], ["kubernetes/build"], ["kubernetes/build", "nodes"]):
        if not counts.failed and CHILDREN.run([str(ROOT / "tests" / command[0]), *command[1:]]) != 0:
            counts = Counts(failed=1)
    # With what each fault took.
    return counts if counts.failed else run_pytest(scratch, "integration/kubelets", "--capture=no")


@dataclass
class Part:
    what: str
    run: Callable[[pathlib.Path, list], Counts] | None  # None: with the others of PROCESS_TESTS.
    takes_labels: bool = False


# In the order in which they run: the quickest verdict of a tier first.
PARTS = {
    "tidy": Part("how the repository is written", lambda scratch, labels: run_pytest(scratch, "tidy")),
    "unit": Part("the tests beside the code, and the CUDA rank compiles", run_unit, True),
    "corpora": Part("every case that the fuzzers keep, and new ones for seconds, with AddressSanitizer and UBSan",
                    run_fuzzers("replay", REPLAY_SECONDS), True),
    "threads": Part("those tagged so, with ThreadSanitizer", run_sanitizer("tsan", "--test_tag_filters=threads"), True),
    "integration": Part("real processes", None, True),
    "robustness": Part("real processes that are killed, stopped and cut off", None, True),
    "clients": Part("the Python package and the Go module against real processes", None, True),
    "parity": Part("the engine against PyTorch FSDP2 and transformers, and checkpoints against PyTorch's", None, True),
    "seeds": Part(f"property tests and fuzzing with {NIGHT_SEEDS} times the cases", run_seeds, True),
    "fuzz": Part(f"libFuzzer on the same for {FUZZ_SECONDS // 60} minutes each", run_fuzzers("search", FUZZ_SECONDS), True),
    "asan": Part("the tests beside the code, with AddressSanitizer and UBSan", run_sanitizer("asan"), True),
    "processors": Part("run unit and parity tests with other rounding settings", run_processors),
    "tsan": Part("the same with ThreadSanitizer", run_sanitizer("tsan", "--test_tag_filters=-no-tsan"), True),
    "long": Part("real processes, the tests marked nightly", run_with(PROGRAMS, ["integration", "robustness", "clients", "parity"], "nightly")),
    "gpu-unit": Part("the tests beside the code that need a GPU", run_gpu_unit, True),
    "gpu-jobs": Part("jobs and FSDP2 on 2 GPUs", run_with(PROGRAMS, ["gpu", "clients"], "gpu", "--config=cuda")),
    "kubelets": Part("the images on real kubelets, by root, with what ends there; among long's once this has built what it needs",
                     run_kubelets),
    "coverage": Part("line coverage of the tests beside the code, by room; no verdict of its own", run_coverage, True),
}

TIERS = {
    "commit": ("what CI runs; the default", ["tidy", "unit", "integration", "robustness", "clients", "parity"]),
    "nightly": ("besides, from a warm cache within two hours", ["corpora", "seeds", "fuzz", "asan", "tsan", "processors", "long"]),
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
    if labels and len(labels) == len(arguments):
        wrong(f"labels need a part: tests/run unit {labels[0]}")
    requested = set()
    for argument in [each for each in arguments if each not in labels] or ["commit"]:
        if argument.startswith("-"):
            wrong(f"unknown option '{argument}'; there is --help")
        if argument not in TIERS and argument not in PARTS:
            wrong(f"unknown name '{argument}'; there are: {' '.join([*TIERS, *PARTS])}")
        requested.update(TIERS[argument][1] if argument in TIERS else [argument])
    names = [name for name in PARTS if name in requested]
    whole = [name for name in names if labels and not PARTS[name].takes_labels]
    if whole:
        wrong(f"{labels[0]}: {whole[0]} takes no labels")
    if {"unit", *PROCESS_TESTS}.issuperset(names):
        for label in labels:
            if not ("unit" in names and is_unit(label)) and not any(below(label, name) for name in names):
                wrong(f"{label}: is in none of {' '.join(names)}")
    return names, labels


def check_labels(labels):
    """`bazel test` exits with 1 for an unknown label, as for a failed build. Other errors of the query, such as in a
    BUILD file, are left to the build, which prints them and fails."""
    if labels:
        quoted = " ".join(f'"{label}"' for label in labels)
        done = subprocess.run([*BAZEL, "query", "--noshow_progress", f"set({quoted})"], cwd=ROOT,
                              capture_output=True, text=True)
        if done.returncode != 0 and re.search("no such target|no such package|no targets found", done.stderr):
            wrong(f"invalid labels: {done.stderr.strip()}")


def wrong(what):
    print(f"tests/run: {what}", file=sys.stderr)
    sys.exit(2)


def run(names, labels, scratch):
    heading("setup")
    if CHILDREN.run([str(ROOT / "deploy/setup"), "--tools"]) != 0:
        print("deploy/setup failed; its message is above")
        return Counts(failed=1)
    check_labels(labels)
    total, processes = Counts(), [name for name in names if name in PROCESS_TESTS]
    for name in names:
        if name in processes[1:]:
            continue
        start, step = time.monotonic(), ", ".join(processes) if name in processes else name
        heading(step)
        counts = run_processes(scratch, processes, labels) if name in processes else PARTS[name].run(scratch, labels)
        total += counts
        heading(f"{step}: {counts} in {time.monotonic() - start:.0f} s")
    print_slowest()
    return total


def print_slowest():
    slowest = sorted(SLOW, reverse=True)[:SLOWEST]
    if slowest:
        heading(f"the {len(slowest)} slowest test cases of {len(SLOW)} that ran")
        for seconds, name in slowest:
            print(f"{seconds:7.1f} s  {name}", flush=True)


def interrupt(signum, frame):
    # Once: a second Ctrl-C must not cut short the clean-up that the first one began.
    for each in INTERRUPTS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted()


def main():
    names, labels = parse(sys.argv[1:])
    for each in INTERRUPTS:
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
