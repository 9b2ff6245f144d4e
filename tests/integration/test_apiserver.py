"""Tests of the Kubernetes files against a real control plane: etcd, API server, controller manager and scheduler, in
the version of tests/kubernetes/build, on this machine. They run no containers; tests in kubelets/ do."""

import contextlib
import copy
import subprocess

import pytest
import yaml

from harness.apiserver import BUILD, ApiServer, Refused, image_of, is_ready, path_of, programs
from harness.manifests import (CHART, DEPLOY, NOT_OF_THE_CHART, OVERLAYS, chart_text, named, objects, of_overlay, pod_specs, tool,
                               values_of)
from harness.processes import marked
from harness.programs import ROOT
from harness.wait import wait_until

NODES = 3
REPLICAS = 3
CLAIMS = "/api/v1/namespaces/fsdpd/persistentvolumeclaims"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if not programs():
        pytest.skip(f"Kubernetes is not built: {BUILD.relative_to(ROOT)}, once, some 6 minutes")
    directory = tmp_path_factory.mktemp("apiserver")
    mark = f"apiserver-{directory}"
    started = ApiServer(directory, mark)
    try:
        for schema in sorted((programs() / "crds").glob("*.yaml")):
            definition = yaml.safe_load(schema.read_text())
            started.apply(definition)
            path = f"{path_of(definition)}/{definition['metadata']['name']}"
            wait_until(f"{path} is established", lambda: any(
                each["type"] == "Established" and each["status"] == "True"
                for each in started.ask("GET", path).get("status", {}).get("conditions") or []))
        started.apply(named(of_overlay("gpu"), "Namespace", "fsdpd"))
        yield started
    finally:
        started.stop()
        assert not marked(mark)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlays_and_chart_apply_without_warning(server, overlay):
    """The API server warns about objects whose pods Pod Security "restricted" would reject."""
    for among in (of_overlay(overlay), objects(chart_text(overlay))):
        assert not [warning for each in among for warning in server.apply(each, dry=True)]


def test_rejects_invalid_objects(server):
    """Proves that acceptance by this API server is meaningful."""
    agent = named(of_overlay("gpu"), "DaemonSet", "fsdpd-agent")
    typo = copy.deepcopy(agent)
    typo["spec"]["template"]["spec"]["terminationGracePeriod"] = 30
    with pytest.raises(Refused, match="terminationGracePeriod"):
        server.apply(typo, dry=True)
    monitor = copy.deepcopy(named(of_overlay("monitoring"), "PodMonitor", "fsdpd-agent"))
    monitor["spec"]["podMetricsEndpoints"][0]["prot"] = "metrics"
    with pytest.raises(Refused, match="prot"):
        server.apply(monitor, dry=True)
    hosts = copy.deepcopy(agent)
    hosts["spec"]["template"]["spec"]["volumes"].append({"name": "data", "hostPath": {"path": "/data"}})
    assert any("hostPath" in warning for warning in server.apply(hosts, dry=True))


def test_roles_allow_only_port_forward(server):
    for each in of_overlay("gpu"):
        if each["kind"] in ("ServiceAccount", "Role"):
            server.apply(each)
    for name in ("fsdpd-coordinator", "fsdpd-agent"):
        user, groups = f"system:serviceaccount:fsdpd:{name}", ["system:serviceaccounts", "system:serviceaccounts:fsdpd"]
        assert not [(verb, resource) for verb in ("get", "list", "create", "delete") for resource in
                    ("pods", "secrets", "configmaps", "apps/daemonsets") if server.may(user, verb, resource, groups=groups)]
    server.apply({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                  "metadata": {"name": "clients", "namespace": "fsdpd"},
                  "subjects": [{"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}],
                  "roleRef": {"kind": "Role", "name": "fsdpd-client", "apiGroup": "rbac.authorization.k8s.io"}})
    # What `kubectl port-forward svc/fsdpd-coordinator` asks for.
    wait_until("alice may", lambda: server.may("alice", "get", "services", "fsdpd-coordinator"))
    assert server.may("alice", "list", "pods") and server.may("alice", "get", "pods", "fsdpd-coordinator-0")
    assert server.may("alice", "create", "pods", "fsdpd-coordinator-0", "portforward")
    assert not server.may("alice", "create", "pods", "fsdpd-agent-x7k2p", "portforward")
    assert not server.may("alice", "create", "pods", "fsdpd-coordinator-0", "exec")
    assert not server.may("alice", "get", "secrets", "fsdpd-nodes-tls")
    assert not server.may("alice", "list", "pods", namespace="default")


@pytest.fixture(scope="module")
def machines(server):
    """Three nodes with eight GPUs each."""
    for index in range(NODES):
        server.add_node(f"ip-10-0-0-{index}.eu.compute.internal", {"nvidia.com/gpu.present": "true",
                                                                     "kubernetes.io/os": "linux"},
                        {"cpu": "64", "memory": "1Ti", "pods": "110", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "8"})
    # Until then only agents are placed there.
    wait_until("nodes are taken for ready", lambda: not any(
        each["spec"].get("taints") for each in server.ask("GET", "/api/v1/nodes")["items"]))
    return server


def volumes():
    """Creates volumes for all claims."""
    return [{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"volume-{index}"},
             "spec": {"capacity": {"storage": "1Ti"}, "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                      "hostPath": {"path": f"/volumes/{index}"}}} for index in range(REPLICAS)]


def wait_pods(server, coordinators, agents=NODES):
    def running():
        server.run_pods()
        found = [*server.pods("coordinator").values(), *server.pods("agent").values()]
        assert sum(map(is_ready, found)) == len(found) == coordinators + agents, [
            (each["metadata"]["name"], each["status"]) for each in found]
        return True
    wait_until("coordinators and agents run", running)


def remove(server, among):
    """Removes an object with its claims."""
    claims = server.ask("GET", CLAIMS)["items"]
    for each in among:
        with contextlib.suppress(Refused):  # It is gone.
            server.ask("DELETE", f"{path_of(each)}/{each['metadata']['name']}")
    for each in claims:
        with contextlib.suppress(Refused):
            server.ask("DELETE", f"{CLAIMS}/{each['metadata']['name']}")

    def gone():
        server.run_pods()
        return not server.pods("coordinator") and not server.pods("agent") and not server.ask("GET", CLAIMS)["items"] and not (
            server.ask("GET", "/api/v1/persistentvolumes")["items"])
    wait_until("all of it is gone", gone)


@pytest.mark.parametrize("overlay", ["cpu-test", "gpu", "monitoring"])
def test_overlay_pods_pass_restricted(machines, overlay):
    among = [*volumes(), *(each for each in of_overlay(overlay) if each["kind"] not in NOT_OF_THE_CHART)]
    try:
        for each in among:
            machines.apply(each)
        wait_pods(machines, coordinators=1)
    finally:
        remove(machines, among)


@pytest.mark.parametrize("overlay", ["cpu-test", "gpu", "monitoring"])
def test_helm_installs_upgrades_and_uninstalls_except_claims(machines, overlay):
    def said_to_helm(*arguments):
        done = subprocess.run(list(map(str, [tool("helm"), *arguments, "--namespace", "fsdpd", "--kubeconfig", machines.kubeconfig])),
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    among = [*volumes(), *objects(chart_text(overlay))]
    try:
        for each in volumes():
            machines.apply(each)
        said_to_helm("install", "fsdpd", CHART, *values_of(overlay))
        wait_pods(machines, coordinators=1)
        agents, before = set(machines.pods("agent")), machines.pods("coordinator")
        said_to_helm("upgrade", "fsdpd", CHART, "--reuse-values",
                     "--set", "claims.enabled=true,coordinator.resources.limits.memory=4Gi")
        wait_until("the coordinator is another", lambda: machines.run_pods() or {
            each["metadata"]["uid"] for each in machines.pods("coordinator").values()}.isdisjoint(
                each["metadata"]["uid"] for each in before.values()))
        wait_pods(machines, coordinators=1)
        assert set(machines.pods("agent")) == agents
        said_to_helm("uninstall", "fsdpd")
        left = {each["metadata"]["name"] for each in machines.ask("GET", CLAIMS)["items"]
                if "deletionTimestamp" not in each["metadata"]}
        assert left == {"state-fsdpd-coordinator-0", "fsdpd-data", "fsdpd-checkpoints"}
    finally:
        remove(machines, among)


@pytest.fixture(scope="module")
def installed(machines):
    """overlays/ha-etcd on three nodes with eight GPUs each, with all pods running."""
    for each in [*volumes(), *of_overlay("ha-etcd")]:
        machines.apply(each)
    wait_pods(machines, REPLICAS)
    return machines


def test_restricted_pods_with_agent_on_each_node(installed):
    agents, coordinators = installed.pods("agent"), installed.pods("coordinator")
    assert set(coordinators) == {f"fsdpd-coordinator-{index}" for index in range(REPLICAS)}
    assert len({each["spec"]["nodeName"] for each in agents.values()}) == NODES
    assert {each["spec"]["priority"] for each in agents.values()} == {90000}
    namespace = installed.ask("GET", "/api/v1/namespaces/fsdpd")["metadata"]["labels"]
    assert namespace["pod-security.kubernetes.io/enforce"] == "restricted"
    # As a patch by hand would have it.
    on_host = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "on-host", "namespace": "fsdpd"},
               "spec": copy.deepcopy(pod_specs(of_overlay("gpu"))["fsdpd-agent"])}
    on_host["spec"]["volumes"].append({"name": "data", "hostPath": {"path": "/data"}})
    with pytest.raises(Refused, match="restricted.*hostPath"):
        installed.ask("POST", "/api/v1/namespaces/fsdpd/pods?dryRun=All", on_host)


def evict(server, name):
    server.ask("POST", f"/api/v1/namespaces/fsdpd/pods/{name}/eviction", {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "fsdpd"}})


def test_drain_evicts_one_coordinator_at_a_time(installed):
    budget = "/apis/policy/v1/namespaces/fsdpd/poddisruptionbudgets/fsdpd-coordinator"
    wait_until("the budget allows one", lambda: installed.ask("GET", budget)["status"]["disruptionsAllowed"] == 1)
    evict(installed, "fsdpd-coordinator-0")
    with pytest.raises(Refused) as refused:
        evict(installed, "fsdpd-coordinator-1")
    assert refused.value.code == 429, refused.value

    def back():
        installed.run_pods()
        return sum(map(is_ready, installed.pods("coordinator").values())) == REPLICAS
    wait_until("the coordinator is back", back)
    wait_until("the budget allows one", lambda: installed.ask("GET", budget)["status"]["disruptionsAllowed"] == 1)


def test_upgrade_restarts_coordinators_one_by_one_and_no_agent(installed):
    agents = {name: each["metadata"]["uid"] for name, each in installed.pods("agent").items()}
    release = [each for each in of_overlay("ha-etcd") if each["kind"] not in NOT_OF_THE_CHART]
    for each in copy.deepcopy(release):
        if each["kind"] in ("StatefulSet", "DaemonSet"):
            container = each["spec"]["template"]["spec"]["containers"][0]
            container["image"] = container["image"].split(":")[0] + ":99.0.0"
        installed.apply(each)
    fewest = REPLICAS

    def upgraded():
        nonlocal fewest
        coordinators = installed.pods("coordinator").values()
        fewest = min(fewest, sum(map(is_ready, coordinators)))
        installed.run_pods()
        return [image_of(each) for each in coordinators if is_ready(each)] == ["fsdpd-coordinator:99.0.0"] * REPLICAS
    wait_until("all coordinators are of the next release", upgraded)
    assert fewest == REPLICAS - 1
    assert {name: each["metadata"]["uid"] for name, each in installed.pods("agent").items()} == agents
    # When its node is free: the pod gets the next release when it is deleted.
    name = sorted(agents)[0]
    installed.ask("DELETE", f"/api/v1/namespaces/fsdpd/pods/{name}")

    def replaced():
        installed.run_pods()
        images = [image_of(each) for each in installed.pods("agent").values() if is_ready(each)]
        return sorted(images) == ["fsdpd-agent:0.1.0"] * (NODES - 1) + ["fsdpd-agent:99.0.0"]
    wait_until("the agent is of the next release", replaced)


QUEUED = "/apis/batch/v1/namespaces/fsdpd/jobs/fsdpd-agent"


def test_evicted_agents_are_recreated_while_job_is_admitted(installed):
    """A Job counts a pod that exits with 0 as completed, and would not recreate it."""
    installed.ask("DELETE", "/apis/apps/v1/namespaces/fsdpd/daemonsets/fsdpd-agent")

    def gone():
        installed.run_pods()
        return not installed.pods("agent")
    wait_until("the agents of every node are gone", gone)
    queued = of_overlay("kueue")
    job = named(queued, "Job", "fsdpd-agent")
    # As Kueue's webhook has it.
    installed.ask("POST", QUEUED.rpartition("/")[0], {**job, "spec": {**job["spec"], "suspend": True}})

    def suspend(yes):  # As Kueue does.
        installed.ask("PATCH", QUEUED, {"spec": {"suspend": yes}}, "application/merge-patch+json")

    def agents():
        installed.run_pods()
        ready = {name: each for name, each in installed.pods("agent").items() if is_ready(each)}
        return ready if len(ready) == 2 else None
    wait_until("the Job waits", lambda: any(each["type"] == "Suspended" and each["status"] == "True" for each in
                                            installed.ask("GET", QUEUED)["status"].get("conditions") or []))
    assert not installed.pods("agent")
    suspend(False)
    first = wait_until("agents run", agents)
    assert len({each["spec"]["nodeName"] for each in first.values()}) == 2
    assert {each["spec"]["priority"] for each in first.values()} == {90000}
    evicted = sorted(first)[0]
    evict(installed, evicted)
    # The status that a kubelet reports for an agent that exits immediately.
    reported, = (arg for arg in pod_specs(queued)["fsdpd-agent"]["containers"][0]["args"] if "--stopped-exit-code=" in arg)
    installed.end_pod(evicted, exit_code=int(reported.split("=")[1]))
    second = wait_until("another agent runs in its place", lambda: (found := agents()) and evicted not in found and found)
    assert len(set(first) & set(second)) == 1
    suspend(True)
    wait_until("what was taken back is gone", gone)
    assert not installed.ask("GET", QUEUED)["status"].get("completedIndexes")
    suspend(False)
    wait_until("agents run again", agents)
    before = set(agents())
    installed.apply(job)
    assert installed.ask("GET", QUEUED)["spec"]["suspend"] is False and set(agents()) == before


def test_rdma_applies_in_restricted_namespace(installed):
    patch = yaml.safe_load((DEPLOY / "kubernetes/components/rdma/agent.yaml").read_text())
    container = patch["spec"]["template"]["spec"]["containers"][0]
    agent = copy.deepcopy(named(of_overlay("gpu"), "DaemonSet", "fsdpd-agent"))
    whole = agent["spec"]["template"]["spec"]["containers"][0]
    whole["env"] = [each for each in whole["env"] if each["name"] != container["env"][0]["name"]] + container["env"]
    for kind, resources in container["resources"].items():
        whole["resources"].setdefault(kind, {}).update(resources)
    assert set(container) == {"name", "env", "resources"} and not installed.apply(agent, dry=True)
