"""Tests that the Kubernetes files of deploy/ are valid and that the Helm chart generates the objects of the overlays.

The schemas are Kubernetes' own and strict: an unknown field is an error, as in an API server.
"""

import copy
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from harness import pages
from harness.manifests import (CHART, DEPLOY, NOT_OF_THE_CHART, OVERLAYS, chart_text, helm, named, objects, of_overlay,
                               overlay_text, pod_specs, pod_templates, rendered, validator, values_of)
from harness.programs import ROOT, program

KUBERNETES_VERSION = "1.32"
# Of the Prometheus Operator: their schemas are no part of Kubernetes'.
OPERATOR = {"PodMonitor", "PrometheusRule"}
# What the agent adds to the grace of its ranks: 30 s in which it ends them, and some to come and go.
LEAVE_SECONDS = 40

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def faults(among, tmp_path):
    """Returns violations of the schemas by the objects; empty if valid. An unknown kind is a violation."""
    stream = tmp_path / "objects.yaml"
    stream.write_text(yaml.safe_dump_all(among))
    done = subprocess.run([sys.executable, "-m", "kubernetes_validate", "--strict", "-k", KUBERNETES_VERSION, stream],
                          env={**os.environ, "PYTHONPATH": str(validator())}, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).splitlines()
    assert len(lines) >= len(among), f"the validator judged {len(lines)} of {len(among)} objects"
    return [line for line in lines if not line.startswith("INFO")]


def test_overlays_match_schemas(tmp_path):
    made = [each for overlay in OVERLAYS for each in of_overlay(overlay) if each["kind"] not in OPERATOR]
    made += [each for example in (DEPLOY / "kubernetes/examples").glob("*.yaml") for each in objects(example.read_text())]
    assert not faults(made, tmp_path)


def test_detects_typos(tmp_path):
    coordinator = named(of_overlay("cpu-test"), "StatefulSet", "fsdpd-coordinator")
    typos = [
        (("spec", "replica"), 2, "replica"),
        (("spec", "template", "spec", "terminationGracePeriod"), 30, "terminationGracePeriod"),
        (("spec", "template", "spec", "containers", 0, "readinesProbe"), {}, "readinesProbe"),
        (("spec", "replicas"), "one", "one"),
        (("apiVersion",), "apps/v2", "apps/v2"),
    ]
    for path, value, output in typos:
        wrong = copy.deepcopy(coordinator)
        place = wrong
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        assert output in "\n".join(faults([wrong], tmp_path)), path


# The chart -----------------------------------------------------------------------------------------------------------


def in_one_order(value):
    """Sorts lists whose order has no meaning: named objects and flags."""
    if isinstance(value, dict):
        return {key: sorted(each) if key == "args" else in_one_order(each) for key, each in value.items()}
    if isinstance(value, list):
        return sorted(map(in_one_order, value), key=lambda each: (
            each.get("name", "") if isinstance(each, dict) else "", json.dumps(each, sort_keys=True)))
    return value


def by_name(among):
    return {(each["kind"], each["metadata"]["name"]): in_one_order(each) for each in among
            if each["kind"] not in NOT_OF_THE_CHART}


@each_overlay
def test_chart_matches_overlay(overlay):
    chart, kustomized = by_name(objects(chart_text(overlay))), by_name(of_overlay(overlay))
    assert set(chart) == set(kustomized)
    for key, made in chart.items():
        assert made == kustomized[key], key


def test_chart_has_release_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    tags = {image["newTag"] for image in
            yaml.safe_load((DEPLOY / "kubernetes/base/kustomization.yaml").read_text())["images"]}
    version = re.search(r'kVersion\[?\]? = "([^"]+)"', (ROOT / "base/version.h").read_text())[1]
    assert {chart["version"], chart["appVersion"], *tags} == {version}


def test_helm_lint_passes():
    for overlay in OVERLAYS:
        done = helm("lint", "--strict", CHART, *values_of(overlay))
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("overlay, reported", [("gpu", "port-forward svc/fsdpd-coordinator 7777"),
                                           ("ha-etcd", "FSDPD_SERVER=fsdpd-coordinator-0.fsdpd-coordinator-peers:7777,")])
def test_notes_name_coordinator_address(tmp_path, overlay, reported):
    """A standby returns the leader's address, which a port-forward cannot reach."""
    chart = shutil.copytree(CHART, tmp_path / "chart")
    shutil.copy(chart / "templates/NOTES.txt", chart)
    # `helm template` leaves notes out.
    (chart / "templates/notes.yaml").write_text('notes: {{ tpl (.Files.Get "NOTES.txt") . | quote }}\n')
    done = helm("template", "fsdpd", chart, "--show-only", "templates/notes.yaml", *values_of(overlay))
    assert done.returncode == 0, done.stderr
    notes = yaml.safe_load(done.stdout)["notes"]
    assert reported in notes and ("port-forward" in notes) == (overlay == "gpu"), notes


@pytest.mark.parametrize("value, output", [
    ("agent.device=tpu", "agent.device|/agent/device"),
    ("agent.slots=0", "agent.slots|/agent/slots"),
    ("agent.slot=2", "slot"),
    ("agent.labels.gpu=h200;", "agent.labels.gpu|/agent/labels/gpu"),
    ("agent.nvlinkDomain=rack 7", "agent.nvlinkDomain|/agent/nvlinkDomain"),
    ("agent.allowEnv[0]=NCCL-X", "agent.allowEnv.0|/agent/allowEnv/0"),
    ("agent.pluginDirs[0]=packages", "agent.pluginDirs.0|/agent/pluginDirs/0"),
    ("coordinator.revokedCertificates[0]=node-0", "coordinator.revokedCertificates.0|/coordinator/revokedCertificates/0"),
    ("coordinator.revokedCertificates[0]=" + 41 * "f", "coordinator.revokedCertificates.0|/coordinator/revokedCertificates/0"),
    ("agent.queued.nodes=-1", "agent.queued.nodes|/agent/queued/nodes"),
    ("agent.queued.queue=Research", "agent.queued.queue|/agent/queued/queue"),
    ("etcd.members=http://etcd-0:2379", "etcd.members|/etcd/members"),
    ("coordinator.webListen=localhost", "coordinator.webListen|/coordinator/webListen"),
    ("quotas.vision=many", "quotas.vision|/quotas/vision"),
    ("quotas.Vision=64", "quotas"),
])
def test_rejects_invalid_value_by_name(value, output):
    done = helm("template", "fsdpd", CHART, "--set", value)
    assert done.returncode != 0 and re.search(output, done.stderr), done.stderr


def test_values_are_applied():
    done = helm("template", "fsdpd", CHART, "--namespace", "train", "--set", ",".join([
        "images.agent=registry.example/agent@sha256:abc", "images.pullSecrets[0].name=pull", "agent.graceSeconds=600",
        "agent.slots=4", "agent.labels.gpu=h200", "agent.labels.zone=b", "agent.nvlinkDomain=rack-7", "agent.shm=2Gi", "agent.workGib=50",
        "agent.allowEnv={NCCL_NET_PLUGIN,CUDA_*}", "agent.pluginDirs={/data/packages}", "coordinator.revokedCertificates={serial=5A0C,0B,00:" + ":".join(20 * ["f1"]) + "}", "coordinator.storage=20Gi", "coordinator.storageClass=fast",
        "claims.enabled=true", "claims.storageClass=shared", "claims.dataSize=5Ti"]))
    assert done.returncode == 0, done.stderr
    made = objects(done.stdout)
    agent = pod_specs(made)["fsdpd-agent"]
    container = agent["containers"][0]
    assert container["image"] == "registry.example/agent@sha256:abc"
    assert agent["imagePullSecrets"] == [{"name": "pull"}]
    assert agent["terminationGracePeriodSeconds"] == 640
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert (env["FSDPD_GRACE_MS"], env["FSDPD_SLOTS"]) == ("600000", "4")
    assert {"--label=gpu=h200", "--label=zone=b", "--nvlink-domain=rack-7", "--allow-env=NCCL_NET_PLUGIN",
            "--allow-env=CUDA_*", "--plugin-dir=/data/packages"} <= set(container["args"])
    revoked = named(made, "ConfigMap", "fsdpd-revoked-certificates")["data"]["serials"]
    assert revoked.splitlines()[1:] == ["serial=5A0C", "0B", "00:" + ":".join(20 * ["f1"])]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}} in agent["volumes"]
    assert {"name": "work", "emptyDir": {"sizeLimit": "50Gi"}} in agent["volumes"] and env["FSDPD_WORK_MIB"] == "20480"
    state = named(made, "StatefulSet", "fsdpd-coordinator")["spec"]["volumeClaimTemplates"][0]["spec"]
    assert (state["storageClassName"], state["resources"]["requests"]["storage"]) == ("fast", "20Gi")
    data = named(made, "PersistentVolumeClaim", "fsdpd-data")["spec"]
    assert (data["storageClassName"], data["resources"]["requests"]["storage"]) == ("shared", "5Ti")
    assert {each["metadata"].get("namespace") for each in made} == {"train", None}  # None: of the whole cluster.


def test_removed_default_stays_removed():
    """As with `helm upgrade --reuse-values`: null for a key without a default."""
    done = helm("template", "fsdpd", CHART, *values_of("cpu-test"), "--set", "agent.nodeSelector.gone=null")
    assert done.returncode == 0, done.stderr
    assert pod_specs(objects(done.stdout))["fsdpd-agent"]["nodeSelector"] == {"kubernetes.io/os": "linux"}


@each_overlay
def test_documented_certificate_has_dialed_names(overlay):
    block, = (each.text for each in pages.blocks("docs/deploy.md") if "pki coordinator fsdpd-coordinator" in each.text)
    command = block.split("deploy/certificates pki coordinator", 1)[1].split("deploy/certificates")[0]
    names = subprocess.run(["bash", "-c", f"echo {command}"], capture_output=True, text=True, check=True).stdout.split()
    dialled, = (arg.split("=", 1)[1] for arg in pod_specs(of_overlay(overlay))["fsdpd-agent"]["containers"][0]["args"]
                if arg.startswith("--coordinator="))
    assert {each.removesuffix(":7777") for each in dialled.split(",")} <= set(names)


# The objects ---------------------------------------------------------------------------------------------------------


@each_overlay
def test_pods_are_restricted(overlay):
    """Pod Security "restricted", which the namespace enforces, and no token for the API, which no pod calls."""
    made = of_overlay(overlay)
    namespace = named(made, "Namespace", "fsdpd")["metadata"]["labels"]
    assert namespace["pod-security.kubernetes.io/enforce"] == "restricted"
    specs = pod_specs(made)
    assert set(specs) == {"fsdpd-coordinator", "fsdpd-agent"}
    for spec in specs.values():
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}


def with_components(names, tmp_path, overlay="gpu"):
    """A user's overlay: one of ours with components."""
    copied = shutil.copytree(DEPLOY / "kubernetes", tmp_path / "deploy/kubernetes")
    shutil.copytree(ROOT / "dashboards", tmp_path / "dashboards")
    (copied / "overlays/own").mkdir()
    (copied / "overlays/own/kustomization.yaml").write_text(yaml.safe_dump({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": "fsdpd",
        "resources": [f"../{overlay}"], "components": [f"../../components/{name}" for name in names]}))
    return objects(rendered(copied / "overlays/own"))


def test_rdma_requests_device_without_capability(tmp_path):
    """Regression: IPC_LOCK was added, which has no effect for users other than root, and the namespace was less
    restricted for it."""
    made = with_components(["rdma"], tmp_path)
    container = pod_specs(made)["fsdpd-agent"]["containers"][0]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"name": "NCCL_IB_DISABLE", "value": "0"} in container["env"]
    assert set(container["resources"]["limits"]) == {"memory", "nvidia.com/gpu", "rdma/hca"}
    namespace = named(made, "Namespace", "fsdpd")["metadata"]["labels"]
    assert namespace["pod-security.kubernetes.io/enforce"] == "restricted"


def test_queued_agents_match_daemonset(tmp_path):
    """Includes changes by another component, and the fields that a Job needs."""
    queued, daemons = with_components(["claims", "queued"], tmp_path / "queued"), with_components(["claims"], tmp_path / "daemons")
    assert not [each for each in queued if each["kind"] == "DaemonSet"]
    job, pod = named(queued, "Job", "fsdpd-agent"), pod_specs(queued)["fsdpd-agent"]
    assert "suspend" not in job["spec"] and job["spec"]["parallelism"] == job["spec"]["completions"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "fsdpd"
    assert pod.pop("restartPolicy") == "OnFailure"
    apart, = pod.pop("affinity")["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert apart["topologyKey"] == "kubernetes.io/hostname" and apart["labelSelector"]["matchLabels"].items() <= labels.items()
    assert pod["containers"][0]["args"].pop() == "--stopped-exit-code=143"
    assert pod == pod_specs(daemons)["fsdpd-agent"]
    assert labels == pod_templates(daemons)["fsdpd-agent"]["metadata"]["labels"]


def test_jobs_access_only_claims(tmp_path):
    """The agent's key is in the same pod."""
    container = pod_specs(with_components(["claims"], tmp_path))["fsdpd-agent"]["containers"][0]
    claimed = [each["mountPath"] for each in container["volumeMounts"] if each["name"] in ("data", "checkpoints")]
    roots = [each.removeprefix("--path-root=") for each in container["args"] if each.startswith("--path-root=")]
    assert claimed and roots == claimed


def test_queued_nodes_match_value():
    done = helm("template", "fsdpd", CHART, "--set", "agent.queued.nodes=16,agent.queued.queue=research")
    job = named(objects(done.stdout), "Job", "fsdpd-agent")
    assert (job["spec"]["parallelism"], job["spec"]["completions"]) == (16, 16)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"


@each_overlay
def test_selectors_match_pods(overlay):
    made = of_overlay(overlay)
    labels = [template["metadata"]["labels"] for template in pod_templates(made).values()]
    services = [each["spec"]["selector"] for each in made if each["kind"] == "Service"]
    budgets = [each["spec"]["selector"]["matchLabels"] for each in made if each["kind"] == "PodDisruptionBudget"]
    monitors = [each["spec"]["selector"]["matchLabels"] for each in made if each["kind"] == "PodMonitor"]
    assert len(services) == 2 and len(budgets) == 1 and len(monitors) == (2 if overlay == "monitoring" else 0)
    for selector in services + budgets + monitors:
        assert any(selector.items() <= pod.items() for pod in labels), selector
    assert budgets == [{"app.kubernetes.io/component": "coordinator"}], "a drain waits for no agent"
    assert named(made, "StatefulSet", "fsdpd-coordinator")["spec"]["serviceName"] in [
        each["metadata"]["name"] for each in made if each["kind"] == "Service"]


@each_overlay
def test_mounted_secrets_are_documented(overlay):
    documented = (ROOT / "docs/deploy.md").read_text()
    made = set(re.findall(r"^kubectl -n fsdpd create secret generic (\S+)", documented, re.MULTILINE))
    mounted = {volume["secret"]["secretName"]: volume["secret"] for spec in pod_specs(of_overlay(overlay)).values()
               for volume in spec["volumes"] if "secret" in volume}
    assert set(mounted) <= made and len(mounted) == (4 if overlay == "ha-etcd" else 3)
    # The daemons refuse keys that every user may read.
    assert all(secret["defaultMode"] & 0o007 == 0 for secret in mounted.values())


def test_variables_in_arguments_are_defined():
    """Regression: with only the base an agent got --device=$(FSDPD_DEVICE) and exited."""
    for made in [objects(rendered(DEPLOY / "kubernetes/base"))] + [of_overlay(overlay) for overlay in OVERLAYS]:
        for spec in pod_specs(made).values():
            for container in spec["containers"]:
                used = set(re.findall(r"\$\((\w+)\)", " ".join(container["args"])))
                assert used <= {each["name"] for each in container.get("env", [])}


@each_overlay
def test_pod_grace_period_covers_save(overlay):
    agent = pod_specs(of_overlay(overlay))["fsdpd-agent"]
    env = {each["name"]: each.get("value") for each in agent["containers"][0]["env"]}
    assert agent["terminationGracePeriodSeconds"] == int(env["FSDPD_GRACE_MS"]) / 1000 + LEAVE_SECONDS


@each_overlay
def test_probes_check_only_process(overlay):
    """A failed liveness probe kills the ranks, so no probe may depend on a coordinator or a job."""
    containers = {name: spec["containers"][0] for name, spec in pod_specs(of_overlay(overlay)).items()}
    for probe in ("startupProbe", "livenessProbe"):
        assert containers["fsdpd-coordinator"][probe]["grpc"] == {"port": 7779}, "no service: the process itself"
        assert containers["fsdpd-agent"][probe]["httpGet"] == {"path": "/metrics", "port": "metrics"}
    assert "readinessProbe" not in containers["fsdpd-agent"]


# What an API server lets change in place, of a StatefulSet's spec; elsewhere it is the selector that may not change.
MUTABLE = {"replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
           "persistentVolumeClaimRetentionPolicy", "minReadySeconds"}


def immutable(among):
    """Returns {(kind, name): fields that an apply may not change}."""
    fixed = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in among
             if each["kind"] in ("StatefulSet", "DaemonSet", "Deployment")}
    return {key: {name: value for name, value in spec.items()
                  if name == "selector" or key[0] == "StatefulSet" and name not in MUTABLE}
            for key, spec in fixed.items()}


def test_upgrade_changes_no_immutable_field(tmp_path):
    directory = shutil.copytree(DEPLOY / "kubernetes", tmp_path / "deploy/kubernetes")
    shutil.copytree(ROOT / "dashboards", tmp_path / "dashboards")
    kustomization = directory / "base/kustomization.yaml"
    version = yaml.safe_load(kustomization.read_text())["images"][0]["newTag"]
    kustomization.write_text(kustomization.read_text().replace(version, "99.0.0"))
    for overlay in OVERLAYS:
        now, later = of_overlay(overlay), objects(overlay_text(overlay, directory))
        assert now != later, "the release has another version"
        assert immutable(now) == immutable(later)
        # Of a Job the pods too: docs/deploy.md says how agents that are one are brought up to date.
        agents = set() if overlay == "kueue" else {("DaemonSet", "fsdpd-agent")}
        assert set(immutable(now)) == {("StatefulSet", "fsdpd-coordinator"), *agents}


def test_slots_match_gpus():
    container = pod_specs(of_overlay("gpu"))["fsdpd-agent"]["containers"][0]
    slots = next(each["value"] for each in container["env"] if each["name"] == "FSDPD_SLOTS")
    assert {slots} == {container["resources"][bound]["nvidia.com/gpu"] for bound in ("requests", "limits")}


def test_agents_use_names_of_coordinators():
    made = of_overlay("ha-etcd")
    coordinators = named(made, "StatefulSet", "fsdpd-coordinator")["spec"]
    requested = pod_specs(made)["fsdpd-agent"]["containers"][0]["args"]
    known = next(arg.split("=")[1].split(",") for arg in requested if arg.startswith("--coordinator="))
    advertised = next(arg.split("=")[1] for arg in coordinators["template"]["spec"]["containers"][0]["args"]
                      if arg.startswith("--advertise="))
    assert known == [advertised.replace("$(POD_NAME)", f"fsdpd-coordinator-{index}")
                     for index in range(coordinators["replicas"])]


@pytest.mark.parametrize("members, ports", [("e1:2379,e2:2379,e3:2379", [2379]), ("e1:2379,e2:12379", [2379, 12379])])
def test_coordinators_may_reach_etcd_ports(members, ports):
    """Regression: the network policy allowed only 2379, so coordinators could not reach etcd at another port."""
    done = helm("template", "fsdpd", CHART, "--set", "etcd.members=" + members.replace(",", "\\,"))
    assert done.returncode == 0, done.stderr
    egress = named(objects(done.stdout), "NetworkPolicy", "fsdpd-coordinator")["spec"]["egress"]
    assert [each["port"] for each in egress[0]["ports"]] == ports


# What Prometheus and Grafana take
# --------------------------------------------------------------------------------------


def test_every_dashboard_has_config_map():
    maps = [each for each in of_overlay("monitoring")
            if each["kind"] == "ConfigMap" and each["metadata"]["name"] not in ("fsdpd-quotas", "fsdpd-revoked-certificates")]
    assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in maps)
    assert {name: text for each in maps for name, text in each["data"].items()} == {
        path.name: path.read_text() for path in (ROOT / "dashboards").glob("*.json")}, "list it in kustomization.yaml"
    # What an object may have in etcd, and half of it for what else is in it.
    assert all(len(json.dumps(each)) < 512 << 10 for each in maps)


def test_operator_rules_match_prometheus_rules():
    rule = named(of_overlay("monitoring"), "PrometheusRule", "fsdpd")
    rules = yaml.safe_load((ROOT / "dashboards/rules.yml").read_text())
    assert rule["spec"] == rules, "run deploy/kubernetes/components/monitoring/remake_rules"


def test_prometheus_may_reach_scrape_targets():
    made = of_overlay("monitoring")
    for name in ("coordinator", "agent"):
        port = named(made, "PodMonitor", f"fsdpd-{name}")["spec"]["podMetricsEndpoints"][0]["port"]
        ports = pod_specs(made)[f"fsdpd-{name}"]["containers"][0]["ports"]
        number = next(each["containerPort"] for each in ports if each["name"] == port)
        rules = named(made, "NetworkPolicy", f"fsdpd-{name}")["spec"]["ingress"]
        open_to = [rule["from"] for rule in rules if rule.get("ports") == [{"port": number}]]
        assert open_to == [[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]]


# A first job ---------------------------------------------------------------------------------------------------------


def test_first_job_is_valid_and_reaches_coordinator(tmp_path):
    shipped = objects((DEPLOY / "kubernetes/examples/first-job.yaml").read_text())
    spec = tmp_path / "job.yaml"
    spec.write_text(named(shipped, "ConfigMap", "fsdpd-first-job")["data"]["job.yaml"])
    done = subprocess.run([program("client/fsdpctl"), "validate", "--offline", "-f", spec], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pod = named(shipped, "Job", "fsdpd-first-job")["spec"]["template"]
    rules = named(of_overlay("cpu-test"), "NetworkPolicy", "fsdpd-coordinator")["spec"]["ingress"]
    assert {"podSelector": {"matchLabels": {"app.kubernetes.io/component": "client"}}} in rules[0]["from"]
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "client"
