"""Tests of a malicious agent with the valid certificate of node s2, which hosts no rank. Its messages about jobs of
other nodes are rejected, and those jobs continue. Also tests an agent that accepts a launch and never responds."""

import contextlib
import json
import queue
import re
import subprocess
import threading

import grpc
import pytest

from harness.cluster import Cluster
from harness.security import Security, certificates
from harness.specs import ENDLESS, spec
from harness.stubs import agent as agent_pb, agent_grpc, job as job_pb, preflight as preflight_pb
from harness.training import saving
from harness.wait import wait_until

MAX_ATTEMPT = 1_000_000
ON_S2 = [job_pb.Label(key="on", value="s2")]


class Hostile:
    """A stream of node s2: `say(rank=...)` sends a message, `received` has the coordinator's messages."""

    def __init__(self, cluster, **register):
        self._out, self.received, self.error = queue.Queue(), [], None
        self._channel = cluster.security.channel(cluster.address, node="s2")
        first = agent_pb.AgentMessage()
        first.register.MergeFrom(agent_pb.Register(node="s2", slots=1, instance="hostile", device=job_pb.DEVICE_CPU,
                                                   **register))
        self._out.put(first)
        self._stream = agent_grpc.AgentLinkStub(self._channel).Attach(iter(self._out.get, None), timeout=300)
        threading.Thread(target=self._listen, daemon=True).start()
        wait_until("the coordinator answers s2", lambda: self.received or self.error)
        assert self.received, self.error
        assert self.received[0].HasField("welcome")

    def _listen(self):
        try:
            for message in self._stream:
                self.received.append(message)
        except grpc.RpcError as error:
            self.error = error

    def say(self, **body):
        self._out.put(agent_pb.AgentMessage(stream_generation=self.received[0].stream_generation, **body))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._out.put(None)
        self._stream.cancel()
        self._channel.close()


class SilentStreams:
    """Streams of node s2 without any message."""

    def __init__(self, cluster, count):
        self._channel = cluster.security.channel(cluster.address, node="s2")
        grpc.channel_ready_future(self._channel).result(timeout=60)
        self._sent = [queue.Queue() for _ in range(count)]
        attach = agent_grpc.AgentLinkStub(self._channel).Attach
        self.calls = [attach(iter(sent.get, None), timeout=300) for sent in self._sent]

    def open(self):
        return sum(not call.done() for call in self.calls)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for call, sent in zip(self.calls, self._sent):
            call.cancel()
            sent.put(None)
        self._channel.close()


def refused(cluster, kind):
    found = re.search(rf'^fsdpd_agent_messages_rejected_total{{kind="{kind}"}} (\d+)', cluster.scrape_coordinator(), re.M)
    return int(found[1]) if found else 0


@contextlib.contextmanager
def refusing(cluster, kind, count=1):
    before = refused(cluster, kind)
    yield
    wait_until(f"{count} of kind {kind} are refused", lambda: refused(cluster, kind) >= before + count)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A job that saves every few steps, with a rank on each of two nodes, and the certificate of s2."""
    directory = tmp_path_factory.mktemp("attacked")
    with Cluster(directory, agents=2, slots=1, security=Security(directory / "security")) as cluster:
        certificates(cluster.security.pki, "node", "s2")
        job_id = cluster.submit(saving(directory / "job", steps=ENDLESS, checkpoint={"every_steps": 50},
                                       resources={"nodes": 2, "ranks_per_node": 1}))
        cluster.wait_step(job_id, 3)
        yield cluster, job_id
        cluster.cancel(job_id)


def assert_trains_on(cluster, job_id):
    reached = cluster.job(job_id).last_step.step
    cluster.wait_step(job_id, reached + 60)  # A checkpoint at least.
    job = cluster.job(job_id)
    assert (job.attempt, job.refused_launches, job.failure.error, job.failed_checkpoint.error) == (1, 0, "", ""), job
    assert "before it" not in job.reason, job.reason


@pytest.mark.parametrize("attempt", [1, 2, 7, MAX_ATTEMPT, MAX_ATTEMPT + 1])
def test_rejects_attempt_claimed_by_uninvolved_node(attacked, attempt):
    cluster, job_id = attacked
    with refusing(cluster, "registration"):
        with Hostile(cluster, hosted=[agent_pb.HostedAttempt(job_id=job_id, attempt=attempt, ranks=[0])]) as hostile:
            hostile.say(stopped=agent_pb.Stopped(job_id=job_id, attempt=attempt))
            assert_trains_on(cluster, job_id)


def test_impossible_attempt_number_is_ignored(attacked):
    cluster, _ = attacked
    with refusing(cluster, "registration"):
        with Hostile(cluster, past_attempts=[agent_pb.PastAttempt(job_id="gone-000000", attempt=MAX_ATTEMPT + 1)]):
            assert cluster.node("s2").connected


def test_rejects_keys_of_uninvolved_node(attacked):
    cluster, job_id = attacked
    with Hostile(cluster) as hostile, refusing(cluster, "rendezvous", 801):
        for number in range(1, 401):
            for key in (f"save/{number}", f"save/{number}/1"):
                hostile.say(rendezvous_set=agent_pb.RendezvousSet(job_id=job_id, attempt=1, key=key, value=b"evil"))
        hostile.say(rendezvous_get=agent_pb.RendezvousGet(job_id=job_id, attempt=1, key="save/1", request=1))
        assert_trains_on(cluster, job_id)
        assert not [message for message in hostile.received if message.HasField("rendezvous_value")]


def test_rejects_reports_of_uninvolved_node(attacked):
    cluster, job_id = attacked
    with Hostile(cluster) as hostile:
        with refusing(cluster, "rank", 5):
            for event in ({"exit": agent_pb.RankUpdate().exit}, {"no_progress": agent_pb.RankNoProgress(no_progress_ms=10**9)},
                          {"launch_acknowledged": {}}, {"saved": {"step": 10**6, "path": "/evil"}}, {"step": {"step": 10**6}}):
                hostile.say(rank=agent_pb.RankUpdate(job_id=job_id, attempt=1, rank=0, **event))
        with refusing(cluster, "stopped"):
            hostile.say(stopped=agent_pb.Stopped(job_id=job_id, attempt=1))
        with refusing(cluster, "compute_times"):
            heartbeat = agent_pb.Heartbeat()
            times = heartbeat.compute_times.add(job_id=job_id, attempt=1)
            times.ranks.add(rank=0)
            hostile.say(heartbeat=heartbeat)
        with refusing(cluster, "trace"):
            hostile.say(trace_result=agent_pb.TraceResult(job_id=job_id, attempt=1, rank=0))
        assert hostile.error is None, "only what it says is refused"
    assert_trains_on(cluster, job_id)


def test_unregistered_streams_do_not_block_agents(attacked):
    cluster, job_id = attacked
    with refusing(cluster, "stream", 40), SilentStreams(cluster, 40) as silent:
        wait_until("all but the certificate's share are refused", lambda: silent.open() <= 8)
        assert {call.code() for call in silent.calls if call.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert silent.open() == 8
        wait_until("streams that do not register are closed", lambda: silent.open() == 0, timeout_s=20)

    def audited(outcome):
        rows = map(json.loads, cluster.security.audit.read_text().splitlines())
        return [(row["method"], row["object"], row["outcome"]) for row in rows].count(("Attach", "s2", outcome))

    # A thread of its own writes the audit log, after the client has its answer.
    wait_until("the audit log has all closed streams", lambda: audited("DEADLINE_EXCEEDED") == 8)
    assert audited("RESOURCE_EXHAUSTED") == 32
    with Hostile(cluster):
        assert_trains_on(cluster, job_id)


def one_rank_on_s2(cluster, hostile, **arguments):
    """A job that is launched on the hostile node."""
    job_id = cluster.submit(spec(resources={"nodes": 1, "ranks_per_node": 1, "node_selector": "on=s2"}, **arguments))

    def is_launched():
        # Its slots may be held for some seconds, for ranks that an earlier test claimed.
        hostile.say(heartbeat=agent_pb.Heartbeat())
        return [each for each in hostile.received if each.launch.job_id == job_id]

    wait_until("s2 has the launch", is_launched, interval_s=0.5)
    return job_id


def cancel_on_s2(cluster, hostile, job_id):
    cluster.ctl("cancel", job_id)
    wait_until("s2 has the stop", lambda: [each for each in hostile.received if each.stop.job_id == job_id])
    hostile.say(stopped=agent_pb.Stopped(job_id=job_id, attempt=1))
    cluster.wait_state(job_id, "CANCELLED")


@contextlib.contextmanager
def sending_heartbeats(hostile):
    ended = threading.Event()

    def send():
        while not ended.wait(1):
            hostile.say(heartbeat=agent_pb.Heartbeat())

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_unanswered_launch_is_resent_then_moved(own, tmp_path):
    with own(agents=0, slots=1, security=Security(tmp_path / "security")) as cluster:
        certificates(cluster.security.pki, "node", "s2")
        with Hostile(cluster, acknowledges_launches=True) as hostile, sending_heartbeats(hostile):
            job_id = cluster.submit(spec(steps=3, resources={"nodes": 1, "ranks_per_node": 1}, restart={"max_attempts": 2}))
            waiting = "launch is not acknowledged by s2; resending it every 5s"
            for command in (["get"], ["describe", job_id]):
                wait_until("the reason is shown", lambda: waiting in cluster.ctl(*command).expect(0).out)
            cluster.start_agent("node-0", slots=1, wait=False)
            cluster.wait_state(job_id, "SUCCEEDED")
            launches = [message.launch for message in hostile.received if message.HasField("launch")]
            assert len(launches) > 1 and [launch.resent for launch in launches] == [False] + [True] * (len(launches) - 1)
            assert {launch.attempt for launch in launches} == {1}
            job = cluster.job(job_id)
            assert job.attempt == 2 and job.placements[0].node == "node-0", job
            assert (job.failure.error, job.failure.node) == ("the agent of node s2 has not acknowledged the launch for 1m", "s2")
            assert [message for message in hostile.received if message.HasField("stop")], "its ranks may start at any time"
            assert cluster.node("s2").free_slots == 0
            hostile.say(stopped=agent_pb.Stopped(job_id=job_id, attempt=1))
            wait_until("its slot is free", lambda: cluster.node("s2").free_slots == 1)


def test_rejects_log_lines_of_ranks_on_other_nodes(attacked):
    cluster, _ = attacked
    line = agent_pb.LogLines.Line
    with Hostile(cluster, labels=ON_S2) as hostile, refusing(cluster, "log"):
        job_id = one_rank_on_s2(cluster, hostile)

        def answer():
            requested = wait_until("s2 is asked for the log", lambda: [each.read_logs for each in hostile.received
                                                                  if each.HasField("read_logs")])
            hostile.say(logs=agent_pb.LogLines(request=requested[0].request, end=True, lines=[
                line(rank=0, attempt=1, line="own"), line(rank=16000, attempt=1, line="FORGED"),
                line(rank=0, attempt=99, line="FORGED")]))

        answering = threading.Thread(target=answer)
        answering.start()
        printed = cluster.ctl("logs", job_id)
        answering.join()
        assert "own" in printed.out and "FORGED" not in printed.out, printed
        cancel_on_s2(cluster, hostile, job_id)


def test_rejects_registration_with_long_version(attacked):
    cluster, _ = attacked
    for texts in ({"version": "0.1.0" + "x" * 3_000_000}, {"metrics_endpoint": "a\n\x1b[31mb"}):
        with pytest.raises(AssertionError, match="INVALID_ARGUMENT"):
            Hostile(cluster, **texts)
    assert cluster.ctl("nodes").code == 0


def test_rejects_unrequested_preflight_result(attacked):
    cluster, _ = attacked

    def refuses():
        hostile.say(preflight=preflight_pb.PreflightResult(number=12345))
        return refused(cluster, "preflight") > 0

    measuring = [agent_pb.HostedAttempt(job_id="preflight", attempt=1, ranks=[0])]
    with refusing(cluster, "registration"), Hostile(cluster, preflights=True, hosted=measuring) as hostile:
        wait_until("the result is refused", refuses, interval_s=0.5)
    assert "preflight completed node=s2" not in cluster.coordinator.text()


def test_large_rank_texts_do_not_break_job_list(attacked):
    cluster, _ = attacked
    with Hostile(cluster, labels=ON_S2) as hostile:
        job_id = one_rank_on_s2(cluster, hostile, restart={"max_attempts": 1})
        for event in ({"saved": {"step": 1, "path": "/q" * 1_000_000}},
                      {"exit": {"exit_code": 1, "error": "E" * 1_000_000, "log_tail": ["L" * 1_000_000] * 2}}):
            hostile.say(rank=agent_pb.RankUpdate(job_id=job_id, attempt=1, rank=0, **event))
        hostile.say(stopped=agent_pb.Stopped(job_id=job_id, attempt=1))
        cluster.wait_state(job_id, "FAILED")
    assert cluster.job(job_id).ByteSize() < 256 << 10
    assert cluster.ctl("get").code == 0
    assert max(map(len, cluster.coordinator.text().splitlines())) < 20_000


def test_rejects_next_attempt_claimed_by_former_host(own, tmp_path):
    with own(agents=0, security=Security(tmp_path / "security")) as cluster:
        cluster.start_agent("s2", slots=1)
        job_id = cluster.submit(saving(tmp_path / "job", steps=ENDLESS, checkpoint={"every_steps": 50},
                                       resources={"nodes": 1, "ranks_per_node": 1}, restart={"max_attempts": 9}))
        cluster.wait_step(job_id, 60)
        cluster.agents.pop("s2").kill()
        cluster.start_agent("node-0", slots=1)
        wait_until("attempt 2 trains", lambda: cluster.job(job_id).attempt == 2 and cluster.state(job_id) == "RUNNING")
        hosted = [agent_pb.HostedAttempt(job_id=job_id, attempt=3, ranks=[0])]
        with refusing(cluster, "registration"), Hostile(cluster, hosted=hosted):
            reached = cluster.job(job_id).last_step.step
            cluster.wait_step(job_id, reached + 60)
            assert cluster.job(job_id).attempt == 2
        cluster.cancel(job_id)


def test_restarted_coordinator_knows_hosts_of_job(attacked):
    cluster, job_id = attacked
    cluster.coordinator.kill()
    cluster.start_coordinator(listen=cluster.address)
    with refusing(cluster, "registration"):
        with Hostile(cluster, hosted=[agent_pb.HostedAttempt(job_id=job_id, attempt=7, ranks=[0])]):
            cluster.wait_nodes(3)
            assert_trains_on(cluster, job_id)


def test_revocation_closes_open_stream(own, tmp_path):
    security, listed = Security(tmp_path / "security"), tmp_path / "revoked"
    listed.write_text("# none\n")
    security.more_flags = ["--revoked-certs", listed]
    certificates(security.pki, "node", "s2")
    serial = subprocess.run(["openssl", "x509", "-noout", "-serial", "-in", security.pair("s2")[0]], check=True,
                            capture_output=True, text=True).stdout
    with own(agents=1, security=security) as cluster, SilentStreams(cluster, 1) as silent, Hostile(cluster) as hostile:
        half = tmp_path / "revoked.tmp"
        half.write_text(f"{serial}\n")
        half.rename(listed)
        wait_until("the stream ends with a heartbeat", lambda: hostile.say(heartbeat=agent_pb.Heartbeat()) or hostile.error,
                   interval_s=0.5)
        assert hostile.error.code() == grpc.StatusCode.UNAUTHENTICATED and "is revoked" in hostile.error.details()
        wait_until("the stream without a registration ends too", lambda: silent.open() == 0)
        assert silent.calls[0].code() == grpc.StatusCode.CANCELLED, "it was open"
        wait_until("the closed stream is on record", lambda: [
            each for each in map(json.loads, security.audit.read_text().splitlines())
            if (each["who"], each["object"], each["outcome"]) == ("s2", "s2", "UNAUTHENTICATED")
            and each["method"] == "Attach" and f"serial={each['revoked_serial']}" == serial.strip()])
        for _ in range(3):
            with pytest.raises(AssertionError, match="is revoked"):
                Hostile(cluster)
        assert cluster.node("s2").revoked_serial
        lines = [line for line in cluster.coordinator.text().splitlines() if "agent stream ended" in line and "is revoked" in line]
        assert len(lines) == 2, f"one when the stream was closed, one for all refusals of a minute: {lines}"
        assert not any("type.googleapis.com" in line for line in lines)
        page = cluster.scrape_coordinator()
        assert re.search("^fsdpd_revoked_certificates 1$", page, re.M), page
        assert re.search("^fsdpd_revoked_agent_streams_total 4$", page, re.M), page
        assert cluster.node("node-0").connected, "others are untouched"
        listed.write_text("typo in it\n")
        wait_until("the error is shown",
                   lambda: re.search('^fsdpd_coordinator_file_stale{file="--revoked-certs"} 1$', cluster.scrape_coordinator(), re.M))
        with pytest.raises(AssertionError, match="is revoked"):
            Hostile(cluster)


def test_revoked_agent_stops_ranks_with_reason(own, tmp_path):
    security, listed = Security(tmp_path / "security"), tmp_path / "revoked"
    listed.write_text("# none\n")
    security.more_flags = ["--revoked-certs", listed]
    with own(agents=1, security=security) as cluster:
        job_id = cluster.submit(saving(tmp_path / "job", steps=ENDLESS, checkpoint={"every_steps": 50},
                                       resources={"nodes": 1, "ranks_per_node": 1}))
        cluster.wait_step(job_id, 3)
        serial = subprocess.run(["openssl", "x509", "-noout", "-serial", "-in", security.pair("node-0")[0]], check=True,
                                capture_output=True, text=True).stdout
        listed.write_text(serial)
        wait_until("its ranks have ended", lambda: not cluster.all_ranks())
        node = cluster.node("node-0")
        assert f"serial={node.revoked_serial}" == serial.strip() and not node.connected
        words = f"node-0: the agent's certificate is revoked (serial number {node.revoked_serial})"
        for command in (["nodes"], ["describe", "node", "node-0"]):
            assert words in cluster.ctl(*command).expect(0).out
        wait_until("the event is stored", lambda: "is revoked" in cluster.ctl("events").expect(0).out)
        assert "reason=the node's certificate is revoked" in cluster.logs()
        cluster.cancel(job_id)
