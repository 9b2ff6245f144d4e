#!/usr/bin/env python3
"""Measures the speed of the control plane, next to its targets (docs/bench).

    .python/bin/python tests/perf/control_plane.py [ROW...] [--directory /tmp]

Rows, each with separate processes; default: all:

    submit    SubmitJob at 50 per second, acknowledged after the write to disk
    plan      ValidateJob and PlanJob of llama3-8b on 4 GPUs
    list      a page of 100 of 100,000 jobs
    agents    2,000 agents on separate connections with 16,000 ranks in 2,000 jobs that step once per second: the
              coordinator's CPU, memory and threads; all agents reconnect together; and again after a kill -9, while 100
              jobs end
    death     a rank is killed: time until the job reports it, and until its attempt has no processes
    agent     an agent is killed, and an agent is stopped: time until the job reports it
    failover  the leader of three coordinators with etcd is killed while a job trains: time until another one serves, and
              until it reports the job's next step
    restart   a job whose rank was killed restarts in place: time until its next step

Prints targets and measurements, and judges nothing. Needs //coordinator:fsdpd-coordinator, //agent:fsdpd-agent,
//fsdp:fsdpd-rank and //tests/perf:fleet built (FSDPD_BIN: their directory), and Debian's etcd-server.
"""

import argparse
import json
import os
import pathlib
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS)]

import grpc  # noqa: E402
import yaml  # noqa: E402

from harness.cluster import Cluster, rank_of  # noqa: E402
from harness.coordinators import NAMES, Coordinators  # noqa: E402
from harness.processes import become_subreaper  # noqa: E402
from harness.programs import ROOT, program  # noqa: E402
from harness.specs import ENDLESS, one_rank, spec, to_message  # noqa: E402
from harness.stubs import coordinator  # noqa: E402
from harness.stubs import plan as plans  # noqa: E402
from harness.wait import wait_until  # noqa: E402

POLL_S = 0.005
AGENTS, SLOTS = 2000, 8
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def row(what, requested, measured):
    print(f"| {what} | {requested} | {measured} |", flush=True)


def milliseconds(seconds):
    return f"{1000 * seconds:.1f} ms"


def spread(durations):
    ordered = sorted(durations)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return (f"p99 {milliseconds(p99)} (median {milliseconds(statistics.median(ordered))}, most {milliseconds(ordered[-1])}, "
            f"{len(ordered)} calls)")


def timed(call):
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


def until(condition, since=None, timeout_s=180):
    """Returns the seconds until `condition` holds, polling every few milliseconds."""
    begin = time.monotonic() if since is None else since
    wait_until("what is measured", condition, timeout_s, POLL_S)
    return time.monotonic() - begin


def coordinator_only(directory, *flags):
    cluster = Cluster(directory, start=False)
    cluster.coordinator_flags = flags
    cluster.start_coordinator()
    return cluster


# --- one coordinator, no agents


def submit(directory, rate=50, seconds=20):
    with coordinator_only(directory) as cluster:
        request = coordinator.SubmitJobRequest(spec=to_message(spec()))
        stub = cluster.api()
        stub.SubmitJob(request, timeout=60)
        begin, late = time.monotonic(), []
        with ThreadPoolExecutor(32) as pool:
            calls = []
            for number in range(rate * seconds):
                time.sleep(max(0, begin + number / rate - time.monotonic()))
                calls.append(pool.submit(timed, lambda: stub.SubmitJob(request, timeout=60)))
            late = [call.result() for call in calls]
        took = time.monotonic() - begin
        row(f"Submit, {rate * seconds / took:.0f} a second, on disk when it is answered", "p99 < 50 ms", spread(late))


def plan(directory, calls=100):
    made = yaml.safe_load((ROOT / "docs/bench/specs/llama3-8b-s8192.yaml").read_text())
    made["optimizer"]["adamw"]["lr"] = float(made["optimizer"]["adamw"]["lr"])  # YAML 1.1 takes 3e-4 for a word.
    message = to_message(made)
    with coordinator_only(directory) as cluster:
        stub = cluster.api()

        def both():
            faults = stub.ValidateJob(coordinator.ValidateJobRequest(spec=message), timeout=60).violations
            assert not [fault for fault in faults if fault.severity == plans.SEVERITY_ERROR], faults
            stub.PlanJob(coordinator.PlanJobRequest(spec=message), timeout=60)
        row("ValidateJob and PlanJob of llama3-8b on 4 GPUs, one after the other", "p99 < 200 ms",
            spread([timed(both) for _ in range(calls)]))


def list_jobs(directory, jobs=100_000):
    with coordinator_only(directory, "--keep-ended-jobs", str(2 * jobs)) as cluster:
        ended = cluster.cancel(cluster.submit(spec()))
        cluster.coordinator.stop()
        copy_job(cluster.state_dir, ended, jobs)
        cluster.start_coordinator()
        stub = cluster.api()

        def page(token):
            answer = stub.ListJobs(coordinator.ListJobsRequest(page_size=100, page_token=token), timeout=60)
            assert len(answer.jobs) == 100, len(answer.jobs)
        row(f"ListJobs, the newest 100 of {jobs:,}", "< 50 ms", spread([timed(lambda: page("")) for _ in range(200)]))
        deep = ""
        for _ in range(jobs // 2 // 500):
            deep = stub.ListJobs(coordinator.ListJobsRequest(page_size=500, page_token=deep), timeout=60).next_page_token
        row(f"ListJobs, 100 in the middle of {jobs:,}", "< 50 ms", spread([timed(lambda: page(deep)) for _ in range(200)]))


def copy_job(state_dir, job, count):
    """Writes `count` copies of the job in the store, because submitting each would take an hour."""
    path = next(pathlib.Path(state_dir).glob("*.db"), None) or next(pathlib.Path(state_dir).glob("*.sqlite*"))
    with sqlite3.connect(path) as db:
        columns = [each[1] for each in db.execute("PRAGMA table_info(jobs)")]
        values = dict(zip(columns, db.execute("SELECT * FROM jobs").fetchone()))

        def rows():
            for number in range(count):
                one = coordinator.Job.FromString(bytes(values["job"]))
                one.id = f"{job.id}-{number}"
                one.create_unix_nanos += number + 1
                one.end_unix_nanos += number + 1
                changed = {"id": one.id, "create_nanos": one.create_unix_nanos, "request_id": None,
                           "end_nanos": one.end_unix_nanos, "job": one.SerializeToString()}
                yield [changed.get(column, values[column]) for column in columns]
        db.executemany(f"INSERT INTO jobs VALUES ({', '.join('?' * len(columns))})", rows())


# --- thousands of agents


class Fleet:
    def __init__(self, address, agents=AGENTS, slots=SLOTS):
        self.process = subprocess.Popen(
            [program("tests/perf/fleet"), "--coordinator", address, "--agents", str(agents), "--slots", str(slots)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.now = {"attached": 0, "attempts": 0, "reports": 0, "streams": 0}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.now = json.loads(line)

    def emit(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def end(self):
        self.process.stdin.close()
        self.process.wait(120)


def usage(pid):
    """Returns CPU seconds so far, current MiB, threads."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S, int(fields[21]) * resource.getpagesize() / 2**20, int(fields[17])


def states(cluster):
    counted, attempts, token = {}, set(), ""
    while True:
        page = cluster.api().ListJobs(coordinator.ListJobsRequest(page_size=500, page_token=token), timeout=120,
                                      wait_for_ready=True)
        for job in page.jobs:
            name = coordinator.JobState.Name(job.state)[len("JOB_STATE_"):]
            counted[name] = counted.get(name, 0) + 1
            attempts.add(job.attempt)
        token = page.next_page_token
        if not token:
            return counted, attempts


def connected(cluster):
    return len([node for node in cluster.nodes() if node.connected])


def agents(directory, seconds=30, ending=100):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with coordinator_only(directory) as cluster:
        fleet = Fleet(cluster.address)
        try:
            took = until(lambda: fleet.now["attached"] == AGENTS)
            row(f"{AGENTS} agents attach to a coordinator that knows none", "-", f"{took:.1f} s")
            request = coordinator.SubmitJobRequest(spec=to_message(
                spec(steps=ENDLESS, resources={"nodes": 1, "ranks_per_node": SLOTS},
                     train={"global_batch": SLOTS}, restart={"max_attempts": 3})))
            stub = cluster.api()
            begin = time.monotonic()
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda _: stub.SubmitJob(request, timeout=120), range(AGENTS)))
            row(f"{AGENTS} jobs are submitted by 8 callers, while they are placed", "-", f"{time.monotonic() - begin:.1f} s")
            until(lambda: states(cluster)[0].get("RUNNING", 0) == AGENTS, begin)
            row(f"all of them run, {AGENTS * SLOTS:,} ranks", "-", f"{time.monotonic() - begin:.1f} s")
            under_load(cluster, fleet, seconds)
            come_back(cluster, fleet)
            outlive(cluster, fleet, ending)
        finally:
            fleet.end()


def under_load(cluster, fleet, seconds):
    time.sleep(5)
    pid = cluster.coordinator.pid
    (cpu, _, _), reports, begin = usage(pid), fleet.now["reports"], time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - begin
    after, memory, threads = usage(pid)
    row(f"CPU of the coordinator with {(fleet.now['reports'] - reports) / took:.0f} reports a second",
        "< 30% of a core", f"{100 * (after - cpu) / took:.0f}%")
    row("its memory", "< 1 GiB", f"{memory:.0f} MiB")
    row("its threads", "bounded", f"{threads}")


def come_back(cluster, fleet):
    streams = fleet.now["streams"]
    begin = time.monotonic()
    fleet.emit("drop")
    until(lambda: fleet.now["streams"] >= streams + AGENTS and fleet.now["attached"] == AGENTS, begin)
    row("all connections dropped at once: until all agents are back", "< 10 s", f"{time.monotonic() - begin:.1f} s")
    time.sleep(2)
    row("jobs after that", f"RUNNING: {AGENTS}, attempt 1", f"{states(cluster)}")


def outlive(cluster, fleet, ending):
    address = cluster.address
    cluster.coordinator.kill()
    fleet.emit(f"finish {ending}")
    wait_until("they have ended", lambda: fleet.now["attempts"] == AGENTS - ending)
    begin = time.monotonic()
    cluster.start_coordinator(listen=address)
    serving = time.monotonic() - begin
    until(lambda: connected(cluster) == AGENTS, begin)
    row(f"kill -9 of the coordinator, {ending} jobs end meanwhile: until it serves again", "-", f"{serving:.1f} s")
    row("until all agents are back", "< 10 s", f"{time.monotonic() - begin:.1f} s")
    until(lambda: states(cluster)[0].get("SUCCEEDED", 0) == ending, begin)
    row("until all that ended is known", "-", f"{time.monotonic() - begin:.1f} s")
    time.sleep(20)  # Ranks without an agent would be lost by then.
    row("jobs 20 s later", f"RUNNING: {AGENTS - ending}, SUCCEEDED: {ending}, attempt 1", f"{states(cluster)}")


# --- real ranks


def victim(cluster, node="node-1"):
    return next(each for each in cluster.ranks(node) if rank_of(each) == 2)


def death(directory, times=5):
    seen, gone = [], []
    with Cluster(directory) as cluster:
        for _ in range(times):
            job_id = cluster.submit(spec(steps=ENDLESS))
            cluster.wait_step(job_id, 2)
            cluster.wait_state(job_id, "RUNNING")
            begin = time.monotonic()
            os.kill(victim(cluster).pid, signal.SIGKILL)
            seen.append(until(lambda: cluster.job(job_id).failure.error != "", begin))
            gone.append(until(lambda: cluster.state(job_id) == "FAILED", begin))
            cluster.wait_idle()
    row("a rank is killed: until the job says so", "< 1 s", most(seen))
    row("until no rank of its attempt is left and the job has ended", "< 2 s", most(gone))


def most(durations):
    return f"{max(durations):.2f} s (median {statistics.median(durations):.2f} s of {len(durations)})"


def agent(directory, times=5):
    for fault, name in ((signal.SIGKILL, "killed"), (signal.SIGSTOP, "stopped")):
        seen = []
        for number in range(times):
            with Cluster(pathlib.Path(directory) / f"{name}-{number}") as cluster:
                job_id = cluster.submit(spec(steps=ENDLESS, restart={"max_attempts": 1}))
                cluster.wait_step(job_id, 2)
                cluster.wait_state(job_id, "RUNNING")
                begin = time.monotonic()
                os.kill(cluster.agents["node-1"].pid, fault)
                seen.append(until(lambda: cluster.job(job_id).failure.error != "", begin))
                if fault == signal.SIGSTOP:
                    os.kill(cluster.agents["node-1"].pid, signal.SIGCONT)
                else:
                    cluster.agents["node-1"].process.wait()
                cluster.wait_state(job_id, "FAILED")
        row(f"an agent is {name}: until its job says that its node is lost", "< 10 s", most(seen))


def failover(directory, times=5):
    serves, tells = [], []
    with Coordinators(directory, lease_s=None) as cluster:
        job_id = cluster.submit(spec(steps=ENDLESS, resources={"ranks_per_node": 1}))
        cluster.wait_step(job_id, 3)
        ranks = {each.pid for each in cluster.all_ranks()}
        for _ in range(times):
            leader = cluster.leader()
            others = [name for name in NAMES if name != leader]
            begin = time.monotonic()
            cluster.daemons[leader].kill()
            serves.append(until(lambda: any(cluster.leads(name) for name in others), begin))
            step = cluster.job(job_id).last_step.step
            tells.append(until(lambda: cluster.job(job_id).last_step.step > step, begin))
            cluster.start_one(leader)
        attempt, same = cluster.job(job_id).attempt, ranks == {each.pid for each in cluster.all_ranks()}
        cluster.cancel(job_id)
    row("the leader of three coordinators is killed: until another one serves", "< 15 s", most(serves))
    row("until it tells of the next step of a job that trains", "-", most(tells))
    row(f"the ranks of that job after {times} of these", "the same, attempt 1", f"{'the same' if same else 'others'}, attempt {attempt}")


def restart(directory, times=5):
    again = []
    with Cluster(directory, agents=1, slots=1) as cluster:
        for number in range(times):
            made = one_rank(steps=ENDLESS, restart={"max_attempts": 2},
                            checkpoint={"dir": str(pathlib.Path(directory) / f"run-{number}"), "every_steps": 50})
            job_id = cluster.submit(made)
            wait_until("it has saved", lambda: len(cluster.job(job_id).checkpoints) > 0)
            begin = time.monotonic()
            os.kill(cluster.ranks("node-0")[0].pid, signal.SIGKILL)
            again.append(until(lambda: cluster.job(job_id).attempt == 2 and cluster.job(job_id).last_step.step > 0, begin))
            cluster.cancel(job_id)
            cluster.wait_idle()
    row("a rank is killed: until the first step of the next attempt, in the same place, from its checkpoint",
        "< 10 s + reading it", most(again))


ROWS = {"submit": submit, "plan": plan, "list": list_jobs, "agents": agents, "death": death, "agent": agent,
        "failover": failover, "restart": restart}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--directory", default=tempfile.gettempdir(), help="where state and logs lie meanwhile")
    options = parser.parse_args()
    unknown = [name for name in options.rows if name not in ROWS]
    if unknown:
        parser.error(f"no row is called {unknown[0]}; there are {', '.join(ROWS)}")
    if not os.path.isdir(options.directory):
        parser.error(f"there is no directory {options.directory}")
    become_subreaper()
    load = os.getloadavg()
    print(f"{os.cpu_count()} cores, load {load[0]:.1f}, gRPC for Python {grpc.__version__}, "
          f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC\n\n| what | asked | measured |\n|---|---|---|", flush=True)
    for name in options.rows or ROWS:
        with tempfile.TemporaryDirectory(dir=options.directory, prefix=f"fsdpd-{name}-") as directory:
            ROWS[name](directory)


if __name__ == "__main__":
    main()
