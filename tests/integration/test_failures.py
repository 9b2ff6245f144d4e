"""Tests of failures of ranks, agents and data: the cause is reported, and no process is left running."""

import os
import re
import resource
import signal

import pytest

from harness.cluster import rank_of
from harness.processes import descendants
from harness.specs import ENDLESS, corpus, one_rank, spec
from harness.stubs import coordinator
from harness.wait import measured, wait_until


# As in a flight recorder: the compute lane, and the instructions of other lanes.
A_PLACE = r"step \d+: compute (in|after) (Forward|Backward|Release|Update|Gather|Loss|Norm)"
IN_A_COLLECTIVE = r"(gather in Gather|reduce in (Reduce|Norm)|outer in)"


def start_endless(cluster):
    job_id = cluster.submit(spec(steps=ENDLESS))
    cluster.wait_step(job_id, 2)
    return job_id


def test_cancel_leaves_no_process(cluster):
    job_id = start_endless(cluster)
    assert len(cluster.all_ranks()) == 4
    cluster.api().CancelJob(coordinator.CancelJobRequest(id=job_id, reason="the test is over"), timeout=60)
    job = cluster.wait_state(job_id, "CANCELLED")
    assert not cluster.all_ranks(), "a cancelled job means: every rank is gone"
    assert any("the test is over" in event.message for event in job.events), job.events
    again = cluster.api().CancelJob(coordinator.CancelJobRequest(id=job_id), timeout=60).job
    assert again.state == job.state and again.revision == job.revision, "cancelling an ended job changes nothing"


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGINT], ids=lambda each: each.name)
def test_killed_rank_is_the_cause(cluster, signum):
    """Its peers lose their connections and exit before the agent sees the exit of the killed rank."""
    job_id = start_endless(cluster)
    victim = next(each for each in cluster.ranks("node-1") if rank_of(each) == 3)
    os.kill(victim.pid, signum)
    job = cluster.wait_state(job_id, "FAILED")
    assert (job.failure.rank, job.failure.signal, job.failure.node) == (3, signum, "node-1"), job.failure
    assert re.search(rf"killed by signal \d+ \({signum.name}\); it was in " + A_PLACE, job.failure.error), job.failure.error
    assert job.failure.attempt == 1
    assert not cluster.all_ranks()


def test_terminated_rank_is_the_cause_not_its_peers(cluster):
    job_id = start_endless(cluster)
    victim = next(each for each in cluster.ranks("node-1") if rank_of(each) == 3)
    os.kill(victim.pid, signal.SIGTERM)
    job = cluster.wait_state(job_id, "FAILED")
    assert (job.failure.rank, job.failure.exit_code, job.failure.node) == (3, 143, "node-1"), job.failure
    assert re.search("SIGTERM from outside, not from its agent; it was in " + A_PLACE, job.failure.error)


def test_stopped_rank_is_reported(cluster):
    job_id = start_endless(cluster)
    cluster.wait_step(job_id, 20)
    victim = cluster.ranks("node-1")[0]
    os.kill(victim.pid, signal.SIGSTOP)
    wait_until("the job says that it makes no step", lambda: cluster.job(job_id).stalled_since_unix_nanos)
    assert cluster.state(job_id) == "RUNNING"
    for screen in (cluster.ctl("get"), cluster.ctl("describe", job_id)):
        assert re.search(r"no step for \d+ .*the last one took", screen.expect(0).out), screen
    assert cluster.ctl("nodes").expect(0).out.count(f"no step of {job_id}") == 2
    stopped = rank_of(victim)

    def stands():
        return {rank: each.position for each in cluster.job(job_id).positions for rank in each.ranks}
    wait_until("every agent says where its ranks stand", lambda: len(stands()) == 4)
    assert re.search(r"^stopped by a signal; .*" + A_PLACE, stands()[stopped]), stands()
    for rank in set(range(4)) - {stopped}:
        assert re.search(r"^step \d+: .*" + IN_A_COLLECTIVE, stands()[rank]), stands()
    place = re.escape(stands()[stopped].removeprefix("stopped by a signal; "))
    output = f"no step for .*; the rank was stopped by a signal in {place}"
    assert re.search(f"rank={stopped}: {output}", cluster.agents["node-1"].text())
    assert re.search(rf"\[fsdpd-agent: {output}\]", cluster.ctl("logs", job_id, "--rank", stopped).expect(0).out)
    described = cluster.ctl("describe", job_id).expect(0).out
    assert re.search(rf"positions of stalled ranks:\n.*\n(.*\n)*?  {stopped} +stopped by a signal; ", described), described
    os.kill(victim.pid, signal.SIGCONT)
    wait_until("the job says that steps go on", lambda: "steps continued" in cluster.job(job_id).reason)
    assert not cluster.job(job_id).stalled_since_unix_nanos and not cluster.job(job_id).positions


def test_missing_data_file_reports_error_of_rank(cluster, tmp_path):
    path = tmp_path / "nowhere.bin"
    job_id = cluster.submit(spec(data={"synthetic": None, "tokens": [{"path": str(path), "type": "u16"}]}))
    job = cluster.wait_state(job_id, "FAILED")
    assert f"data.tokens[0].path: {path}" in job.failure.error and job.failure.exit_code == 1, job.failure
    assert any(str(path) in line for line in job.failure.log_tail), job.failure


def test_token_outside_vocabulary_is_named(cluster, tmp_path):
    text = corpus(tmp_path / "corpus.txt")
    job_id = cluster.submit(spec(model={"llama": {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64,
                                                  "layers": 1, "heads": 4}},
                                 data={"synthetic": None, "tokens": [{"path": str(text), "type": "u16"}]}))
    job = cluster.wait_state(job_id, "FAILED")
    assert "100" in job.failure.error and "corpus.txt" in job.failure.error, job.failure


def test_failed_job_is_retried_as_configured(cluster):
    job_id = cluster.submit(spec(steps=ENDLESS, restart={"max_attempts": 2}))
    for attempt in (1, 2):
        wait_until(f"attempt {attempt} makes a step",
                   lambda: cluster.job(job_id).attempt == attempt and cluster.job(job_id).last_step.step >= 2
                   and cluster.state(job_id) == "RUNNING")
        os.kill(cluster.ranks("node-0")[0].pid, signal.SIGKILL)
    job = cluster.wait_state(job_id, "FAILED")
    assert job.attempt == 2 and job.failure.attempt == 2 and job.failure.signal == signal.SIGKILL


def test_stopped_agent_stops_its_ranks(own):
    with own() as cluster:
        job_id = start_endless(cluster)
        agent = cluster.agents["node-1"]
        ranks = descendants(agent.pid)
        assert agent.stop() == 0
        assert not [each for each in descendants(os.getpid()) if each.pid in {rank.pid for rank in ranks}]
        wait_until("the job waits for a node", lambda: cluster.state(job_id) == "QUEUED")
        job = cluster.job(job_id)
        assert job.failure.node == "node-1" and "stopped by its agent" in job.failure.error, job.failure
        assert any("because node node-1 shut down" in event.message for event in job.events), job.events


def signals_of(cluster):
    """Signals that ended each rank's process, by rank, from the agents' logs: 9 means that the agent had to kill it."""
    ends = re.findall(r"rank exited job=\S+ attempt=1 rank=(\d) (signal|exit_code)=(\d+)",
                      "".join(agent.text() for agent in cluster.agents.values()))
    return {int(rank): int(code) if kind == "signal" else 0 for rank, kind, code in ends}


def test_cancel_with_stopped_rank_needs_no_kill(own):
    with own() as cluster:
        job_id = start_endless(cluster)
        os.kill(next(each for each in cluster.ranks("node-1") if rank_of(each) == 2).pid, signal.SIGSTOP)
        cluster.cancel(job_id)
        cluster.wait_state(job_id, "CANCELLED")
        assert signals_of(cluster) == {0: 0, 1: 0, 2: 0, 3: 0}


def test_killed_rank_is_the_cause_with_stopped_ranks(own):
    with own() as cluster:
        job_id = start_endless(cluster)
        for rank in cluster.ranks("node-1"):
            os.kill(rank.pid, signal.SIGSTOP)
        os.kill(next(each for each in cluster.ranks("node-0") if rank_of(each) == 1).pid, signal.SIGKILL)
        job = cluster.wait_state(job_id, "FAILED")
        assert (job.failure.rank, job.failure.signal) == (1, signal.SIGKILL), job.failure
        assert signals_of(cluster) == {0: 0, 1: 9, 2: 0, 3: 0}


def test_ranks_exit_when_agent_is_killed(own):
    with own() as cluster:
        job_id = start_endless(cluster)
        cluster.agents["node-1"].kill()
        wait_until("all ranks are gone", lambda: not cluster.all_ranks())
        job = cluster.wait_state(job_id, "FAILED")
        assert (job.failure.node, job.failure.rank) == ("node-1", -1), "no rank is to blame for a lost node"


def test_stopped_rank_exits_when_agent_is_killed(own):
    """A stopped rank cannot see that its socket is closed, and would hold its device and the lock of the checkpoint
    directory."""
    with own(agents=1) as cluster:
        job_id = cluster.submit(one_rank(steps=ENDLESS))
        cluster.wait_step(job_id, 1)
        os.kill(cluster.all_ranks()[0].pid, signal.SIGSTOP)
        cluster.agents["node-0"].kill()
        wait_until("no rank is left", lambda: not cluster.all_ranks())


def test_rejects_second_agent_with_same_name(own):
    with own(agents=1) as cluster:
        other = cluster.start_agent("other", node="node-0", expect_serving=False)
        with measured("the other one has ended"):
            assert other.wait() == 1
        assert "node-0" in other.text() and re.search("already|attached", other.text()), other.text()
        assert cluster.agents["node-0"].running()
        assert [node.name for node in cluster.nodes() if node.connected] == ["node-0"]
        cluster.wait_state(cluster.submit(spec(resources={"nodes": 1})), "SUCCEEDED")


def test_rejects_second_agent_in_same_work_dir(own):
    with own(agents=1) as cluster:
        other = cluster.start_agent("other", work_dir=cluster.directory / "node-0.work", expect_serving=False)
        with measured("the other one has ended"):
            assert other.wait() == 1
        assert f"locked by another agent (pid {cluster.agents['node-0'].pid})" in other.text()
        assert [node.name for node in cluster.nodes()] == ["node-0"]


def test_agent_recovers_from_descriptor_exhaustion(own):
    with own(agents=1) as cluster:
        before = cluster.submit(one_rank(steps=2))
        cluster.wait_state(before, "SUCCEEDED")
        agent = cluster.agents["node-0"].pid
        soft, hard = resource.prlimit(agent, resource.RLIMIT_NOFILE)
        resource.prlimit(agent, resource.RLIMIT_NOFILE, (3, hard))  # All of those are open.
        output = cluster.ctl("logs", before)
        assert output.code != 0 and "node-0: cannot" in output.err and "Too many open files" in output.err, output
        job = cluster.wait_state(cluster.submit(one_rank(steps=2)), "FAILED")
        assert "Too many open files" in job.failure.error, job.failure
        resource.prlimit(agent, resource.RLIMIT_NOFILE, (soft, hard))
        cluster.wait_state(cluster.submit(one_rank(steps=2)), "SUCCEEDED")
        assert "fsdpd_" in cluster.scrape("node-0")
        cluster.ctl("logs", before).expect(0)


def test_stopped_agent_has_left_and_killed_agent_is_lost(own):
    with own(agents=2) as cluster:
        # Before that it has no stream on which it could say that it leaves.
        wait_until("node-0 is attached", lambda: " attached " in cluster.agents["node-0"].text())
        assert cluster.agents["node-0"].stop() == 0
        cluster.agents["node-1"].kill()
        wait_until("both are gone", lambda: not any(node.connected for node in cluster.nodes()))

        def shown(node):
            return re.search(rf"^{node} +(\S+) ", cluster.ctl("nodes").expect(0).out, re.MULTILINE)[1]
        assert shown("node-0") == "left"
        wait_until("node-1 is lost", lambda: shown("node-1") == "lost")
        assert cluster.coordinator.stop() == 0
        cluster.start_coordinator(listen=cluster.address)
        assert (shown("node-0"), shown("node-1")) == ("left", "not-ready"), "it may come back to its ranks"
        cluster.start_agent("node-0")
        assert not cluster.node("node-0").left, "it is back"
