"""Kubernetes without machines: etcd and the real API server, controller manager and scheduler (tests/kubernetes/build), and
nodes that only say that what is placed on them runs."""

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
TOKEN = "of-the-test"
_PLURALS = {"NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses"}
_OF_THE_CLUSTER = {"Namespace", "Node", "PersistentVolume", "PriorityClass", "CustomResourceDefinition"}


def programs():
    """Where they are, or nothing."""

    folder = pathlib.Path(subprocess.run([BUILD, "--path"], capture_output=True, text=True, check=True).stdout.strip())
    return folder if (folder / ".complete").exists() else None


class Refused(Exception):
    def __init__(self, code, said):
        super().__init__(f"{code}: {said}")
        self.code = code


def path_of(each, namespace="fsdpd"):
    """Of the collection that an object belongs to."""
    version = each["apiVersion"]
    plural = _PLURALS.get(each["kind"], each["kind"].lower() + "s")
    within = "" if each["kind"] in _OF_THE_CLUSTER else f"/namespaces/{each['metadata'].get('namespace', namespace)}"
    return f"/{'api' if version == 'v1' else 'apis'}/{version}{within}/{plural}"


class ApiServer:
    def __init__(self, folder, mark):
        self.folder, self._mark, self._bin = folder, mark, programs()
        self._daemons = []
        self._port, scheduler, manager = free_ports(3)
        self._tls = ssl._create_unverified_context()
        self.etcd = Etcd(folder, mark, members=1)
        self._serve()
        config = self._kubeconfig()
        self._start("kube-controller-manager", f"--kubeconfig={config}", "--use-service-account-credentials",
                    f"--service-account-private-key-file={self.folder / 'sa.key'}", "--leader-elect=false",
                    "--bind-address=127.0.0.1", f"--secure-port={manager}", f"--cert-dir={self.folder / 'manager'}",
                    # Nobody sends heartbeats for the nodes here.
                    "--node-monitor-grace-period=1h")
        settings = self.folder / "scheduler.yaml"
        settings.write_text(yaml.safe_dump({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False}, "clientConnection": {"kubeconfig": str(config)}}))
        self._start("kube-scheduler", f"--config={settings}", "--bind-address=127.0.0.1", f"--secure-port={scheduler}",
                    f"--cert-dir={self.folder / 'scheduler'}")

    def stop(self):
        for daemon in reversed(self._daemons):
            if daemon.running():
                daemon.kill()
        self.etcd.stop()

    def _start(self, name, *flags):
        self._daemons.append(Daemon(name, [self._bin / name, *flags], self.folder / f"{name}.log", self._mark))

    def _serve(self):
        private, public, tokens = (self.folder / name for name in ("sa.key", "sa.pub", "tokens.csv"))
        subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
        subprocess.run(["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
        tokens.write_text(f"{TOKEN},admin,1,system:masters\n")
        etcd = self.etcd.store.removeprefix("etcd://").split("/")[0]
        self._start("kube-apiserver", f"--etcd-servers=http://{etcd}", "--bind-address=127.0.0.1",
                    "--advertise-address=127.0.0.1", f"--secure-port={self._port}", f"--cert-dir={self.folder / 'server'}",
                    "--service-cluster-ip-range=10.96.0.0/16", "--service-account-issuer=https://kubernetes.default.svc",
                    f"--service-account-key-file={public}", f"--service-account-signing-key-file={private}",
                    f"--token-auth-file={tokens}", "--authorization-mode=Node,RBAC", "--endpoint-reconciler-type=none")

        def ready():
            server = self._daemons[-1]
            assert server.running(), f"kube-apiserver ended: {server.text()[-3000:]}"
            try:
                return self.ask("GET", "/readyz", text=True) == "ok"
            except (OSError, Refused):
                return False
        wait_until("the API server is ready", ready)

    def _kubeconfig(self):
        path = self.folder / "kubeconfig"
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": f"https://127.0.0.1:{self._port}",
                                                      "insecure-skip-tls-verify": True}}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}]}))
        return path

    def ask(self, method, path, body=None, kind="application/json", text=False, warnings=None):
        request = urllib.request.Request(f"https://127.0.0.1:{self._port}{path}", method=method, headers={
            "Authorization": f"Bearer {TOKEN}", "Content-Type": kind},
            data=None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=60) as answer:
                if warnings is not None:
                    warnings += answer.headers.get_all("Warning") or []
                return answer.read().decode() if text else json.load(answer)
        except urllib.error.HTTPError as error:
            raise Refused(error.code, error.read().decode()) from None

    def apply(self, each, dry=False):
        """As `kubectl apply --server-side` does: a field that nobody knows is an error. Returns what the server warns of."""
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

    # Nodes and pods, without machines ------------------------------------------------------------------------------

    def add_node(self, name, labels, allocatable):
        self.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        self.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": {
            "capacity": allocatable, "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Said"}]}}, "application/merge-patch+json")

    def pods(self, component):
        found = self.ask("GET", "/api/v1/namespaces/fsdpd/pods?labelSelector=app.kubernetes.io/component%3D" + component)
        return {each["metadata"]["name"]: each for each in found["items"]}

    def end_pod(self, name, exit_code):
        """Its container has ended, and the pod with it; that it is deleted then is run_pods()'s."""
        ended = {"name": "agent", "image": "", "imageID": "", "ready": False, "restartCount": 0,
                 "state": {"terminated": {"exitCode": exit_code}}}
        self.ask("PATCH", f"/api/v1/namespaces/fsdpd/pods/{name}/status", {"status": {
            "phase": "Failed" if exit_code else "Succeeded", "containerStatuses": [ended]}}, "application/merge-patch+json")

    def run_pods(self):
        """What kubelets would do now: what is placed runs, and what is to end has ended."""
        for each in self.ask("GET", "/api/v1/namespaces/fsdpd/pods")["items"]:
            path = f"/api/v1/namespaces/fsdpd/pods/{each['metadata']['name']}"
            if "deletionTimestamp" in each["metadata"]:
                try:
                    self.ask("DELETE", path, {"gracePeriodSeconds": 0})
                except Refused as gone:  # Meanwhile: its Job has let go of it.
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
