"""Tests of three coordinators with their state in etcd (components/ha-etcd): one leads, and another takes over when it
fails, while training continues."""

import shutil
import urllib.request

import pytest

from harness.apiserver import image_of, is_ready
from harness.etcd import Etcd
from harness.installation import NEXT_RELEASE, RELEASE, Clock, Installation, block_of
from harness.security import certificates
from harness.wait import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]
MEMBERS = COORDINATORS = 3
SERVERS = ",".join(f"fsdpd-coordinator-{each}.fsdpd-coordinator-peers:7777" for each in range(COORDINATORS))


@pytest.fixture(scope="module")
def etcd_pki(kubelets, tmp_path_factory):
    """Certificates of an etcd outside the cluster, whose members have the names in the overlay."""
    directory = tmp_path_factory.mktemp("etcd")
    certificates(directory / "pki", "coordinator", "*.etcd.etcd.svc")
    certificates(directory / "pki", "node", "fsdpd")
    addresses = [kubelets.add_address(number) for number in range(200, 200 + MEMBERS)]
    etcd = Etcd(directory, kubelets.mark, MEMBERS, addresses, directory / "pki")
    try:
        for each in named(addresses):
            kubelets.apply(each)
        yield directory / "pki"
    finally:
        etcd.stop()


def named(addresses):
    """Objects that resolve the names etcd-0.etcd.etcd.svc and so on."""
    port = {"name": "client", "port": 2379}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "etcd"}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "etcd", "namespace": "etcd"},
         "spec": {"clusterIP": "None", "ports": [port]}},
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": [port],
         "metadata": {"name": "etcd", "namespace": "etcd", "labels": {"kubernetes.io/service-name": "etcd"}},
         "endpoints": [{"addresses": [each], "hostname": f"etcd-{index}"} for index, each in enumerate(addresses)]}]


@pytest.fixture(scope="module")
def fsdpd(kubelets, etcd_pki, tmp_path_factory):
    with Installation(kubelets, tmp_path_factory.mktemp("several"), SERVERS) as installed:
        for theirs, ours in {"ca.crt": "etcd-ca.crt", "nodes/fsdpd.crt": "c.crt", "nodes/fsdpd.key": "c.key"}.items():
            shutil.copy(etcd_pki / theirs, installed.directory / ours)
        yield installed


def led_by(fsdpd):
    """The pod of the leader, or None."""
    def leads(pod):
        try:
            with urllib.request.urlopen(f"http://{pod['status']['podIP']}:7780/metrics", timeout=10) as page:
                return "\nfsdpd_coordinator_leader 1\n" in page.read().decode()
        except OSError:
            return False
    leaders = [each for each in fsdpd.pods("coordinator").values() if is_ready(each) and leads(each)]
    return leaders[0] if len(leaders) == 1 else None


def address_of(pod):
    """Address of the leader, for state that only it has; standbys serve state from etcd."""
    return f"{pod['metadata']['name']}.fsdpd-coordinator-peers:7777"


def ranks(fsdpd):
    return {each.pid for node in fsdpd.cluster.nodes.values() for each in node.processes("fsdpd-rank")}


def test_installs_three_coordinators_with_one_leader(fsdpd):
    fsdpd.add_secrets()
    fsdpd.typed(block_of("create secret generic fsdpd-etcd-tls"))
    fsdpd.add_volumes(COORDINATORS)
    clock = Clock("three coordinators")
    fsdpd.apply(RELEASE, "ha-etcd")
    fsdpd.wait_ready("coordinator", COORDINATORS)
    clock("they are ready")
    fsdpd.wait_ready("agent", 2)
    clock("both agents are ready")
    wait_until("one leads", lambda: led_by(fsdpd))
    clock("one leads")
    assert {each["spec"]["nodeName"] for each in fsdpd.pods("coordinator").values()} == set(fsdpd.cluster.nodes)


def test_training_continues_over_leader_change(fsdpd):
    job_id = fsdpd.submit("leader-killed")
    fsdpd.wait_trains(job_id)
    training, led = ranks(fsdpd), led_by(fsdpd)["metadata"]["name"]

    def process():
        return fsdpd.process_of(fsdpd.pods("coordinator")[led], "fsdpd-coordinator")
    killed = process()
    fsdpd.kill(fsdpd.pods("coordinator")[led], "fsdpd-coordinator")
    clock = Clock("leader killed")
    wait_until("it is started again", lambda: process() not in (None, killed))
    # Which might lead again. After a second end the kubelet waits for longer than the lease.
    fsdpd.kill(fsdpd.pods("coordinator")[led], "fsdpd-coordinator")
    wait_until("another leads", lambda: (now := led_by(fsdpd)) and now["metadata"]["name"] != led)
    clock("another one leads")
    fsdpd.server = address_of(led_by(fsdpd))
    fsdpd.wait_next_step(job_id)
    clock("the job's next step is told")
    fsdpd.server = SERVERS
    fsdpd.wait_ready("coordinator", COORDINATORS)
    clock("all three are ready")
    assert len(training) == 2 and ranks(fsdpd) == training
    job = fsdpd.end(job_id)
    assert job["attempt"] == 1 and not job["failed_attempts"], fsdpd.ctl("describe", job_id)


def test_rolling_upgrade_loses_no_step(fsdpd):
    fsdpd.tag(NEXT_RELEASE)
    job_id = fsdpd.submit("rolled")
    fsdpd.wait_trains(job_id)
    training = ranks(fsdpd)
    clock = Clock("three coordinators upgraded")
    fsdpd.apply(NEXT_RELEASE, "ha-etcd")
    fsdpd.typed("kubectl -n fsdpd rollout status statefulset/fsdpd-coordinator --timeout 5m")
    clock("all are ready")
    assert {image_of(each) for each in fsdpd.pods("coordinator").values()} == {f"fsdpd-coordinator:{NEXT_RELEASE}"}
    fsdpd.server = address_of(wait_until("one leads", lambda: led_by(fsdpd)))
    clock("one leads")
    fsdpd.wait_next_step(job_id)
    clock("the job's next step is told")
    assert len(training) == 2 and ranks(fsdpd) == training
    job = fsdpd.end(job_id)
    assert job["attempt"] == 1 and not job["failed_attempts"], fsdpd.ctl("describe", job_id)
