"""Tests of many readers of large logs: slow readers cause backpressure instead of memory growth."""

import os
import signal
import threading

from harness.processes import peak_kib
from harness.specs import one_rank
from harness.stubs import coordinator

LINES = 30_000
LINE = "x" * 1000 + "\n"
# 20 readers of 30 MB each: a coordinator that reads ahead for them holds 600 MB; one that does not, 3 MB and what gRPC
# and the allocator take for themselves, which is tens of megabytes and not the same each time.
READERS = 20
MAX_GROWTH_KIB = 200 << 10


def large_log(cluster):
    """An ended job and the number of lines of its log."""
    job_id = cluster.submit(one_rank(steps=2))
    cluster.wait_state(job_id, "SUCCEEDED")
    log = cluster.directory / "node-0.work" / job_id / "attempt-1" / "rank-0.log"
    already = len(log.read_text().splitlines())
    with open(log, "a", encoding="utf-8") as file:
        file.write(LINE * LINES)
    return job_id, already + LINES


def test_slow_readers_use_no_memory_and_miss_no_line(own):
    with own(agents=1) as cluster:
        job_id, lines = large_log(cluster)
        before = peak_kib(cluster.coordinator)
        request = coordinator.TailLogsRequest(id=job_id)
        slow = [cluster.api().TailLogs(request, timeout=600) for _ in range(READERS)]
        for reader in slow:
            next(reader)
        # The agent serves all in turn: what one of them reads whole, each of the others could have been sent.
        assert sum(1 for _ in cluster.api().TailLogs(request, timeout=600)) == lines
        assert peak_kib(cluster.coordinator) - before < MAX_GROWTH_KIB
        assert 1 + sum(1 for _ in slow[0]) == lines
        for reader in slow[1:]:
            reader.cancel()


def test_followers_miss_no_line_of_stopped_agent(own):
    with own(agents=1) as cluster:
        job_id, lines = large_log(cluster)
        follower = cluster.api().TailLogs(coordinator.TailLogsRequest(id=job_id, follow=True), timeout=600)
        next(follower)
        agent = cluster.agents["node-0"]
        os.kill(agent.pid, signal.SIGSTOP)
        # It was given 4 s to say the rest, and its silence was taken for the end. The reader takes all meanwhile.
        wake = threading.Timer(6, os.kill, (agent.pid, signal.SIGCONT))
        wake.start()
        assert 1 + sum(1 for _ in follower) == lines
        wake.join()
