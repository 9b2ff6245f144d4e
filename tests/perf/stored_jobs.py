#!/usr/bin/env python3
"""Measures a coordinator with many stored jobs: its idle CPU, and the time of calls (docs/bench).

    .python/bin/python tests/perf/stored_jobs.py [--jobs N] [--queued N...] [--store sqlite etcd] [--directory /tmp]

For each store and each number of `--queued` there are `--jobs` stored jobs, of which that number is queued and the others have
ended. One simulated agent (tests/perf/fleet) runs one job, and each job's project has a quota. Prints a table, and judges
nothing. Needs //coordinator:fsdpd-coordinator and //tests/perf:fleet built (FSDPD_BIN: their directory), and Debian's
etcd-server.
"""

import argparse
import contextlib
import os
import pathlib
import re
import sqlite3
import statistics
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "perf")]

import grpc  # noqa: E402
from control_plane import Fleet, milliseconds, usage  # noqa: E402
from harness.cluster import Cluster  # noqa: E402
from harness.etcd import Etcd  # noqa: E402
from harness.processes import become_subreaper  # noqa: E402
from harness.specs import ENDLESS, spec, to_message  # noqa: E402
from harness.stubs import coordinator  # noqa: E402
from harness.wait import wait_until  # noqa: E402

PROJECTS, SLOTS, CALLS, IDLE_S, REASONS_S = 10, 4, 30, 10, 180
QUEUED, CANCELLED = (coordinator.JobState.Value(f"JOB_STATE_{name}") for name in ("QUEUED", "CANCELLED"))


def waiting_job(directory):
    return spec(steps=ENDLESS, resources={"nodes": 1, "ranks_per_node": SLOTS}, train={"global_batch": SLOTS},
                checkpoint={"dir": str(directory)})


def write_jobs(state_dir, ended, queued):
    """Copies the cancelled job of the store, because submitting each would take an hour."""
    path = next(pathlib.Path(state_dir).glob("*.db"), None) or next(pathlib.Path(state_dir).glob("*.sqlite*"))
    with sqlite3.connect(path) as db:
        columns = [each[1] for each in db.execute("PRAGMA table_info(jobs)")]
        values = dict(zip(columns, db.execute("SELECT * FROM jobs").fetchone()))

        def rows():
            for number in range(ended + queued):
                one = coordinator.Job.FromString(bytes(values["job"]))
                one.id = f"copy-{number:06}"
                one.request_id = f"request-{number}"
                one.create_unix_nanos += number + 1
                one.project = f"project-{number % PROJECTS}"
                one.labels.add(key="team", value=f"team-{number % 1000}")
                one.spec.checkpoint.dir = one.resolved.checkpoint.dir = f"/tmp/run-{number}"
                if number < ended:
                    one.end_unix_nanos += number + 1
                else:
                    one.end_unix_nanos, one.state = 0, QUEUED
                    one.ClearField("cancellation")
                changed = {"id": one.id, "create_nanos": one.create_unix_nanos, "request_id": one.request_id,
                           "state": one.state, "end_nanos": one.end_unix_nanos, "folder": one.spec.checkpoint.dir,
                           "project": one.project, "job": one.SerializeToString()}
                yield [changed.get(column, values[column]) for column in columns]
        db.executemany(f"INSERT INTO jobs VALUES ({', '.join('?' * len(columns))})", rows())
        db.execute("INSERT INTO job_labels SELECT 'team', 'team-' || (CAST(substr(id, 6) AS INTEGER) % 1000), "
                   "create_nanos, id FROM jobs WHERE id LIKE 'copy-%'")


def spread(durations):
    ordered = sorted(durations)
    return f"{milliseconds(statistics.median(ordered))}, at most {milliseconds(ordered[-1])}"


def timed(call, times=CALLS):
    durations = []
    for number in range(times):
        begin = time.monotonic()
        call(number)
        durations.append(time.monotonic() - begin)
    return durations


def measure(cluster, row):
    stub = cluster.api()
    pid = cluster.coordinator.pid
    row("until each reason is stored", wait_for_reasons(cluster))
    cpu, *ticks = usage(pid)[0], *(counted(cluster, f"fsdpd_tick_seconds_{part}") for part in ("sum", "count"))
    time.sleep(IDLE_S)
    after = usage(pid)
    row("idle: CPU, of one core", f"{100 * (after[0] - cpu) / IDLE_S:.1f}%")
    took, count = (counted(cluster, f"fsdpd_tick_seconds_{part}") for part in ("sum", "count"))
    row("idle: a tick", milliseconds((took - ticks[0]) / (count - ticks[1])))
    row("memory", f"{after[1]:.0f} MiB")

    def submit(number):
        stub.SubmitJob(coordinator.SubmitJobRequest(spec=to_message(waiting_job(f"/tmp/new-{number}")),
                                                    request_id=f"new-{number}"), timeout=600)

    def listed(**query):
        return lambda _: stub.ListJobs(coordinator.ListJobsRequest(page_size=100, **query), timeout=600)
    row("SubmitJob, with a request id and a checkpoint.dir", spread(timed(submit)))
    row("ListJobs, the newest 100", spread(timed(listed())))
    row("ListJobs, by a label that one in 1,000 has", spread(timed(listed(selector="team=team-7"))))
    row("ListJobs, state QUEUED", spread(timed(listed(states=[QUEUED]))))
    row("GetJob, of an ended job", spread(timed(
        lambda number: stub.GetJob(coordinator.GetJobRequest(id=f"copy-{number:06}"), timeout=600))))
    row("a scrape of /metrics", spread(timed(lambda _: cluster.scrape_coordinator(), 5)))


def one_setting(directory, store, ended, queued):
    def row(what, measured):
        print(f"| {store} | {ended:,} + {queued:,} | {what} | {measured} |", flush=True)
    with contextlib.ExitStack() as stack:
        cluster = Cluster(directory, start=False)
        quotas = cluster.directory / "quotas"
        quotas.write_text("".join(f"project-{number} 1000000\n" for number in range(PROJECTS)))
        cluster.coordinator_flags = ["--keep-ended-jobs", "1000000", "--quotas", str(quotas)]
        cluster.start_coordinator()
        cluster.cancel(cluster.submit(waiting_job("/tmp/first")))
        cluster.coordinator.stop()
        write_jobs(cluster.state_dir, ended, queued)
        if store == "etcd":
            etcd = Etcd(cluster.directory, cluster.mark, members=1)
            backup = cluster.directory / "backup"
            cluster.coordinator_says("backup", "--state-dir", cluster.state_dir, "--to", backup)
            cluster.coordinator_says("restore", "--from", backup, "--store", etcd.store)
            cluster.store = etcd.store
        begin = time.monotonic()
        stack.enter_context(cluster)
        cluster.start_coordinator()
        wait_until("it serves", lambda: serves(cluster), 600)
        row("from the start of the process until it answers", f"{time.monotonic() - begin:.1f} s")
        fleet = Fleet(cluster.address, agents=1, slots=SLOTS)
        if queued == 0:
            cluster.submit(waiting_job("/tmp/runs"))
        begin = time.monotonic()
        wait_until("the node has a job", lambda: fleet.now["attempts"] == 1, 600)
        row("until its node has a job", f"{time.monotonic() - begin:.1f} s")
        measure(cluster, row)
        fleet.end()
        cluster.coordinator.stop()
        if store == "etcd":
            etcd.stop()


def serves(cluster):
    """A standby does not look up the node."""
    try:
        cluster.api().UncordonNode(coordinator.UncordonNodeRequest(node="none"), timeout=5)
    except grpc.RpcError as error:
        return error.code() == grpc.StatusCode.NOT_FOUND
    return False


def counted(cluster, pattern):
    return float(re.search(rf"^{pattern} (\S+)", cluster.scrape_coordinator(), re.M).group(1))


def wait_for_reasons(cluster):
    """The reason of each queued job is stored once, a few jobs per tick."""
    begin = time.monotonic()
    while True:
        events = counted(cluster, "fsdpd_events_total")
        time.sleep(2)
        took = time.monotonic() - begin - 2
        if counted(cluster, "fsdpd_events_total") == events:
            return f"{took:.0f} s"
        if took > REASONS_S:
            return f"not within {REASONS_S} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=50_000, help="stored jobs, most of them ended")
    parser.add_argument("--queued", nargs="+", type=int, default=[0, 5_000, 50_000], help="of them queued")
    parser.add_argument("--store", nargs="+", default=["sqlite", "etcd"], choices=["sqlite", "etcd"])
    parser.add_argument("--directory", default=tempfile.gettempdir(), help="where state and logs lie meanwhile")
    options = parser.parse_args()
    become_subreaper()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, gRPC for Python {grpc.__version__}, "
          f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC\n\n"
          "| store | ended + queued | what | median |\n|---|---|---|---|", flush=True)
    for store in options.store:
        for queued in options.queued:
            with tempfile.TemporaryDirectory(dir=options.directory, prefix="fsdpd-stored-") as directory:
                one_setting(directory, store, options.jobs - queued, queued)


if __name__ == "__main__":
    main()
