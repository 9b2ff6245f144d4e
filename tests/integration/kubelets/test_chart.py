"""Tests of the Helm chart on kubelets with the commands of docs/deploy.md: installation, an upgrade during training,
and uninstallation without loss of data."""

import pytest

from harness.installation import Clock, Installation, block_of
from harness.manifests import NOT_OF_THE_CHART, chart_text, objects

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def fsdpd(kubelets, tmp_path_factory):
    with Installation(kubelets, tmp_path_factory.mktemp("chart")) as installed:
        yield installed


def test_documented_command_installs_chart(fsdpd):
    fsdpd.add_secrets()
    fsdpd.add_volumes()
    clock = Clock("chart")
    assert "port-forward" in fsdpd.typed(block_of("helm install"))
    fsdpd.wait_ready("coordinator")
    clock("the coordinator is ready")
    fsdpd.wait_ready("agent", 2)
    clock("both agents are ready")


def test_upgrade_changes_value_during_training(fsdpd):
    """Changes a value of the coordinator, which does not affect the job, and one of agents, which applies once their
    pods are deleted."""
    job_id = fsdpd.submit("changed", data={}, checkpoint=None)
    fsdpd.wait_trains(job_id)
    pod, agents = fsdpd.pods("coordinator")["fsdpd-coordinator-0"], set(fsdpd.pods("agent"))
    clock = Clock("chart's values changed")
    fsdpd.typed(block_of("helm upgrade"))
    fsdpd.typed("kubectl -n fsdpd rollout status statefulset/fsdpd-coordinator --timeout 5m")
    clock("the coordinator is ready")
    now = fsdpd.pods("coordinator")["fsdpd-coordinator-0"]
    assert now["metadata"]["uid"] != pod["metadata"]["uid"]
    assert now["spec"]["containers"][0]["resources"]["limits"]["memory"] == "4Gi"
    fsdpd.wait_next_step(job_id)
    clock("the job's next step is told")
    job = fsdpd.end(job_id)
    assert job["attempt"] == 1 and set(fsdpd.pods("agent")) == agents
    fsdpd.typed("kubectl -n fsdpd delete pod -l app.kubernetes.io/component=agent")
    fsdpd.wait_ready("agent", 2)
    fsdpd.wait_succeeded(fsdpd.submit("on-claims", 100))
    assert any((fsdpd.volumes["checkpoints"] / "on-claims").iterdir())


def test_uninstall_keeps_data(fsdpd):
    clock = Clock("chart uninstalled")
    fsdpd.typed(block_of("helm uninstall"))
    kinds = {each["kind"].lower() for each in objects(chart_text("cpu-test")) if each["kind"] not in NOT_OF_THE_CHART}
    fsdpd.typed("kubectl -n fsdpd wait pod --all --for=delete --timeout 5m")
    clock("no pod is left")
    # The others are Kubernetes' own, in every namespace.
    requested = f"kubectl -n fsdpd get {','.join(kinds)} -o name | grep -v -e /kube-root-ca.crt -e /default -e /system- || true"
    assert not fsdpd.typed(requested)
    claims = fsdpd.cluster.ask("GET", "/api/v1/namespaces/fsdpd/persistentvolumeclaims")["items"]
    assert [each["metadata"]["name"] for each in claims if "deletionTimestamp" not in each["metadata"]] == [
        "fsdpd-checkpoints", "fsdpd-data", "state-fsdpd-coordinator-0"]
    # A new installation has the data again.
    fsdpd.typed(block_of("helm install").strip() + " --set claims.enabled=true")
    fsdpd.wait_ready("coordinator")
    fsdpd.wait_ready("agent", 2)
    assert "on-claims" in fsdpd.ctl("get")
