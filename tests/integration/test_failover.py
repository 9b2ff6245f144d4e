"""Tests of several coordinators with state in etcd: one leads, and another takes over when it fails, while training
continues."""

import contextlib
import json
import re
import uuid
import shutil
import signal
import subprocess
import time
import urllib.request

import grpc
import pytest

from harness import stubs
from harness.cluster import Cluster
from harness.coordinators import NAMES, Coordinators
from harness.etcd import Etcd, free_ports
from harness.processes import Daemon
from harness.programs import program
from harness.security import Security, certificates
from harness.specs import ENDLESS, one_rank, spec, to_message
from harness.wait import wait_until


@pytest.fixture
def coordinators(request, tmp_path):
    tls = getattr(request, "param", "plaintext") == "tls"
    with Coordinators(tmp_path / "cluster", security=Security(tmp_path / "security") if tls else None) as made:
        yield made


over_both = pytest.mark.parametrize("coordinators", ["plaintext", "tls"], indirect=True)


def long_job(cluster):
    job_id = cluster.submit(spec(name="long", steps=ENDLESS, resources={"ranks_per_node": 1}))
    cluster.wait_step(job_id, 3)
    return job_id


def ranks(cluster):
    return {each.pid for each in cluster.all_ranks()}


def events_of(stub):
    """Lists all events by pages of three."""
    events, token = [], ""
    while True:
        page = stub.ListEvents(stubs.coordinator.ListEventsRequest(page_size=3, page_token=token), timeout=20)
        events += page.events
        token = page.next_page_token
        if not token:
            return events


@over_both
def test_killed_leader_loses_no_step(coordinators):
    cluster = coordinators
    job_id = long_job(cluster)
    before, first = ranks(cluster), cluster.leader()
    path = cluster.write_spec(one_rank(name="asked", steps=1))
    requested = cluster.ctl("submit", "-f", path, "--request-id", "twice").expect(0)
    killed_at = time.monotonic()
    cluster.daemons[first].kill()
    second = cluster.leader(first)
    leads_after_s = time.monotonic() - killed_at
    cluster.wait_nodes(2)
    step = cluster.job(job_id).last_step.step
    cluster.wait_step(job_id, step + 2)
    print(f"failover: {leads_after_s:.1f} s until {second} leads, {time.monotonic() - killed_at:.1f} s until it has steps")
    assert cluster.job(job_id).attempt == 1 and ranks(cluster) >= before, "no running rank was touched"
    assert cluster.ctl("submit", "-f", path, "--request-id", "twice").expect(0).out == requested.out, "the same job"
    assert job_id in cluster.ctl("get").expect(0).out
    cluster.start_one(first)
    assert not cluster.leads(first), "it stands by, now that it is back"
    cluster.ctl("cancel", job_id).expect(0)
    cluster.wait_state(job_id, "CANCELLED")


def test_state_migrates_between_etcd_and_directory(tmp_path):
    """A running job survives both migrations, because its agents use the same address."""
    def coordinator(*arguments, code=0):
        done = subprocess.run([program("coordinator/fsdpd-coordinator"), *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    with Cluster(tmp_path, start=False) as cluster:
        etcd = Etcd(tmp_path, cluster.mark, members=1)
        try:
            def serve(name, *where):
                port_file = tmp_path / f"{name}.port"
                cluster.coordinator = Daemon(name, [
                    program("coordinator/fsdpd-coordinator"), "--listen", cluster.address or "127.0.0.1:0", *where, "--insecure",
                    "--port-file", port_file], tmp_path / f"{name}.log", cluster.mark)
                cluster.address = cluster._read_port_file(cluster.coordinator, port_file)
                wait_until("it leads", leads)

            def leads():
                with contextlib.suppress(grpc.RpcError):
                    return bool(cluster.api().ListNodes(stubs.coordinator.ListNodesRequest(), timeout=5))

            cluster.address = f"127.0.0.1:{free_ports(1)[0]}"
            serve("in-etcd", "--store", etcd.store)
            for index in range(2):
                cluster.start_agent(f"node-{index}", wait=False)
            cluster.wait_nodes(2)
            job_id = long_job(cluster)
            before = ranks(cluster)
            assert "a coordinator leads at prefix /fsdpd/" in coordinator(
                "restore", "--from", _backup_of(coordinator, etcd.store, tmp_path / "first"), "--store", etcd.store, code=1)
            assert cluster.coordinator.stop() == 0
            coordinator("backup", "--store", etcd.store, "--to", tmp_path / "moved")
            coordinator("restore", "--from", tmp_path / "moved", "--state-dir", tmp_path / "moved-to")
            serve("in-directory", "--state-dir", tmp_path / "moved-to")
            cluster.wait_nodes(2)
            cluster.wait_step(job_id, cluster.job(job_id).last_step.step + 2)
            assert cluster.coordinator.stop() == 0
            coordinator("backup", "--state-dir", tmp_path / "moved-to", "--to", tmp_path / "back")
            assert "prefix /fsdpd/ already has a state" in coordinator(
                "restore", "--from", tmp_path / "back", "--store", etcd.store, code=1)
            elsewhere = etcd.store.replace("/fsdpd", "/again")
            assert "restored to etcd, below /again/: 1 jobs" in coordinator(
                "restore", "--from", tmp_path / "back", "--store", elsewhere)
            serve("in-etcd-again", "--store", elsewhere)
            cluster.wait_nodes(2)
            cluster.wait_step(job_id, cluster.job(job_id).last_step.step + 2)
            assert cluster.job(job_id).attempt == 1 and ranks(cluster) == before, "no rank was touched"
            cluster.ctl("cancel", job_id).expect(0)
            cluster.wait_state(job_id, "CANCELLED")
        finally:
            for agent in cluster.agents.values():
                agent.stop()
            if cluster.coordinator:
                cluster.coordinator.stop()
            etcd.stop()


def _backup_of(coordinator, store, to):
    assert f"wrote {to}: " in coordinator("backup", "--store", store, "--to", to), "while it leads"
    return to


def test_paused_leader_steps_down_after_lease(coordinators):
    cluster = coordinators
    job_id = long_job(cluster)
    before, first = ranks(cluster), cluster.leader()
    cluster.daemons[first].process.send_signal(signal.SIGSTOP)
    second = cluster.leader(first)
    cluster.wait_nodes(2)
    cluster.daemons[first].process.send_signal(signal.SIGCONT)
    wait_until("it has stepped down", lambda: "lost leadership" in cluster.daemons[first].text() and
               not cluster.leads(first))
    assert cluster.leads(second)
    step = cluster.job(job_id).last_step.step
    cluster.wait_step(job_id, step + 2)
    assert cluster.job(job_id).attempt == 1 and ranks(cluster) >= before
    cluster.cancel(job_id)


def test_standby_serves_reads_and_names_leader(coordinators):
    cluster = coordinators
    job_id = long_job(cluster)
    leader = cluster.leader()
    standby = cluster.stub(next(name for name in NAMES if name != leader))
    read, call = standby.GetJob.with_call(stubs.coordinator.GetJobRequest(id=job_id), timeout=20)
    assert read.job.id == job_id
    revision = int(dict(call.trailing_metadata())["fsdpd-store-revision"])
    listed, call = standby.ListJobs.with_call(stubs.coordinator.ListJobsRequest(), timeout=20)
    assert [job.id for job in listed.jobs] == [job_id]
    assert int(dict(call.trailing_metadata())["fsdpd-store-revision"]) >= revision > 0
    for ask in (lambda: standby.CancelJob(stubs.coordinator.CancelJobRequest(id=job_id), timeout=20),
                # Which are connected, and what of them is free, it does not know.
                lambda: standby.ListNodes(stubs.coordinator.ListNodesRequest(), timeout=20)):
        with pytest.raises(grpc.RpcError) as refused:
            ask()
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        details = dict(refused.value.trailing_metadata())["grpc-status-details-bin"]
        assert b"NOT_LEADER" in details and cluster.addresses[leader].encode() in details
    # With only the standby's address, fsdpctl finds the leader.
    cluster.ctl("cancel", job_id).expect(0)
    cluster.wait_state(job_id, "CANCELLED")


@over_both
def test_event_watch_is_exact_over_two_leader_changes(coordinators):
    cluster = coordinators
    access = cluster.security.ctl_flags("ada") if cluster.security else []
    watch = Daemon("events", [program("client/fsdpctl"), "--server", cluster.address, *access, "events", "-w"],
                   cluster.directory / "events.txt", cluster.mark)
    for number, end in enumerate((lambda leader: leader.kill(), lambda leader: leader.stop(), None)):
        job_id = cluster.submit(one_rank(name=f"of-leader-{number}", steps=2))
        cluster.wait_state(job_id, "SUCCEEDED")
        wait_until("the watch goes on", lambda: re.search(f" succeeded +{job_id} ", watch.text()))
        if end:
            leader = cluster.leader(*cluster.gone())
            end(cluster.daemons[leader])
            cluster.leader(*cluster.gone())
    watch.stop()
    shown = [int(line.split()[0]) for line in watch.text().splitlines() if line.split()[0].isdigit()]
    assert shown == [event.sequence for event in events_of(cluster.api())]
    assert watch.text().count("connected again") >= 2  # A leader without processor time loses its lease too.


def test_stopped_leader_is_replaced_immediately(coordinators):
    cluster = coordinators
    job_id = long_job(cluster)
    first = cluster.leader()
    assert cluster.daemons[first].stop() == 0
    cluster.leader(first)
    cluster.wait_nodes(2)
    assert cluster.job(job_id).attempt == 1
    generations = [int(found) for name in NAMES
                   for found in re.findall(r"leading generation=(\d+)", cluster.daemons[name].text())]
    assert len(set(generations)) == 2, "each leadership has its own"
    cluster.cancel(job_id)


def test_bad_files_and_health_watch_do_not_block_leadership(tmp_path):
    security, quotas = Security(tmp_path / "security"), tmp_path / "quotas"
    quotas.write_text("vision 1\n")
    etcd, ports = Etcd(tmp_path, uuid.uuid4().hex, 1), free_ports(3)
    health, started = f"127.0.0.1:{ports[2]}", []

    def start(name, *flags):
        started.append(Daemon(name, [program("coordinator/fsdpd-coordinator"), "--store", etcd.store, "--quotas", quotas,
                                     "--leader-lease-seconds", "4", *flags], tmp_path / f"{name}.log", name))
        return started[-1]

    def secure(name, port, *flags):
        pki = security.pki
        return start(name, "--listen", f"127.0.0.1:{port}", "--tls-cert", pki / "coordinator.crt", "--tls-key",
                     pki / "coordinator.key", "--tls-client-ca", pki / "ca.crt", "--tokens", security.tokens, *flags)

    try:
        first = secure("first", ports[0], "--health-listen", health)
        wait_until("the first leads", lambda: "leading generation" in first.text())
        audit = tmp_path / "audit.jsonl"
        second = secure("second", ports[1], "--audit-log", audit)
        wait_until("the second stands by", lambda: "standby leader=" in second.text())
        with security.channel(f"127.0.0.1:{ports[1]}") as channel:
            with pytest.raises(grpc.RpcError) as answer:
                stubs.coordinator_grpc.CoordinatorStub(channel).ListJobs(stubs.coordinator.ListJobsRequest(), timeout=60)
        assert answer.value.code() == grpc.StatusCode.UNAUTHENTICATED
        wait_until("it is on record", lambda: "UNAUTHENTICATED" in audit.read_text())
        for path in (quotas, security.tokens, security.pki / "coordinator.crt"):
            path.write_text("nothing of the kind\n")
        refused = start("third", "--listen", "127.0.0.1:0", "--insecure")
        assert refused.wait() != 0 and "--quotas" in refused.text(), "one that starts says so, before it is needed"
        with grpc.insecure_channel(health) as channel:
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
            assert next(watch) == b"\x08\x01"
            assert first.stop() == 0, "a probe that goes on watching does not hold it"
        wait_until("the second leads", lambda: "leading generation" in second.text())
        with security.channel(f"127.0.0.1:{ports[1]}", token=security.token("vera")) as channel:
            api = stubs.coordinator_grpc.CoordinatorStub(channel)
            request = stubs.coordinator.WatchJobRequest(id="job-none")
            with pytest.raises(grpc.RpcError) as answer:
                list(api.WatchJob(request, timeout=60, wait_for_ready=True))
        assert answer.value.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT), answer.value
        assert second.stop() == 0
    finally:
        for each in started:
            if each.running():
                each.kill()
        etcd.stop()


def test_rotated_etcd_certificates_apply_at_next_connect(tmp_path):
    """Regression: they were read only at the start, so after a change of etcd's CA no coordinator led until a restart.
    """
    mark, address, used = uuid.uuid4().hex, "127.0.0.9", tmp_path / "used"
    for name in ("first", "second"):
        certificates(tmp_path / name, "coordinator", address, days=90 if name == "first" else 60)
        certificates(tmp_path / name, "node", "c1", days=90 if name == "first" else 60)

    def use(name):
        for source, target in (("ca.crt", "ca.crt"), ("nodes/c1.crt", "c1.crt"), ("nodes/c1.key", "c1.key")):
            half = used / "half"
            shutil.copy(tmp_path / name / source, half)
            half.rename(used / target)

    used.mkdir()
    use("first")
    etcd = Etcd(tmp_path, mark, 1, addresses=[address], pki=tmp_path / "first")
    coordinator = Daemon("coordinator", [
        program("coordinator/fsdpd-coordinator"), "--listen", f"127.0.0.1:{free_ports(1)[0]}", "--insecure",
        "--store", f"etcd://{address}:2379/fsdpd", "--etcd-ca", used / "ca.crt", "--etcd-cert", used / "c1.crt",
        "--etcd-key", used / "c1.key", "--leader-lease-seconds", "4", "--metrics-listen", "127.0.0.1:0",
        "--metrics-port-file", tmp_path / "metrics.port"], tmp_path / "coordinator.log", mark)

    def days_left(file):
        with urllib.request.urlopen(f"http://{(tmp_path / 'metrics.port').read_text().strip()}/metrics", timeout=60) as answer:
            found = re.search(rf'^fsdpd_coordinator_certificate_expiry_timestamp_seconds{{file="{file}"}} (\S+)$',
                              answer.read().decode(), re.MULTILINE)
        return (float(found[1]) - time.time()) / 86400

    try:
        wait_until("it leads", lambda: "leading generation" in coordinator.text())
        assert 89 < days_left("--etcd-cert") < 91 and days_left("--etcd-ca") > 91
        etcd.members[0].kill()
        etcd.pki = tmp_path / "second"
        etcd.start(0)
        wait_until("it has lost etcd", lambda: "lost leadership" in coordinator.text() or "standby leader" in coordinator.text())
        use("second")
        wait_until("it leads again", lambda: coordinator.text().count("leading generation") == 2)
        assert 59 < days_left("--etcd-cert") < 61
        assert coordinator.stop() == 0
    finally:
        if coordinator.running():
            coordinator.kill()
        etcd.stop()


def test_health_check_identifies_leader(coordinators):
    cluster = coordinators
    config = {"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": "fsdpd.v1.AgentLink"}}
    with grpc.insecure_channel(f"ipv4:{cluster.address}", [("grpc.service_config", json.dumps(config))]) as channel:
        api = stubs.coordinator_grpc.CoordinatorStub(channel)

        def submit(request_id):
            request = stubs.coordinator.SubmitJobRequest(spec=to_message(one_rank(name="asked")), request_id=request_id)
            try:
                return api.SubmitJob(request, timeout=20, wait_for_ready=True).job.id
            except grpc.RpcError as error:
                # The call that the leader died under; which may be repeated, as it has a request id.
                assert error.code() == grpc.StatusCode.UNAVAILABLE, error
                return None
        first = wait_until("a job is submitted", lambda: submit("one"))
        cluster.daemons[cluster.leader()].kill()
        assert wait_until("it is submitted again", lambda: submit("one")) == first
        cluster.wait_state(first, "SUCCEEDED")


def test_killed_etcd_member_loses_nothing(tmp_path):
    # Where the member that ends leads etcd, the two left take up to twice its --election-timeout (harness/etcd.py)
    # and more on a slow disk, in which no lease is renewed.
    with Coordinators(tmp_path, members=3, lease_s=20) as cluster:
        job_id = long_job(cluster)
        before = ranks(cluster)
        for index in range(3):
            cluster.etcd.members[index].kill()
            path = cluster.write_spec(one_rank(name=f"while-{index}-is-away", steps=1))
            cluster.ctl("submit", "-f", path).expect(0)
            cluster.etcd.start(index)
        assert cluster.job(job_id).attempt == 1 and ranks(cluster) >= before
        cluster.ctl("cancel", job_id).expect(0)
