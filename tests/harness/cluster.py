"""Cluster of a coordinator and agents as real processes.

    with Cluster(tmp_path, agents=2, slots=2) as cluster:
        job_id = cluster.submit(spec(steps=5))
        cluster.wait_state(job_id, "SUCCEEDED")

Leaving the block stops all daemons with SIGTERM. The test fails if a daemon does not end cleanly, if a process of the
cluster is left, or if one of its ports is still open.
"""

import contextlib
import os
import pathlib
import re
import shlex
import signal
import subprocess
import urllib.request
import uuid
from dataclasses import dataclass

import grpc
import yaml

from harness import stubs
from harness.processes import Daemon, descendants, listening, marked
from harness.programs import program
from harness.specs import to_message
from harness.wait import wait_until

STEP_MS = 25  # Long enough for a polling test to observe each step.
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass
class Result:
    """Result of a run of fsdpctl."""
    command: list
    code: int
    out: str
    err: str

    def __str__(self):
        return f"$ {' '.join(self.command)}\nexit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    def expect(self, code):
        assert self.code == code, f"expected exit {code}\n{self}"
        return self


def fsdpctl(*arguments, server=None, stdin=None, timeout_s=180, cwd=None, env=None):
    command = [program("client/fsdpctl")]
    command += ["--server", server] if server else []
    command += [str(argument) for argument in arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, cwd=cwd,
                          stdin=subprocess.DEVNULL if stdin is None else None, env={**os.environ, **(env or {})})
    return Result(["fsdpctl", *command[1:]], done.returncode, done.stdout, done.stderr)


def rank_of(process):
    """The rank's number, from the log file that is its stdout."""
    return int(re.search(r"rank-(\d+)\.log$", os.readlink(f"/proc/{process.pid}/fd/1")).group(1))


def paced_rank(directory, *preloads, **variables):
    """Creates a wrapper of fsdpd-rank with a pause after each step (pace.c), and with further libraries and
    variables."""
    path = directory / "fsdpd-rank"
    libraries = ":".join(map(str, [*preloads, program("tests/harness/pace.so")]))
    given = {"LD_PRELOAD": libraries, "FSDPD_STEP_MS": STEP_MS, **variables}
    words = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in given.items())
    new = path.with_suffix(f".{uuid.uuid4().hex}")
    new.write_text(f'#!/bin/sh\n{words} exec {shlex.quote(str(program("fsdp/fsdpd-rank")))} "$@"\n')
    new.chmod(0o755)
    new.rename(path)  # Atomic: another process may be starting it.
    return path


def _port(address):
    return int(address.rsplit(":", 1)[1])


class Cluster:
    def __init__(self, directory, agents=2, slots=2, start=True, security=None, coordinator_flags=()):
        """`security` (harness.security): TLS and tokens; None: --insecure."""
        self.coordinator_flags = list(coordinator_flags)  # In addition to the default flags.
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.mark = uuid.uuid4().hex
        self.state_dir = self.directory / "state"
        self.store = None  # Value of --store, used instead of state_dir.
        self.coordinator = None
        self.address = None
        self.agents = {}   # By node name.
        self.metrics = {}  # By node name: host:port.
        self.coordinator_metrics = None  # Likewise.
        self._want = (agents, slots) if start else (0, 0)
        self.security = security
        self.coordinator_prefix = []  # Command prefix.
        self.agent_prefixes = {}  # Likewise, by node name.
        self._started = start
        self._ports = set()
        self._channel = None

    # --- lifetime

    def __enter__(self):
        try:
            if self._started:
                self.start_coordinator()
                count, slots = self._want
                for index in range(count):
                    self.start_agent(f"node-{index}", slots, wait=False)
                self.wait_nodes(count)
            return self
        except BaseException:
            self._kill_all()
            raise

    def __exit__(self, kind, error, trace):
        if self._channel:
            self._channel.close()
        if kind is not None:
            print(self.logs())
            self._kill_all()
            return
        try:
            self._stop_cleanly()
        finally:
            self._kill_all()

    def _stop_cleanly(self):
        agents = [agent for agent in self.agents.values() if agent.running()]
        for agent in agents:
            agent.process.terminate()
        codes = {agent.name: agent.wait() for agent in agents}
        if self.coordinator and self.coordinator.running():
            codes["coordinator"] = self.coordinator.stop()
        assert not any(codes.values()), f"daemons: exit codes after SIGTERM: {codes} (want 0)"
        self.assert_nothing_left()

    def assert_nothing_left(self):
        wait_until("no process of the cluster is left", lambda: not marked(self.mark) or
                   self._fail(f"left: {marked(self.mark)}"))
        open_ports = [port for port in self._ports if listening(port)]
        assert not open_ports, f"ports still open after the end: {open_ports}"

    @staticmethod
    def _fail(text):
        raise AssertionError(text)

    def _kill_all(self):
        for daemon in [*self.agents.values(), self.coordinator]:
            if daemon and daemon.running():
                daemon.kill()
        for process in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def logs(self):
        """Tails of the logs of all daemons and of the newest ranks, for the output of a failed test."""
        newest = sorted(self.directory.rglob("rank-*.log"), key=lambda log: log.stat().st_mtime)[-4:]
        text = ""
        for log in [*sorted(self.directory.glob("*.log")), *newest]:
            lines = log.read_text(errors="replace").splitlines()
            text += f"--- {log.relative_to(self.directory)} ({len(lines)} lines)\n" + "\n".join(lines[-30:]) + "\n"
        return text

    # --- daemons

    def start_coordinator(self, listen=None, expect_serving=True):
        """`listen`: address to listen on, for a restart after a crash."""
        # A channel to the previous coordinator would first have to notice that it is gone.
        if self._channel:
            self._channel.close()
            self._channel = None
        port_file = self.directory / "coordinator.port"
        metrics_port_file = self.directory / "coordinator-metrics.port"
        for file in (port_file, metrics_port_file):
            file.unlink(missing_ok=True)
        self.coordinator = Daemon("coordinator", [
            *self.coordinator_prefix, program("coordinator/fsdpd-coordinator"), "--listen", listen or "127.0.0.1:0",
            *(["--store", self.store] if self.store else ["--state-dir", self.state_dir]), "--port-file", port_file,
            "--metrics-listen", "127.0.0.1:0", "--metrics-port-file", metrics_port_file,
            *(self.security.coordinator_flags() if self.security else ["--insecure"]), *self.coordinator_flags],
            self.directory / "coordinator.log", self.mark)
        if expect_serving:
            self.address = self._read_port_file(self.coordinator, port_file)
            self.coordinator_metrics = self._read_port_file(self.coordinator, metrics_port_file)
        return self.coordinator

    @staticmethod
    def coordinator_says(*arguments):
        """Runs a one-shot command of fsdpd-coordinator and returns its stdout."""
        done = subprocess.run([program("coordinator/fsdpd-coordinator"), *map(str, arguments)], capture_output=True,
                              text=True, timeout=600, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start_agent(self, name, slots=2, wait=True, expect_serving=True, **flags):
        stem = name[:200]  # A node's name may use nearly the maximum length of a file name.
        port_file = self.directory / f"{stem}.port"
        port_file.unlink(missing_ok=True)
        flags = {"coordinator": self.address, "node": name, "slots": slots, "device": "cpu", "port_file": port_file,
                 "metrics_listen": "127.0.0.1:0", "work_dir": self.directory / f"{stem}.work",
                 "rank_binary": paced_rank(self.directory),
                 **(self.security.agent_flags(name) if self.security else {"insecure": True}), **flags}
        command = [*self.agent_prefixes.get(name, []), program("agent/fsdpd-agent")]
        for flag, value in flags.items():
            command += [f"--{flag.replace('_', '-')}"] + ([] if value is True else [value])
        agent = Daemon(name, command, self.directory / f"{stem}.log", self.mark)
        if not expect_serving:
            return agent
        self.agents[name] = agent
        self.metrics[name] = self._read_port_file(agent, port_file)
        if wait:
            self.wait_nodes(len([each for each in self.agents.values() if each.running()]))
        return agent

    def _read_port_file(self, daemon, port_file):
        def address():
            assert daemon.running(), f"{daemon.name} ended with {daemon.process.returncode}:\n{daemon.text()}"
            return port_file.exists() and port_file.read_text()
        text = wait_until(f"{daemon.name} writes its port file", address)
        assert text.endswith("\n") and text.count("\n") == 1, f"port file: got {text!r}, want one line"
        self._ports.add(_port(text.strip()))
        return text.strip()

    def page(self):
        """URL of the web UI of the newest coordinator."""
        return re.findall(r"serving web UI url=(\S+)", self.coordinator.text())[-1]

    def ranks(self, node):
        """Live rank processes of an agent."""
        return [each for each in descendants(self.agents[node].pid) if each.program == "fsdpd-rank"]

    def all_ranks(self):
        return [each for each in marked(self.mark) if each.program == "fsdpd-rank"]

    # --- the command line

    def ctl(self, *arguments, person="ada", **kwargs):
        env = self.security.environment(person) if self.security else None
        return fsdpctl(*arguments, server=self.address, env=env, **kwargs)

    def write_spec(self, spec, name="job.yaml"):
        path = self.directory / name
        path.write_text(spec if isinstance(spec, str) else yaml.safe_dump(spec, sort_keys=False))
        return path

    # --- gRPC

    def api(self):
        if not self._channel:
            self._channel = (self.security.channel(self.address, token=self.security.token("ada"))
                             if self.security else grpc.insecure_channel(self.address))
        return stubs.coordinator_grpc.CoordinatorStub(self._channel)

    def submit(self, spec):
        """Submits over gRPC and returns the job's id. Tests of fsdpctl submit with fsdpctl."""
        request = stubs.coordinator.SubmitJobRequest(spec=to_message(spec))
        return self.api().SubmitJob(request, timeout=60, wait_for_ready=True).job.id

    def job(self, job_id):
        return self.api().GetJob(stubs.coordinator.GetJobRequest(id=job_id), timeout=60, wait_for_ready=True).job

    def state(self, job_id):
        name = stubs.coordinator.JobState.Name(self.job(job_id).state)
        return name[len("JOB_STATE_"):]

    def wait_state(self, job_id, *states, timeout_s=180):
        """Waits for one of `states`. Fails immediately with the reason if the job ends in another state."""
        def reached():
            state = self.state(job_id)
            return state in states or state in ENDED
        wait_until(f"job {job_id} is {' or '.join(states)}", reached, timeout_s)
        job = self.job(job_id)
        assert self.state(job_id) in states, f"want {states}, got:\n{job}"
        return job

    def wait_step(self, job_id, step, timeout_s=180):
        def reached():
            job = self.job(job_id)
            assert job.end_unix_nanos == 0 or job.last_step.step >= step, f"ended before step {step}:\n{job}"
            return job.last_step.step >= step
        wait_until(f"job {job_id} has made step {step}", reached, timeout_s)

    def nodes(self):
        return self.api().ListNodes(stubs.coordinator.ListNodesRequest(), timeout=60, wait_for_ready=True).nodes

    def node(self, name):
        return next(node for node in self.nodes() if node.name == name)

    def wait_nodes(self, count):
        wait_until(f"{count} agents are connected",
                   lambda: len([node for node in self.nodes() if node.connected]) == count)

    def wait_idle(self):
        """Waits until every slot is free and no rank process is left: the initial condition of each test."""
        wait_until("all slots are free", lambda: all(node.free_slots == node.slots for node in self.nodes()))
        wait_until("no rank process is left", lambda: not self.all_ranks())

    def cancel(self, job_id):
        self.api().CancelJob(stubs.coordinator.CancelJobRequest(id=job_id, grace_seconds=5), timeout=60)
        return self.wait_state(job_id, "CANCELLED", "SUCCEEDED", "FAILED")

    def jobs(self):
        """All jobs, newest first."""
        return self.api().ListJobs(stubs.coordinator.ListJobsRequest(page_size=500), timeout=60).jobs

    def cancel_all(self):
        for job in self.jobs():
            if job.end_unix_nanos == 0:
                self.cancel(job.id)

    # --- metrics

    def scrape(self, node):
        return self._scrape(self.metrics[node])

    def scrape_coordinator(self):
        return self._scrape(self.coordinator_metrics)

    @staticmethod
    def _scrape(address):
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            return answer.read().decode()
