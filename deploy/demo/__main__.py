"""Quickstart: builds fsdpd, trains a small Llama on this machine, and draws the measurements as one HTML page.

A coordinator and two agents start on loopback, each agent with two CPU ranks (or, with --gpus, one agent with a rank
on each GPU). They run with --insecure, without certificates and tokens: meanwhile any process on this machine has full
access to them. docs/deploy.md describes a secure installation. The training text is this repository's
documentation, one token per character. At the end, on failure and on Ctrl-C, all processes are stopped, and the script
verifies and prints that none is left. A failed run keeps its directory.
"""
import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import page as html
from processes import Failed, Interrupted, Processes, heed_signals, pause

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".build/bin"
TARGETS = ["//coordinator:fsdpd-coordinator", "//agent:fsdpd-agent", "//fsdp:fsdpd-rank", "//client:fsdpctl"]
BAZEL = shlex.split(os.environ.get("BAZEL", "bazel"))  # As tests/run reads it.

MIN_CORPUS_BYTES = 20_000  # With less text, the model would memorize it during the run.
CPU_NODES, CPU_RANKS_PER_NODE, MICRO_BATCH, WARMUP_STEPS = 2, 2, 4, 15
LOG_TAIL_LINES = 20
MAX_STEPS = 1_000_000_000  # The limit of train.steps in a spec.
OK, FAILED, INTERRUPTED = 0, 1, 130


def say(part, text):
    """Prints the line of a finished part."""
    dim, plain = ("\033[2m", "\033[0m") if os.isatty(1) else ("", "")
    write(1, f"{dim}{part:<8}{plain} {text}")


def complain(text):
    write(2, f"quickstart: {text}")


def write(descriptor, text):
    # Unbuffered. A failed write (after a hangup) must not prevent the cleanup.
    with contextlib.suppress(OSError):
        os.write(descriptor, f"{text}\n".encode())


def parse(arguments):
    def steps(text):
        # int() raises for thousands of digits.
        if not text.isdecimal() or len(text) > 10 or not 1 <= int(text) <= MAX_STEPS:
            shown = text if len(text) <= 20 else f"{text[:20]}..."
            raise argparse.ArgumentTypeError(f"'{shown}' is not a number of steps from 1 to {MAX_STEPS}")
        return int(text)

    parser = argparse.ArgumentParser(
        prog="deploy/quickstart", allow_abbrev=False, description=__doc__,
        epilog="exit codes: 0 trained and stopped, 1 a part failed, 2 usage, 130 interrupted",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    flag = parser.add_argument
    flag("--gpus", action="store_true", help="train on this machine's GPUs (NCCL) instead of its CPU cores")
    flag("--steps", type=steps, default=300, metavar="N", help="optimizer steps (default 300)")
    flag("--output", type=Path, metavar="FILE", help="the HTML page (default: quickstart.html in the run directory)")
    flag("--keep", action="store_true", help="keep the run directory: logs, state, corpus, spec, records")
    options = parser.parse_args(arguments)
    if options.output and not options.output.resolve().parent.is_dir():
        parser.error(f"argument --output: no such directory: {options.output.resolve().parent}")
    if options.output and options.output.is_dir():
        parser.error(f"argument --output: {options.output} is a directory; want a file")
    return options


def gpu_names():
    try:
        listing = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                                 text=True)
    except FileNotFoundError:
        raise Failed("--gpus: no NVIDIA driver on this machine (nvidia-smi is not installed)") from None
    names = listing.stdout.splitlines() if listing.returncode == 0 else []
    if not names:
        raise Failed(f"--gpus: nvidia-smi lists no GPU. {(listing.stdout + listing.stderr).strip()}")
    return names


def bazel_servers():
    flag = f"--workspace_directory={ROOT}".encode()
    found = set()
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if flag in cmdline.read_bytes().split(b"\0"):
                found.add(int(cmdline.parent.name))
        except OSError:
            pass
    return found


def end_bazel_servers(pids, seconds=20):
    """Stops servers by signal, because `bazel shutdown` does not find a server that is starting."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while bazel_servers() & pids and time.monotonic() < deadline:
        time.sleep(0.05)


def setup_and_build(with_gpus):
    """Runs deploy/setup and the build. Call it before adopt_orphans: Bazel's server leaves the process tree on purpose."""
    tools, begin = Processes(), time.monotonic()
    servers = bazel_servers()
    quiet = [] if sys.stderr.isatty() else ["--color=no", "--curses=no", "--show_progress_rate_limit=15"]
    cuda = ["--config=cuda"] if with_gpus else []
    build = [*BAZEL, "build", "--show_result=0", "--ui_event_filters=-info", *quiet, *cuda, *TARGETS]
    try:
        for part, argv in [("setup", [ROOT / "deploy/setup"]), ("build", build)]:
            code = tools.run(part, argv, cwd=ROOT, stdout=sys.stderr)
            if code != 0:
                raise Failed(f"{part} failed with exit code {code}; its messages are above")
            say(part, f"done after {time.monotonic() - begin:.1f} s")
    finally:
        tools.stop()
        # Stop a server that the build started, because it would hold 0.5 GB of memory during the training.
        end_bazel_servers(bazel_servers() - servers)


def write_corpus(path):
    patterns = ["README.md", "docs/*.md", "proto/**/*.proto", "LICENSE"]
    text = b"\n".join(file.read_bytes() for pattern in patterns for file in sorted(ROOT.glob(pattern)))
    if len(text) < MIN_CORPUS_BYTES:
        raise Failed(f"the corpus has {len(text)} bytes; this clone lacks its README.md, docs and LICENSE")
    path.write_bytes(text)
    return len(text)


def overrides(steps, gpus):
    """Returns this run's changes of deploy/examples/tiny-llama.yaml."""
    ranks = gpus or CPU_NODES * CPU_RANKS_PER_NODE
    values = {"train.steps": steps, "train.micro_batch": MICRO_BATCH, "train.global_batch": MICRO_BATCH * ranks,
              "schedule.cosine.warmup_steps": min(WARMUP_STEPS, steps // 5)}
    if gpus:
        values |= {"precision.compute": "bf16", "resources.device": "cuda", "resources.nodes": 1,
                   "resources.ranks_per_node": gpus}
    return [f"--set={path}={value}" for path, value in values.items()]


class Cluster:
    """A coordinator and its agents in a run directory. The owner of `processes` stops them."""

    def __init__(self, directory, processes):
        self._directory, self._processes = directory, processes
        self._server = None
        os.environ.pop("FSDPD_COORDINATOR_CA", None)  # The CA of another coordinator would turn on TLS here.
        # Four ranks share the cores. With a thread per core in every rank, a step would mostly switch contexts.
        threads = str(max(1, (os.cpu_count() or 1) // (CPU_NODES * CPU_RANKS_PER_NODE)))
        self._env = {"OMP_NUM_THREADS": threads, **os.environ}

    def start(self, gpus):
        self._server = self._daemon("coordinator", BIN / "coordinator/fsdpd-coordinator", "--insecure",
                                    "--listen", "127.0.0.1:0", "--state-dir", self._directory / "state")
        device, slots, nodes = ("cuda", gpus, 1) if gpus else ("cpu", CPU_RANKS_PER_NODE, CPU_NODES)
        names = [f"node-{index}" for index in range(nodes)]
        for name in names:
            self._daemon(name, BIN / "agent/fsdpd-agent", "--insecure", "--coordinator", self._server, "--node", name,
                         "--device", device, "--slots", slots, "--metrics-listen", "127.0.0.1:0",
                         "--work-dir", self._directory / name)
        self._await_nodes(nodes)
        say("start", f"coordinator on {self._server}; {' and '.join(names)} with {slots} {device} ranks each; "
                     "--insecure: any process on this machine has full access")

    def _daemon(self, name, binary, *flags):
        port_file = self._directory / f"{name}.port"
        log = self._directory / f"{name}.log"
        daemon = self._processes.start(name, [binary, *flags, "--port-file", port_file], log, self._env)
        return self._processes.address(daemon, port_file)

    def _fsdpctl(self, *arguments):
        return [str(BIN / "client/fsdpctl"), "--server", self._server, *map(str, arguments)]

    def _await_nodes(self, count, seconds=20):
        deadline = time.monotonic() + seconds
        while sum(bool(node.get("connected")) for node in self.query("nodes").get("nodes", [])) < count:
            self._processes.require_running()
            if time.monotonic() > deadline:
                raise Failed(f"{count} agents did not reach the coordinator within {seconds} s",
                             self._directory / "node-0.log")
            pause()

    def query(self, *arguments):
        """Runs `fsdpctl ... -o json` and returns its output."""
        answer = subprocess.run(self._fsdpctl(*arguments, "-o", "json"), capture_output=True, text=True,
                                start_new_session=True, timeout=30)
        if answer.returncode != 0:
            raise Failed(f"fsdpctl {arguments[0]} failed with exit code {answer.returncode}: {answer.stderr.strip()}",
                         self._directory / "coordinator.log")
        return json.loads(answer.stdout)

    def train(self, spec, changes, record):
        """Submits the job and follows it on this terminal."""
        argv = self._fsdpctl("submit", "-f", spec, *changes, "--follow", "--record", record)
        code = self._processes.run("fsdpctl", argv, on_interrupt=self._cancel)
        if code != 0:
            self._processes.require_running()
            logs = sorted(self._directory.glob("node-*/*/attempt-*/rank-*.log"))
            raise Failed(f"the job failed: fsdpctl ended with exit code {code}", logs[0] if logs else None)


    def _cancel(self):
        """Cancels the job, so that fsdpctl ends with the cancellation instead of a hint how to follow the job."""
        with contextlib.suppress(Failed, subprocess.TimeoutExpired):
            for job in self.query("get")["jobs"]:
                self.query("cancel", job["id"], "--reason", "the quickstart was interrupted", "--wait")


def train(options, directory, processes, page):
    """Runs all parts from the build to the page."""
    gpus = gpu_names() if options.gpus else []
    setup_and_build(options.gpus)
    processes.adopt_orphans()
    size = write_corpus(directory / "corpus.txt")
    say("corpus", f"{size:,} characters of README.md, docs, proto and LICENSE")
    # The spec has a relative path of the corpus.
    spec, record = directory / "tiny-llama.yaml", directory / "steps.jsonl"
    shutil.copy(ROOT / "deploy/examples/tiny-llama.yaml", spec)
    cluster = Cluster(directory, processes)
    cluster.start(len(gpus))
    cluster.train(spec, overrides(options.steps, len(gpus)), record)
    reports = [json.loads(line) for line in record.read_text().splitlines()]
    job = cluster.query("get")["jobs"][0]
    page.write_text(html.render(reports, job, {"corpus_bytes": size, "gpus": gpus}), encoding="utf-8")


def explain(failure, directory):
    complain(failure)
    if failure.log and failure.log.exists():
        lines = failure.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        write(2, "\n".join([f"the end of {failure.log}:", *(f"  {line}" for line in lines)]))
    if any(directory.iterdir()):
        complain(f"logs and state are in {directory}")
    else:
        directory.rmdir()


def stop(processes):
    """Stops all processes and reports it. Returns whether all of them stopped without an error."""
    stopped = processes.stop()
    for fault in stopped.faults():
        complain(fault)
    if stopped.daemons and not stopped.faults():
        ports = ", ".join(map(str, stopped.ports))
        say("stop", f"{stopped.daemons} daemons and their ranks are gone, ports {ports} are closed")
    return not stopped.faults()


def remove_all_but(page, directory):
    for entry in directory.iterdir():
        if entry != page:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if page.parent != directory:
        directory.rmdir()


def main():
    options = parse(sys.argv[1:])
    heed_signals()
    directory = Path(tempfile.mkdtemp(prefix="fsdpd-quickstart-")).resolve()
    page = options.output.resolve() if options.output else directory / "quickstart.html"
    processes, failure, code = Processes(), None, OK
    try:
        train(options, directory, processes, page)
    except Interrupted:
        code = INTERRUPTED
    except Failed as caught:
        failure, code = caught, FAILED
    finally:
        clean = stop(processes)
    if failure:
        explain(failure, directory)
    elif code == INTERRUPTED:
        say("stop", "interrupted; everything that was started has been stopped")
    elif clean:
        say("page", page)
    if clean and not failure and not options.keep:
        shutil.rmtree(directory) if code == INTERRUPTED else remove_all_but(page, directory)
    return code if clean else code or FAILED


if __name__ == "__main__":
    sys.exit(main())
