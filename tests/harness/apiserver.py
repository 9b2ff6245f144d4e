"""Kubernetes control plane for tests: etcd and the real API server, controller manager and scheduler
(tests/kubernetes/build). It has no machines by itself: nodes are objects, and tests set the status of pods.
harness/kubelets.py adds real nodes."""

import json
import pathlib
import ssl
import subprocess
import urllib.error
import urllib.request

import yaml

from harness.etcd import Etcd, free_ports
from harness.processes import Daemon
from harness.programs import ROOT
from harness.wait import wait_until

BUILD = ROOT / "tests/kubernetes/build"
_PLURALS = {"NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses"}
_OF_THE_CLUSTER = {"Namespace", "Node", "PersistentVolume", "PriorityClass", "CustomResourceDefinition"}


def programs(*of):
    """Directory of the programs built by tests/kubernetes/build, or None. `of`: additional build targets."""
    directory = pathlib.Path(subprocess.run([BUILD, *of, "--path"], capture_output=True, text=True, check=True).stdout.strip())
    return directory if (directory / ".complete").exists() else None


def _token_of(user):
    return f"of-{user.replace(':', '-')}"


class Refused(Exception):
    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code = code


def path_of(each, namespace="fsdpd"):
    """Path of the collection that an object belongs to."""
    version = each["apiVersion"]
    plural = _PLURALS.get(each["kind"], each["kind"].lower() + "s")
    within = "" if each["kind"] in _OF_THE_CLUSTER else f"/namespaces/{each['metadata'].get('namespace', namespace)}"
    return f"/{'api' if version == 'v1' else 'apis'}/{version}{within}/{plural}"


class ApiServer:
    def __init__(self, directory, mark, address="127.0.0.1", users=(), node_grace="1h"):
        """`address`: address for nodes. `users`: [(name, group)] in addition to the administrator. `node_grace`:
        time without a heartbeat after which a node is lost; nodes that exist only as objects send none."""
        self.directory, self._mark, self._bin = directory, mark, programs()
        self._address, self._users = address, users
        self._daemons = []
        self._port, scheduler, manager = free_ports(3)
        self._tls = ssl._create_unverified_context()
        self.etcd = Etcd(directory, mark, members=1)
        self._serve()
        self.kubeconfig = config = self.kubeconfig_of("admin")
        self._start("kube-controller-manager", f"--kubeconfig={config}", "--use-service-account-credentials",
                    f"--service-account-private-key-file={self.directory / 'sa.key'}", "--leader-elect=false",
                    "--bind-address=127.0.0.1", f"--secure-port={manager}", f"--cert-dir={self.directory / 'manager'}",
                    f"--node-monitor-grace-period={node_grace}")
        settings = self.directory / "scheduler.yaml"
        settings.write_text(yaml.safe_dump({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False}, "clientConnection": {"kubeconfig": str(config)}}))
        self._start("kube-scheduler", f"--config={settings}", "--bind-address=127.0.0.1", f"--secure-port={scheduler}",
                    f"--cert-dir={self.directory / 'scheduler'}")

    def stop(self):
        for daemon in reversed(self._daemons):
            if daemon.running():
                daemon.kill()
        self.etcd.stop()

    def _start(self, name, *flags):
        self._daemons.append(Daemon(name, [self._bin / name, *flags], self.directory / f"{name}.log", self._mark))

    def _serve(self):
        private, public, tokens = (self.directory / name for name in ("sa.key", "sa.pub", "tokens.csv"))
        subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
        subprocess.run(["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
        users = [("admin", "system:masters"), *self._users]
        tokens.write_text("".join(f"{_token_of(name)},{name},{number},{group}\n" for number, (name, group) in enumerate(users)))
        etcd = self.etcd.store.removeprefix("etcd://").split("/")[0]
        self._start("kube-apiserver", f"--etcd-servers=http://{etcd}", f"--bind-address={self._address}",
                    f"--advertise-address={self._address}", f"--secure-port={self._port}", f"--cert-dir={self.directory / 'server'}",
                    "--service-cluster-ip-range=10.96.0.0/16", "--service-account-issuer=https://kubernetes.default.svc",
                    f"--service-account-key-file={public}", f"--service-account-signing-key-file={private}",
                    f"--token-auth-file={tokens}", "--authorization-mode=Node,RBAC", "--endpoint-reconciler-type=none",
                    # Node names are not in DNS here; `kubectl logs` needs an address.
                    "--kubelet-preferred-address-types=InternalIP")

        def ready():
            server = self._daemons[-1]
            assert server.running(), f"kube-apiserver ended: {server.text()[-3000:]}"
            try:
                return self.ask("GET", "/readyz", text=True) == "ok"
            except (OSError, Refused):
                return False
        wait_until("the API server is ready", ready)

    def kubeconfig_of(self, user):
        path = self.directory / f"kubeconfig-{user.replace(':', '-')}"
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": f"https://{self._address}:{self._port}",
                                                      "insecure-skip-tls-verify": True}}],
            "users": [{"name": user, "user": {"token": _token_of(user)}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}]}))
        return path

    def ask(self, method, path, body=None, kind="application/json", text=False, warnings=None):
        request = urllib.request.Request(f"https://{self._address}:{self._port}{path}", method=method, headers={
            "Authorization": f"Bearer {_token_of('admin')}", "Content-Type": kind},
            data=None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=60) as answer:
                if warnings is not None:
                    warnings += answer.headers.get_all("Warning") or []
                return answer.read().decode() if text else json.load(answer)
        except urllib.error.HTTPError as error:
            raise Refused(error.code, error.read().decode()) from None

    def apply(self, each, dry=False):
        """Applies like `kubectl apply --server-side`, and rejects unknown fields. Returns the server's warnings."""
        warnings = []
        self.ask("PATCH", f"{path_of(each)}/{each['metadata']['name']}?fieldManager=test&force=true&fieldValidation=Strict"
                 + ("&dryRun=All" if dry else ""), each, "application/apply-patch+yaml", warnings=warnings)
        return warnings

    def may(self, user, verb, resource, name="", subresource="", namespace="fsdpd", groups=()):
        group, _, plural = resource.rpartition("/")
        asked = {"verb": verb, "group": group, "resource": plural, "subresource": subresource, "name": name,
                 "namespace": namespace}
        review = self.ask("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "groups": [*groups, "system:authenticated"], "resourceAttributes": asked}})
        return review["status"]["allowed"]

    # Nodes and pods without machines -------------------------------------------------------------------------------

    def add_node(self, name, labels, allocatable):
        self.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        self.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": {
            "capacity": allocatable, "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Said"}]}}, "application/merge-patch+json")

    def pods(self, component):
        found = self.ask("GET", "/api/v1/namespaces/fsdpd/pods?labelSelector=app.kubernetes.io/component%3D" + component)
        return {each["metadata"]["name"]: each for each in found["items"]}

    def end_pod(self, name, exit_code):
        """Sets the container and its pod as ended. run_pods() then completes the deletion."""
        ended = {"name": "agent", "image": "", "imageID": "", "ready": False, "restartCount": 0,
                 "state": {"terminated": {"exitCode": exit_code}}}
        self.ask("PATCH", f"/api/v1/namespaces/fsdpd/pods/{name}/status", {"status": {
            "phase": "Failed" if exit_code else "Succeeded", "containerStatuses": [ended]}}, "application/merge-patch+json")

    def run_pods(self):
        """Acts as kubelets would: placed pods run, and deleted pods end."""
        for each in self.ask("GET", "/api/v1/namespaces/fsdpd/pods")["items"]:
            path = f"/api/v1/namespaces/fsdpd/pods/{each['metadata']['name']}"
            if "deletionTimestamp" in each["metadata"]:
                try:
                    self.ask("DELETE", path, {"gracePeriodSeconds": 0})
                except Refused as gone:  # Deleted meanwhile by its Job.
                    if gone.code != 404:
                        raise
            elif "nodeName" in each["spec"] and not is_ready(each):
                self.ask("PATCH", f"{path}/status", {"status": {
                    "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}},
                    "application/merge-patch+json")


def is_ready(pod):
    return "deletionTimestamp" not in pod["metadata"] and any(
        each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))


def image_of(pod):
    return pod["spec"]["containers"][0]["image"]
