"""Tests of authentication and authorization with real certificates, tokens and processes, as described in
docs/deploy.md."""

import collections
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from harness.cluster import Cluster, fsdpctl
from harness.programs import ROOT
from harness.security import Security, certificates, new_token
from harness.specs import ENDLESS, one_rank
from harness.stubs import agent as agent_pb, agent_grpc, coordinator as api, coordinator_grpc, job as job_pb
from harness.wait import tell, wait_until

SERVICE = api.DESCRIPTOR.services_by_name["Coordinator"]


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """One agent and the users of harness.security; tests do not change it."""
    directory = tmp_path_factory.mktemp("secure")
    with Cluster(directory, agents=1, security=Security(directory / "security")) as cluster:
        yield cluster


def info_of(error):
    raw = dict(error.trailing_metadata())["grpc-status-details-bin"]
    info = error_details_pb2.ErrorInfo()
    assert status_pb2.Status.FromString(raw).details[0].Unpack(info)
    return info


def refusal(call):
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return raised.value


def records(cluster):
    return [json.loads(line) for line in cluster.security.audit.read_text().splitlines()]


def recorded(cluster, **wanted):
    """Waits for records of the audit log with these values, which a separate thread writes."""
    def found():
        return [each for each in records(cluster) if wanted.items() <= each.items()]
    return wait_until(f"the audit log has {wanted}", found)


def submitted(cluster, person, steps=ENDLESS):
    path = cluster.write_spec(one_rank(steps=steps))
    return json.loads(cluster.ctl("submit", "-f", path, "-o", "json", person=person).expect(0).out)["id"]


# People --------------------------------------------------------------------------------------------------------------


def test_job_records_submitter(secure):
    job_id = submitted(secure, "sam", steps=3)
    assert secure.wait_state(job_id, "SUCCEEDED").submitter == "sam"
    assert "submitter: sam\n" in secure.ctl("describe", job_id, person="vera").expect(0).out
    record, = recorded(secure, method="SubmitJob", object=job_id)
    assert (record["who"], record["role"], record["outcome"]) == ("sam", "submitter", "OK")
    assert record["from"].startswith("ipv4:127.0.0.1:") and record["time"].endswith("Z")
    attached, = recorded(secure, method="Attach", object="node-0")
    assert (attached["who"], attached["role"], attached["outcome"]) == ("node-0", "node", "OK")


@pytest.mark.parametrize("token, reason", [(None, "MISSING_TOKEN"), ("fsdpd_" + "0" * 64, "UNKNOWN_TOKEN")])
@pytest.mark.parametrize("method", [method.name for method in SERVICE.methods])
def test_all_methods_require_token(secure, method, token, reason):
    with secure.security.channel(secure.address, token) as channel:
        call = channel.unary_stream(f"/{SERVICE.full_name}/{method}")
        error = refusal(lambda: list(call(b"", timeout=60)))
    assert error.code() == grpc.StatusCode.UNAUTHENTICATED, error
    assert info_of(error).reason == reason and info_of(error).domain == "fsdpd"
    assert not token or token not in error.details()


def test_node_certificate_is_not_a_token(secure):
    with secure.security.channel(secure.address, node="node-0") as channel:
        stub = coordinator_grpc.CoordinatorStub(channel)
        assert refusal(lambda: stub.ListJobs(api.ListJobsRequest(), timeout=60)).code() == \
            grpc.StatusCode.UNAUTHENTICATED


def test_methods_require_roles(secure):
    path = secure.write_spec(one_rank())
    refused = secure.ctl("submit", "-f", path, person="vera").expect(7)
    assert "SubmitJob requires a submitter (vera is a viewer) [ROLE_REQUIRED]" in refused.err, refused
    recorded(secure, method="SubmitJob", who="vera", outcome="PERMISSION_DENIED")
    job_id = submitted(secure, "sam")
    secure.ctl("get", job_id, person="vera").expect(0)
    refused = secure.ctl("cancel", job_id, person="sue").expect(7)
    assert "CancelJob on a job of another user requires an operator (sue is a submitter)" in refused.err
    assert secure.ctl("cancel", "nobody-000000", person="sue").expect(4), "what is not there is nobody's"
    secure.ctl("cancel", job_id, "--wait", person="sam").expect(0)
    job_id = submitted(secure, "sam")
    secure.ctl("cancel", job_id, "--wait", person="olga").expect(0)
    recorded(secure, method="CancelJob", object=job_id, who="olga", outcome="OK")


def test_permission_error_has_metadata(secure):
    with secure.security.channel(secure.address, secure.security.token("vera")) as channel:
        stub = coordinator_grpc.CoordinatorStub(channel)
        error = refusal(lambda: stub.CancelJob(api.CancelJobRequest(id="x"), timeout=60))
    assert error.code() == grpc.StatusCode.PERMISSION_DENIED
    assert dict(info_of(error).metadata) == {"needed": "operator", "role": "viewer"}


def test_viewer_has_own_limit_of_readers(secure):
    job_id = submitted(secure, "sam")
    secure.wait_state(job_id, "RUNNING")
    request = api.TailLogsRequest(id=job_id, rank=0, follow=True)
    with secure.security.channel(secure.address, secure.security.token("vera")) as of_vera, \
            secure.security.channel(secure.address, secure.security.token("sue")) as of_sue:
        vera, sue = coordinator_grpc.CoordinatorStub(of_vera), coordinator_grpc.CoordinatorStub(of_sue)
        readers = [vera.TailLogs(request, timeout=600) for _ in range(64)]
        for reader in readers:
            next(reader)
        error = refusal(lambda: next(vera.TailLogs(request, timeout=60)))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "(got 65, want at most 64); end some of them and retry" in error.details(), error
        next(vera.WatchJob(api.WatchJobRequest(id=job_id), timeout=60))
        next(sue.TailLogs(request, timeout=60))
        for reader in readers:
            reader.cancel()
    secure.ctl("cancel", job_id, "--wait", person="sam").expect(0)


def test_health_needs_no_token(secure):
    with secure.security.channel(secure.address) as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60) == b"\x08\x01"


def test_plaintext_health_port_serves_only_health(own, tmp_path):
    security = Security(tmp_path / "security")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "127.0.0.1:%d" % free.getsockname()[1]
    security.more_flags = ["--health-listen", address]
    with own(agents=0, security=security), grpc.insecure_channel(address) as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60) == b"\x08\x01"
        error = refusal(lambda: coordinator_grpc.CoordinatorStub(channel).ListJobs(api.ListJobsRequest(), timeout=60))
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED


def test_fsdpctl_names_missing_credentials(secure):
    ca, address = secure.security.pki / "ca.crt", secure.address
    result = fsdpctl("get", server=address).expect(5)
    assert "--coordinator-ca" in result.err and "[TLS_REQUIRED]" in result.err, result
    result = fsdpctl("get", "--coordinator-ca", ca, server=address).expect(7)
    assert "FSDPD_TOKEN" in result.err and "[MISSING_TOKEN]" in result.err, result
    fsdpctl("get", "--coordinator-ca", ca, server=address, env={"FSDPD_TOKEN": secure.security.token("vera")}).expect(0)
    fsdpctl("get", "--coordinator-ca", ca, "--token-file", secure.security.token_file("vera"), server=address).expect(0)


def test_fsdpctl_rejects_other_ca(secure, tmp_path):
    certificates(tmp_path / "other", "coordinator", "127.0.0.1")
    result = fsdpctl("get", "--coordinator-ca", tmp_path / "other/ca.crt", server=secure.address,
                     env={"FSDPD_TOKEN": secure.security.token("vera")}).expect(5)
    assert "the server's certificate is not signed by a CA in --coordinator-ca" in result.err, result
    assert len(result.err.splitlines()) == 1, result


def test_fsdpctl_rejects_invalid_credential_files(secure, tmp_path):
    ca = secure.security.pki / "ca.crt"
    assert "No such file" in fsdpctl("get", "--coordinator-ca", tmp_path / "none").expect(2).err
    (tmp_path / "token").write_text("x y\n")
    (tmp_path / "token").chmod(0o600)
    for name, output in [("none", "No such file"), ("token", "one line without spaces")]:
        assert output in fsdpctl("get", "--coordinator-ca", ca, "--token-file", tmp_path / name).expect(2).err
    (tmp_path / "token").chmod(0o644)
    assert "chmod 600" in fsdpctl("get", "--coordinator-ca", ca, "--token-file", tmp_path / "token").expect(2).err


def test_new_token_file_is_private(tmp_path):
    line, path = new_token(tmp_path, "alice", "admin")
    assert oct(path.stat().st_mode)[-3:] == "600"
    assert line.startswith("alice admin sha256:") and path.read_text().strip() not in line
    again = fsdpctl("token", "new", "alice", "--role", "admin", "--out", path).expect(2)
    assert "File exists" in again.err and not again.out
    assert "submitter" in fsdpctl("token", "new", "alice", "--role", "root", "--out", tmp_path / "x").expect(2).err


def test_token_rotation_under_load(own, tmp_path):
    security = Security(tmp_path / "security")
    with own(agents=0, security=security) as cluster:
        line, path = new_token(tmp_path, "rob", "viewer")
        fresh, rounds, faults, stop = path.read_text().strip(), 200, [], threading.Event()

        def ask():
            with security.channel(cluster.address, security.token("vera")) as channel:
                stub = coordinator_grpc.CoordinatorStub(channel)
                while not stop.is_set():
                    try:
                        stub.GetVersion(api.GetVersionRequest(), timeout=60)
                    except grpc.RpcError as error:
                        faults.append(error)

        askers = [threading.Thread(target=ask) for _ in range(3)]
        for each in askers:
            each.start()
        without = security.tokens.read_text()
        with security.channel(cluster.address, fresh) as channel:
            stub = coordinator_grpc.CoordinatorStub(channel)
            for number in range(rounds):
                half = tmp_path / "tokens.new"
                half.write_text(without + (line if number % 2 == 0 else ""))
                half.rename(security.tokens)
                if number % 2 == 0:
                    stub.GetVersion(api.GetVersionRequest(), timeout=60)
                else:
                    error = refusal(lambda: stub.GetVersion(api.GetVersionRequest(), timeout=60))
                    assert info_of(error).reason == "UNKNOWN_TOKEN", "one that was taken out counts no more at once"
        stop.set()
        for each in askers:
            each.join()
        assert not faults, faults[0]
        security.tokens.write_text(without + "rob viewer\n")
        cluster.ctl("get").expect(0)
        last = len(without.splitlines()) + 1
        assert cluster.coordinator.text().count(f"line {last}: invalid line (got 2 words") == 1, cluster.coordinator.text()
        assert 'fsdpd_coordinator_file_stale{file="--tokens"} 1' in cluster.scrape_coordinator()
        security.tokens.write_text(without)
        assert 'fsdpd_coordinator_file_stale{file="--tokens"} 0' in cluster.scrape_coordinator(), "without a call"


# Nodes ---------------------------------------------------------------------------------------------------------------


def attach(channel, node):
    """Returns how the coordinator ends the stream of a client that registers as `node`, or None if it accepts it."""
    message = agent_pb.AgentMessage()
    message.register.MergeFrom(agent_pb.Register(node=node, slots=1, instance="test", device=job_pb.DEVICE_CPU))
    done = threading.Event()

    def messages():
        yield message
        done.wait(60)

    stream = agent_grpc.AgentLinkStub(channel).Attach(messages(), timeout=60)
    try:
        assert next(iter(stream)).HasField("welcome")
        return None
    except grpc.RpcError as error:
        return error
    finally:
        done.set()
        stream.cancel()


def test_node_name_must_match_certificate(secure):
    long = ".".join(["n" * 60] * 4)
    certificates(secure.security.pki, "node", "other-node", long)
    with secure.security.channel(secure.address, node="other-node") as channel:
        error = attach(channel, "node-0")
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED and info_of(error).reason == "NODE_NAME_MISMATCH"
        assert "certificate is not for node 'node-0' (it is for other-node" in error.details()
        assert attach(channel, "other-node") is None
    with secure.security.channel(secure.address, node=long) as channel:
        assert attach(channel, long) is None
    with secure.security.channel(secure.address, secure.security.token("ada")) as channel:
        error = attach(channel, "node-0")
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED and info_of(error).reason == "MISSING_CERTIFICATE"
    recorded(secure, method="Attach", object="node-0", outcome="PERMISSION_DENIED", who="")
    assert [node.connected for node in secure.nodes() if node.name == "node-0"] == [True], "the real one is untouched"


def node_name(length):
    """A node name as of a cloud, with the dots that its length requires."""
    return ".".join(["n" * 63] * 3 + ["n" * (length - 3 * 64)])


@pytest.mark.parametrize("length", [251, 252, 253])
def test_longest_node_names_work(own, tmp_path, length):
    """Regression: the name of the certificate's file was too long."""
    name = node_name(length)
    with own(security=Security(tmp_path / "security"), agents=0) as cluster:
        cluster.start_agent(name, slots=1)
        job_id = submitted(cluster, "sam", steps=3)
        cluster.wait_state(job_id, "SUCCEEDED")
        assert name in cluster.ctl("describe", job_id).expect(0).out
        assert cluster.ctl("logs", job_id).expect(0).out
        cluster.ctl("cordon", name).expect(0)
        assert cluster.node(name).HasField("cordon")
        assert f'fsdpd_node="{name}"' in cluster.scrape(name)


@pytest.mark.parametrize("name", [node_name(254), "n" * 64, "a..b", ".a", "a-.b", "Node-0", ""])
def test_certificates_rejects_invalid_node_names(tmp_path, name):
    done = subprocess.run([ROOT / "deploy/certificates", tmp_path, "node", name], capture_output=True, text=True)
    assert done.returncode == 2 and f"'{name}' is not a node name" in done.stderr and not list(tmp_path.glob("nodes/*"))


@pytest.mark.parametrize("case", ["another authority", "expired", "the coordinator's own"])
def test_invalid_certificate_ends_connection(secure, tmp_path, case):
    pki = secure.security.pki
    if case == "another authority":
        certificates(tmp_path / "pki", "node", "node-7")
        own = tmp_path / "pki/nodes/node-7"
    elif case == "expired":
        certificates(pki, "node", "node-8", days=-1)
        own = pki / "nodes/node-8"
    else:  # It is only for servers, and not valid as a node's certificate.
        own = pki / "coordinator"
    credentials = grpc.ssl_channel_credentials((pki / "ca.crt").read_bytes(), own.with_suffix(".key").read_bytes(),
                                               own.with_suffix(".crt").read_bytes())
    with grpc.secure_channel(secure.address, credentials) as channel:
        error = attach(channel, own.name)
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error


def test_agent_exports_certificate_expiry(secure):
    for flag, file in [("--tls-cert", "nodes/node-0.crt"), ("--coordinator-ca", "ca.crt")]:
        value, = re.findall(rf'^fsdpd_agent_certificate_expiry_timestamp_seconds{{file="{flag}"}} (\S+)$',
                            secure.scrape("node-0"), re.MULTILINE)
        end = subprocess.run(["openssl", "x509", "-noout", "-enddate", "-in", secure.security.pki / file],
                             check=True, capture_output=True, text=True).stdout.strip().removeprefix("notAfter=")
        assert float(value) == ssl.cert_time_to_seconds(end)


def test_broken_certificate_file_keeps_last_expiry(secure):
    file = secure.security.pki / "nodes/node-0.crt"
    pem = file.read_text()

    def exported(metric, flag="--tls-cert"):
        return re.findall(rf'^{metric}{{file="{flag}"}} (\S+)$', secure.scrape("node-0"), re.MULTILINE)

    expiry = exported("fsdpd_agent_certificate_expiry_timestamp_seconds")
    assert exported("fsdpd_agent_file_stale") == ["0"] and len(expiry) == 1
    try:
        file.write_text("garbage\n")
        assert exported("fsdpd_agent_file_stale") == ["1"]
        assert exported("fsdpd_agent_file_stale", "--tls-key") == ["0"]
        assert exported("fsdpd_agent_certificate_expiry_timestamp_seconds") == expiry
        logged = secure.agents["node-0"].text().count("node-0.crt: contains no PEM certificate")
        assert logged == 1, "once, while it is connected"
    finally:
        file.write_text(pem)
    assert exported("fsdpd_agent_file_stale") == ["0"]


def test_an_expired_ca_file_is_stale_and_no_daemon_starts_with_it(own, tmp_path):
    security = Security(tmp_path / "security")
    certificates(security.pki, "node", "node-9")
    ca = security.pki / "ca.crt"
    valid = ca.read_text()
    old, key = tmp_path / "old.crt", tmp_path / "old.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-subj", "/CN=old authority", "-keyout", key, "-out", old], check=True, capture_output=True)
    expired = subprocess.run(["openssl", "x509", "-in", old, "-signkey", key, "-days", "-1"],
                             check=True, capture_output=True, text=True).stdout
    error = "ca.crt: the CA certificate has expired, on 20"
    with own(security=security, agents=1) as cluster:
        ca.write_text(expired)
        for _ in range(2):
            assert 'fsdpd_agent_file_stale{file="--coordinator-ca"} 1' in cluster.scrape("node-0")
            assert 'fsdpd_coordinator_file_stale{file="--tls-client-ca"} 1' in cluster.scrape_coordinator()
        assert cluster.agents["node-0"].text().count(error) == 1
        assert cluster.coordinator.text().count(error) == 1
        daemon = agent_of(cluster, tmp_path)
        assert daemon.wait() == 1 and error in daemon.text(), daemon.text()
        cluster.coordinator.kill()
        daemon = cluster.start_coordinator(listen=cluster.address, expect_serving=False)
        assert daemon.wait() == 1 and error in daemon.text(), daemon.text()
        ca.write_text(expired + valid)
        cluster.start_coordinator(listen=cluster.address)
        cluster.wait_nodes(1)
        cluster.scrape_coordinator()
        assert cluster.coordinator.text().count("ca.crt: 1 of 2 CA certificates expired, the first on 20") == 1


def agent_of(secure, directory, **flags):
    """An agent that is expected to exit by itself, or to be stopped; returns its daemon."""
    return secure.start_agent("node-9", expect_serving=False, work_dir=directory / "work", **flags)


def test_agent_with_wrong_certificate_exits(secure, tmp_path):
    pki = secure.security.pki
    certificates(pki, "node", "node-9", "node-x")
    other = {"tls_cert": pki / "nodes/node-x.crt", "tls_key": pki / "nodes/node-x.key"}
    mixed = {"tls_cert": pki / "nodes/node-9.crt", "tls_key": pki / "nodes/node-x.key"}
    for flags, output, code in [(other, "certificate is not for node 'node-9' (it is for node-x", 1),
                              (mixed, "node-x.key: is not the key of the certificate in", 1),
                              ({"tls_key": tmp_path / "none"}, f"--tls-key {tmp_path / 'none'}: No such file", 2)]:
        daemon = agent_of(secure, tmp_path, **flags)
        assert daemon.wait() == code and output in daemon.text(), daemon.text()
    certificates(pki, "node", "node-9", days=-1)
    daemon = agent_of(secure, tmp_path)
    assert daemon.wait() == 1 and "the certificate has expired, on 20" in daemon.text(), daemon.text()


def test_agent_rejects_other_ca(secure, tmp_path):
    certificates(tmp_path / "pki", "node", "node-9")
    certificates(secure.security.pki, "node", "node-9")
    daemon = agent_of(secure, tmp_path, coordinator_ca=tmp_path / "pki/ca.crt")
    wait_until("the agent says why", lambda: "the server's certificate is not signed by a CA in --coordinator-ca" in daemon.text())
    assert daemon.stop() == 0
    assert "node-9" not in {node.name for node in secure.nodes()}


def test_rejected_agent_is_logged_by_both(own, tmp_path):
    security = Security(tmp_path / "security")
    with own(security=security, agents=0) as cluster:
        certificates(tmp_path / "pki", "node", "node-9")
        daemon = agent_of(cluster, tmp_path, tls_cert=tmp_path / "pki/nodes/node-9.crt",
                          tls_key=tmp_path / "pki/nodes/node-9.key")
        why = "--tls-cert may have expired, or may not be signed by a CA in the server's --tls-client-ca"
        wait_until("the agent says why", lambda: why in daemon.text())
        assert "not connected to coordinator" not in daemon.text() and daemon.stop() == 0
        output = "client certificate is not signed by a CA in --tls-client-ca, or is not valid now"
        wait_until("the coordinator says so too", lambda: output in cluster.coordinator.text())
        assert cluster.coordinator.text().count(output) == 1, "however often the agent tries"
        fsdpctl("get", server=cluster.address).expect(5)
        assert cluster.coordinator.text().count("TLS handshake failed error=client does not use TLS") == 1


def test_reports_missing_certificate_name_and_timeout(own, tmp_path):
    with own(security=Security(tmp_path / "security"), agents=0) as cluster:
        trust = ["--coordinator-ca", cluster.security.pki / "ca.crt", "--token-file", cluster.security.token_file("vera")]
        certificates(cluster.security.pki, "coordinator", "localhost")
        result = fsdpctl("get", *trust, server=cluster.address).expect(5)
        assert "127.0.0.1 is not in peer certificate): connect to a name that it has" in result.err, result
        assert "is it running" not in result.err, "it is"
        by_name = cluster.address.replace("127.0.0.1", "localhost")
        fsdpctl("get", *trust, server=by_name).expect(0)
        os.kill(cluster.coordinator.pid, signal.SIGSTOP)
        result = fsdpctl("get", *trust, "--timeout", "3", server=by_name).expect(6)
        assert "did not answer in time" in result.err, result
        os.kill(cluster.coordinator.pid, signal.SIGCONT)


def served_certificate(address):
    host, port = address.rsplit(":", 1)
    return ssl.get_server_certificate((host, int(port)))


def move_in(source, target):
    """Replaces a file atomically, like an operator."""
    half = target.with_suffix(".half")
    half.write_bytes(source.read_bytes())
    half.chmod(source.stat().st_mode)
    half.rename(target)


class Load:
    """Clients that call continuously over a persistent connection, over new ones and with fsdpctl; and watches."""

    def __init__(self, cluster, job_id):
        self.cluster, self.job_id = cluster, job_id
        self.done, self.faults, self.stop = collections.Counter(), [], threading.Event()
        parts = {"kept": self.keeps, "new": self.connects, "fsdpctl": self.runs, "watch": self.watches}
        many = {"kept": 2, "new": 2, "fsdpctl": 1, "watch": 3}
        self.names = [(part, number) for part in parts for number in range(many[part])]
        self.threads = [threading.Thread(target=self.calls, args=(name, parts[name[0]])) for name in self.names]

    def calls(self, name, part):
        try:
            for _ in part():
                self.done[name] += 1
        except Exception as error:  # Whatever it is, it ends the load, and the test.
            self.faults.append((name, error))

    def open(self):
        return self.cluster.security.channel(self.cluster.address, self.cluster.security.token("vera"))

    def keeps(self):
        with self.open() as channel:
            while not self.stop.is_set():
                yield coordinator_grpc.CoordinatorStub(channel).GetJob(api.GetJobRequest(id=self.job_id), timeout=60)

    def connects(self):
        while not self.stop.is_set():
            with self.open() as channel:
                yield coordinator_grpc.CoordinatorStub(channel).GetJob(api.GetJobRequest(id=self.job_id), timeout=60)

    def runs(self):
        while not self.stop.is_set():
            yield self.cluster.ctl("get", self.job_id, person="vera").expect(0)

    def watches(self):
        with self.open() as channel:
            stream = coordinator_grpc.CoordinatorStub(channel).WatchJob(api.WatchJobRequest(id=self.job_id))
            for update in stream:
                yield update
                if self.stop.is_set():
                    return
            raise AssertionError("the stream was closed")

    def go_on(self):
        """Waits until each client has made two more calls or received two more steps, of which one started after this
        call."""
        before = {name: self.done[name] for name in self.names}
        wait_until("all go on", lambda: self.faults or all(self.done[name] >= before[name] + 2 for name in self.names))
        assert not self.faults, self.faults

    def __enter__(self):
        for each in self.threads:
            each.start()
        return self

    def __exit__(self, kind, error, trace):
        self.stop.set()
        for each in self.threads:
            each.join()


def replace_all(cluster, load, other):
    """Replaces the CA and all certificates in the order of docs/deploy.md, under load at each moment."""
    pki, before = cluster.security.pki, served_certificate(cluster.address)
    certificates(other, "coordinator", "localhost", "127.0.0.1")
    certificates(other, "node", *cluster.agents)
    # A key without its certificate: the pair before it serves on.
    move_in(other / "coordinator.key", pki / "coordinator.key")
    load.go_on()
    assert served_certificate(cluster.address) == before
    # Both authorities are trusted until everybody has the new pair.
    both = other / "both.crt"
    both.write_bytes((pki / "ca.crt").read_bytes() + (other / "ca.crt").read_bytes())
    move_in(both, pki / "ca.crt")
    load.go_on()
    move_in(other / "coordinator.crt", pki / "coordinator.crt")
    load.go_on()
    for node in cluster.agents:
        for kind in ("key", "crt"):
            move_in(other / f"nodes/{node}.{kind}", pki / f"nodes/{node}.{kind}")
    load.go_on()
    assert served_certificate(cluster.address) == (other / "coordinator.crt").read_text() != before
    # New connections need only the new CA.
    move_in(other / "ca.crt", pki / "ca.crt")
    load.go_on()


def attached(cluster):
    return [agent.text().count("attached coordinator=") for agent in cluster.agents.values()]


def test_certificate_rotation_under_load(own, tmp_path):
    rounds = 3
    with own(agents=2, security=Security(tmp_path / "security")) as cluster:
        job_id = submitted(cluster, "sam")
        cluster.wait_step(job_id, 2)
        with Load(cluster, job_id) as load:
            load.go_on()
            for number in range(rounds):
                replace_all(cluster, load, tmp_path / f"other-{number}")
        tell("calls and updates in three rotations", sum(load.done.values()))
        assert not load.faults and attached(cluster) == [1, 1], "no stream was dropped, of the agents neither"
        output = cluster.coordinator.text().count("is not the key of the certificate")
        assert output == rounds, "once for each key that was there before its certificate"
        cluster.coordinator.kill()
        cluster.start_coordinator(listen=cluster.address)
        cluster.wait_nodes(2)
        # The coordinator knows it before the agent's log does.
        wait_until("they are attached again", lambda: attached(cluster) == [2, 2])
        assert cluster.job(job_id).attempt == 1 and cluster.job(job_id).submitter == "sam"
        assert cluster.cancel(job_id).state == api.JOB_STATE_CANCELLED


# Secrets and records -------------------------------------------------------------------------------------------------


def test_no_secret_in_logs_listings_or_audit_log(secure):
    security = secure.security
    secure.ctl("get", "-o", "json", person="ada").expect(0)
    wrong = "fsdpd_" + "1" * 64
    with security.channel(secure.address, wrong) as channel:
        refusal(lambda: coordinator_grpc.CoordinatorStub(channel).ListJobs(api.ListJobsRequest(), timeout=60))
    recorded(secure, method="ListJobs", outcome="UNAUTHENTICATED")
    secrets = [security.token(name) for name in security.PEOPLE] + [wrong]
    secrets += [path.read_text().splitlines()[1] for path in security.pki.rglob("*.key")]
    kept = {security.token_file(name) for name in security.PEOPLE} | set(security.pki.rglob("*.key"))
    for path in secure.directory.rglob("*"):
        if path.is_file() and path not in kept:
            data = path.read_bytes()
            assert not [secret for secret in secrets if secret.encode() in data], path
    for daemon in [secure.coordinator, *secure.agents.values()]:
        with open(f"/proc/{daemon.pid}/cmdline", "rb") as line:
            assert not [secret for secret in secrets if secret.encode() in line.read()]


def test_unwritable_audit_log_blocks_no_call(own, tmp_path):
    security = Security(tmp_path / "security")
    security.audit = "/dev/full"
    with own(agents=0, security=security) as cluster:
        job_id = submitted(cluster, "sam")
        cluster.ctl("cancel", job_id, person="sam").expect(0)
        wait_until("the log says it", lambda: "audit log lost lines error=/dev/full" in cluster.coordinator.text())
        assert cluster.coordinator.text().count("audit log lost lines") == 1


def test_new_certificate_reports_dropped_names(tmp_path):
    def made(*names):
        done = subprocess.run([ROOT / "deploy/certificates", tmp_path, "coordinator", *names], capture_output=True, text=True)
        assert done.returncode == 0, done
        return re.findall(r"lacks (\S+), which", done.stderr)

    assert made("a", "::1", "*.c.example", "10.0.0.1") == []
    assert made("a", "0:0::1", "10.0.0.1") == ["*.c.example"]
    (tmp_path / "coordinator.crt").write_text("half of it")
    assert made("b") == []
    assert made("a") == ["b"]


@pytest.mark.parametrize("name", ["*", "*.fsdpd-coordinator-peers", "*.example.", "*a.c.example"])
def test_certificates_rejects_unusable_wildcards(tmp_path, name):
    done = subprocess.run([ROOT / "deploy/certificates", tmp_path, "coordinator", "localhost", name], capture_output=True, text=True)
    assert done.returncode == 2 and f"'{name}' is not a valid wildcard" in done.stderr
    assert not (tmp_path / "coordinator.crt").exists()


def test_insecure_coordinator_writes_audit_log(tmp_path, own):
    with own(agents=0) as cluster:
        assert "--insecure" in cluster.coordinator.text()
        job_id = cluster.submit(one_rank())
        assert cluster.job(job_id).submitter == ""
        assert "submitter" not in cluster.ctl("describe", job_id).expect(0).out
        result = fsdpctl("get", server=cluster.address, env={"FSDPD_TOKEN": "fsdpd_x", "FSDPD_TOKEN_FILE": "/none"})
        result.expect(0)  # These files are only for TLS, which is off here.
        certificates(tmp_path / "pki", "coordinator", "127.0.0.1")
        result = fsdpctl("get", "--coordinator-ca", tmp_path / "pki/ca.crt", server=cluster.address).expect(5)
        assert "the server does not use TLS" in result.err, result
