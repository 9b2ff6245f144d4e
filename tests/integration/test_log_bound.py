"""Tests of the bound on logs: a rank that writes more does not fill the disk, and readers get a notice."""

import os
import re
import threading

from harness.processes import peak_kib
from harness.programs import program
from harness.specs import one_rank, spec
from harness.stubs import coordinator
from harness.wait import wait_until

BOUND_MIB = 4
LINES, AT_ONCE = 500_000, 10_000  # Some 50 MB, by one.
# What is written between two looks of the agent, at some 20 MB/s, comes on top.
MOST_ON_DISK = 40 << 20
MAX_GROWTH_KIB = 100 << 10
GONE = re.compile(r"\[fsdpd-agent: (\d+) lines \((\d+) bytes\) are gone here: of a rank's log the newest 4.00 MiB are kept\]")


def flooding(directory, rank):
    """A rank that writes a large log before it starts."""
    script = directory / "flooding-rank"
    script.write_text(f"""#!/bin/sh
for first in $(seq 1 {AT_ONCE} {LINES}); do
  seq -f 'flood %.0f {'.' * 90}' $first $((first + {AT_ONCE - 1}))
  sleep 0.05
done
exec {rank} "$@"
""")
    script.chmod(0o755)
    return script


def test_log_flood_is_bounded_with_notice(own, tmp_path):
    with own(agents=0) as cluster:
        rank = flooding(tmp_path, program("fsdp/fsdpd-rank"))
        cluster.start_agent("node-0", log_mib=BOUND_MIB, rank_binary=rank)
        agent = cluster.agents["node-0"]
        before = [peak_kib(each) for each in (agent, cluster.coordinator)]
        job_id = cluster.submit(one_rank(steps=2))
        log = cluster.directory / "node-0.work" / job_id / "attempt-1" / "rank-0.log"
        wait_until("the rank has a log", log.exists)  # Before that there is nothing to follow.
        shown = []
        request = coordinator.TailLogsRequest(id=job_id, follow=True)
        reader = threading.Thread(target=lambda: shown.extend(cluster.api().TailLogs(request, timeout=600)))
        reader.start()
        most = 0
        while reader.is_alive():
            most = max(most, log.stat().st_blocks * 512 if log.exists() else 0)
            reader.join(0.05)
        cluster.wait_state(job_id, "SUCCEEDED")
        assert log.stat().st_size > LINES * 90
        assert most < MOST_ON_DISK, most
        for process, peak in zip((agent, cluster.coordinator), before):
            assert peak_kib(process) - peak < MAX_GROWTH_KIB, process.name

        check_accounts([(each.line, each.notice) for each in shown])
        again = list(cluster.api().TailLogs(coordinator.TailLogsRequest(id=job_id), timeout=600))
        assert again[0].notice and sum(len(each.line) + 1 for each in again[1:]) <= BOUND_MIB << 20
        check_accounts([(each.line, each.notice) for each in again])

        whole = cluster.ctl("logs", job_id).expect(0).out
        assert GONE.search(whole.splitlines()[0]) and "flood 1 " not in whole, whole[:500]
        found = cluster.ctl("logs", job_id, "--grep", f"flood {LINES} ").expect(0).out.splitlines()
        assert GONE.search(found[0]) and f"flood {LINES} " in found[1] and len(found) == 2, found
        few = cluster.ctl("logs", job_id, "--tail", "3").expect(0).out.splitlines()
        assert len(few) == 3 and not GONE.search(few[0]), few


def check_accounts(lines):
    """Checks that each line of the flood was returned or is counted as dropped in its place; a torn line counts as
    returned."""
    at = 0
    for line, notice in lines:
        gone = GONE.match(line)
        assert bool(gone) == notice, line
        if gone:
            at += int(gone[1])
            continue
        at += 1
        whole = re.match(r"flood (\d+) \.{90}$", line)
        assert not whole or int(whole[1]) == at, (line, at)
    assert at > LINES


def test_truncated_log_affects_no_other_log(own, tmp_path):
    """Regression: the agent computed a negative size from dropped lines, and exited with all jobs of its node."""
    rank = tmp_path / "talking-rank"
    rank.write_text(f"""#!/bin/sh
seq -f 'flood %.0f {'.' * 90}' 30000
(while :; do echo tick; sleep 0.1; done) &
exec {program("fsdp/fsdpd-rank")} "$@"
""")
    rank.chmod(0o755)
    with own(agents=0) as cluster:
        cluster.start_agent("node-0", slots=2, log_mib=1, rank_binary=rank)
        neighbor = cluster.submit(one_rank(steps=100_000))
        job_id = cluster.submit(one_rank(steps=100_000))
        log = cluster.directory / "node-0.work" / job_id / "attempt-1" / "rank-0.log"
        wait_until("lines were dropped", log.with_suffix(".log.front").exists)
        cluster.wait_state(job_id, "RUNNING")
        os.truncate(log, 0)
        wait_until("later lines are shown", lambda: "tick" in cluster.ctl("logs", job_id).expect(0).out)
        assert "flood" not in cluster.ctl("logs", job_id).expect(0).out
        cluster.ctl("cancel", job_id).expect(0)
        cluster.wait_state(job_id, "CANCELLED")
        cluster.wait_state(neighbor, "RUNNING")
        assert cluster.agents["node-0"].running()
        assert "fsdpd_agent_internal_errors_total 0" in cluster.scrape("node-0")


def test_removed_log_is_reported(own, tmp_path):
    """Regression: `logs` printed only the lines of the other node."""
    rank = tmp_path / "talking-rank"
    rank.write_text(f"#!/bin/sh\nseq -f 'flood %.0f {'.' * 90}' 30000\nexec {program('fsdp/fsdpd-rank')} \"$@\"\n")
    rank.chmod(0o755)
    with own(agents=0) as cluster:
        cluster.start_agent("node-0", slots=1)
        cluster.start_agent("node-1", slots=1, rank_binary=rank)
        job_id = cluster.submit(spec(steps=2, resources={"nodes": 2, "ranks_per_node": 1}))
        cluster.wait_state(job_id, "SUCCEEDED")
        attempt = cluster.directory / "node-1.work" / job_id / "attempt-1"
        removed = 1 if (attempt / "rank-1.log").exists() else 0
        cluster.agents["node-1"].stop()
        cluster.start_agent("node-1", slots=1, work_mib=1)
        wait_until("the removal is recorded", (attempt.parent / "removed").exists)
        assert not attempt.exists()
        notice = f"[fsdpd-agent: the log of rank {removed} of attempt 1 was removed: files of jobs on this node exceeded --work-mib]"
        lines = cluster.ctl("logs", job_id).expect(0).out.splitlines()
        assert f"[rank {removed}] {notice}" in lines and any(line.startswith(f"[rank {1 - removed}] ") for line in lines), lines
        assert cluster.ctl("logs", job_id, "--rank", removed).expect(0).out == f"{notice}\n"
