"""Installation of fsdpd on a cluster of harness/kubelets.py, done as described in docs/deploy.md, and jobs on it."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import yaml

from harness import pages
from harness.apiserver import is_ready
from harness.kubelets import run
from harness.manifests import DEPLOY, tool
from harness.processes import MARK
from harness.programs import BIN
from harness.specs import ENDLESS, corpus, spec
from harness.wait import wait_until

RELEASE, NEXT_RELEASE = "0.1.0", "0.1.1"
SERVICE = "fsdpd-coordinator:7777"
_USER = 65532
# Objects outside the namespace, which are not deleted with it.
_OF_THE_CLUSTER = ["priorityclass/fsdpd-coordinator", "priorityclass/fsdpd-agent"]


def block_of(words):
    """The command block of docs/deploy.md that contains `words`."""
    return next(each.text for each in pages.blocks("docs/deploy.md") if words in each.text)


class Installation:
    """`with Installation(cluster, directory) as fsdpd`: uninstalled after the block. `server`: FSDPD_SERVER, within the
    cluster."""

    def __init__(self, cluster, directory, server=SERVICE):
        self.cluster, self.directory, self.server = cluster, directory, server
        self.volumes = {}
        directory.mkdir(exist_ok=True)
        (directory / "deploy").symlink_to(DEPLOY)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        gone = ["namespace/fsdpd", *_OF_THE_CLUSTER, *(f"persistentvolume/{name}" for name in self.volumes)]
        self.typed(f"kubectl uncordon {' '.join(self.cluster.nodes)}\n"
                   f"kubectl delete --ignore-not-found --timeout 5m {' '.join(gone)}")

    def typed(self, script):
        """Runs a script in a shell on a node and returns its stdout. Processes that it leaves are killed."""
        command = self.place().inside("bash", "-euo", "pipefail", "-c", f"cd {self.directory}\n{script}")
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            shell = subprocess.Popen(command, env=self.environment(), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                                     start_new_session=True)
            try:
                code = shell.wait(timeout=600)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
            stdout.seek(0)
            stderr.seek(0)
            output = stdout.read()
            assert code == 0, f"{script}\nexit {code}\n{output}{stderr.read()}"
            return output

    def environment(self):
        """Environment of a shell with kubectl, helm and fsdpctl."""
        own = self.cluster.environment()
        return {**own, MARK: self.cluster.mark, "HOME": str(self.directory), "PATH": f"{BIN / 'client'}:{own['PATH']}:{tool('helm').parent}"}

    def place(self):
        """The node of the coordinator, which stays connected in every test; any node if there is none yet."""
        node = self.pods("coordinator").get("fsdpd-coordinator-0", {"spec": {}})["spec"].get("nodeName")
        return self.cluster.nodes[node or min(self.cluster.nodes)]

    def pods(self, component):
        return self.cluster.pods(component)

    # --- installation

    def add_secrets(self):
        """Creates the namespace and its secrets."""
        self.typed(block_of("create secret generic fsdpd-coordinator-tls").partition("kubectl apply -k")[0])

    def add_volumes(self, coordinators=1, state_on=None):
        """Creates volumes for the claims, as directories of this machine that all nodes share. `state_on`: the only
        node that has the coordinators' volumes, like kind's storage."""
        claims = {f"state-{each}": (f"state-fsdpd-coordinator-{each}", "ReadWriteOnce") for each in range(coordinators)}
        claims |= {"data": ("fsdpd-data", "ReadWriteMany"), "checkpoints": ("fsdpd-checkpoints", "ReadWriteMany")}
        for name, (claim, mode) in claims.items():
            self.volumes[name] = self.directory / name
            self.volumes[name].mkdir()
            os.chown(self.volumes[name], _USER, _USER)
            at = {"key": "kubernetes.io/hostname", "operator": "In", "values": [state_on]}
            place = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [at]}]}}}
            self.cluster.apply({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
                "spec": {"capacity": {"storage": "1Ti"}, "accessModes": [mode], "hostPath": {"path": str(self.volumes[name])},
                         "claimRef": {"namespace": "fsdpd", "name": claim},
                         **(place if state_on and name.startswith("state") else {})}})
        corpus(self.volumes["data"] / "corpus.txt")

    def tag(self, release):
        """Tags the same images as another release on every node."""
        for node in self.cluster.nodes.values():
            for name in ("fsdpd-coordinator", "fsdpd-agent"):
                run(*node.inside(self.cluster.built / "ctr", "--namespace", "k8s.io", "images", "tag", "--force",
                                 *(f"docker.io/library/{name}:{each}" for each in (RELEASE, release))))

    def apply(self, release=RELEASE, *components):
        """Applies a custom overlay: CPU ranks, with volumes for data and checkpoints."""
        mine = self.directory / "mine"
        mine.mkdir(exist_ok=True)
        (mine / "kustomization.yaml").write_text(yaml.safe_dump({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": "fsdpd",
            "resources": ["../deploy/kubernetes/overlays/cpu-test"],
            "components": [f"../deploy/kubernetes/components/{name}" for name in ("claims", *components)],
            "images": [{"name": name, "newTag": release} for name in ("fsdpd-coordinator", "fsdpd-agent")]}))
        return self.typed("kubectl apply -k mine")

    def wait_ready(self, component, count=1):
        wait_until(f"{count} pods of {component} are ready", lambda: sum(map(is_ready, self.pods(component).values())) == count
                   or _fail(self.pods(component)), timeout_s=300)

    def agent_on(self, node):
        return next(each for each in self.pods("agent").values() if each["spec"]["nodeName"] == node)

    def process_of(self, pod, name):
        """Process of a pod's program, or None."""
        of_node = self.cluster.nodes[pod["spec"]["nodeName"]].processes(name)
        return next((each for each in of_node if pod["metadata"]["uid"] in _groups_of(each.pid)), None)

    def kill(self, pod, name):
        """Kills it like the node's OOM killer."""
        os.kill(self.process_of(pod, name).pid, signal.SIGKILL)

    # --- jobs

    def ctl(self, *arguments):
        return self.typed(f"FSDPD_SERVER={self.server} FSDPD_COORDINATOR_CA=pki/ca.crt FSDPD_TOKEN_FILE=me.token "
                          f"fsdpctl {' '.join(arguments)}")

    def submit(self, name, steps=ENDLESS, **sections):
        """Submits a job that uses the volumes. Without `steps` it trains until it is cancelled."""
        made = spec(steps=steps, name=name, **{
            "data": {"synthetic": None, "tokens": [{"path": "/data/corpus.txt", "type": "u8"}]},
            "checkpoint": {"dir": f"/ckpt/{name}", "every_steps": 20, "keep_last": 3},
            "resources": {"nodes": 2, "ranks_per_node": 1}, **sections})
        (self.directory / f"{name}.yaml").write_text(yaml.safe_dump(made))
        return json.loads(self.ctl("submit", "-f", f"{name}.yaml", "-o", "json"))["id"]

    def job(self, job_id):
        return json.loads(self.ctl("get", job_id, "-o", "json"))

    def wait_job(self, job_id, what, is_so, timeout_s=300):
        """Waits for the condition and returns the job. While no coordinator answers, `ctl` raises AssertionError,
        which means "not yet"."""
        def looked():
            job = self.job(job_id)
            return job if is_so(job) else None
        return wait_until(f"{job_id} {what}", looked, timeout_s, interval_s=0.2)

    def wait_trains(self, job_id, beyond=0):
        """Waits until the job trains beyond a step, and has a committed checkpoint if it saves."""
        return self.wait_job(job_id, f"trains beyond step {beyond}", lambda job: job["state"] == "running"
                             and step_of(job) > beyond and (job.get("checkpoints") or not job["spec"].get("checkpoint")))

    def wait_next_step(self, job_id):
        """Waits for the next reported step; after a coordinator restart, for the one after the first report."""
        return self.wait_trains(job_id, step_of(self.wait_job(job_id, "is known to train", lambda job: job["state"] == "running")))

    def end(self, job_id):
        """Cancels a job that is running, and returns it."""
        assert self.job(job_id)["state"] == "running", self.ctl("describe", job_id)
        self.ctl("cancel", job_id, "--wait")
        return self.job(job_id)

    def wait_succeeded(self, job_id):
        job = self.wait_job(job_id, "has ended", lambda job: int(job.get("end_unix_nanos", 0)) > 0, timeout_s=600)
        assert job["state"] == "succeeded", self.ctl("describe", job_id)
        assert step_of(job) == job["spec"]["train"]["steps"]
        return job


def _groups_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""  # Ended after it was listed.


def _fail(pods):
    raise AssertionError([(name, each["status"]) for name, each in pods.items()])


def step_of(job):
    return int((job.get("last_step") or {}).get("step", 0))


def goes_on(job, attempt):
    """Whether it has made a new step in this attempt, after the restored ones."""
    restored = job.get("restored") or {}
    return job["state"] == "running" and job["attempt"] == attempt and step_of(job) > int(restored.get("step", 1 << 62))


def restarts(pod):
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", []))


class Clock:
    """Prints times since a fault."""

    def __init__(self, fault):
        self._fault, self._start = fault, time.monotonic()

    def __call__(self, what):
        print(f"{self._fault}: {what} after {time.monotonic() - self._start:.1f} s", flush=True)
