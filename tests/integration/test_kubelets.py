"""fsdpd on a real Kubernetes: kubelets and containerd run the images of deploy/container by the manifests of deploy/, and the
control plane keeps its promises while its pods, links and nodes go. What each fault took is printed (pytest -s).

One cluster for all tests, which are in order: each leaves it whole. What it cannot show: its network enforces no NetworkPolicy,
volumes that nodes share are one folder of this machine, and the next release is the same programs under another tag.
"""

import json
import os
import shutil
import signal
import subprocess
import time

import pytest
import yaml

from harness import pages
from harness.apiserver import image_of, is_ready, programs
from harness.images import Images, collected
from harness.kubelets import Kubelets, missing, run
from harness.manifests import DEPLOY
from harness.processes import marked
from harness.programs import BIN, program
from harness.specs import corpus, spec
from harness.wait import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]
USER = 65532
STEPS = 1200  # Enough for a job to train while something happens to it, and to end soon after.
RELEASE, NEXT_RELEASE = "0.1.0", "0.1.1"
IMAGES = {"coordinator": "fsdpd-coordinator", "agent": "fsdpd-agent", "fsdpctl": "fsdpctl"}


def save_images(folder):
    """Files of them all in `folder`."""
    folder.mkdir()
    made = Images(folder.parent, "kubelets")
    try:
        collected(folder.parent / "out")
        made.build(folder.parent / "out", *IMAGES)
        for image, name in IMAGES.items():
            made.saved(image, f"docker.io/library/{name}:{RELEASE}", folder / f"{name}.tar")
        made.of_program(programs("nodes") / "pause", "pause")
        made.saved("pause", "localhost/pause:1", folder / "pause.tar")
    finally:
        made.remove()
        shutil.rmtree(folder.parent / "out", ignore_errors=True)


class Installation:
    """fsdpd in a cluster, as who has docs/deploy.md before him puts it there."""

    def __init__(self, cluster, folder):
        self.cluster, self.folder = cluster, folder
        self.volumes = {name: folder / name for name in ("state", "data", "checkpoints")}
        (folder / "deploy").symlink_to(DEPLOY)

    def typed(self, script):
        """What a shell on a node of the cluster says."""
        environment = {**self.cluster.environment(), "HOME": str(self.folder)}
        environment["PATH"] = f"{BIN / 'client'}:{environment['PATH']}"
        done = subprocess.run(self.place().inside("bash", "-euo", "pipefail", "-c", f"cd {self.folder}\n{script}"), env=environment,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
        assert done.returncode == 0, f"{script}\nexit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def place(self):
        """The node of the coordinator, whose link no test takes away; before there is one, any."""
        node = self.pods("coordinator").get("fsdpd-coordinator-0", {"spec": {}})["spec"].get("nodeName", "node-1")
        return self.cluster.nodes[node]

    def pods(self, component):
        return self.cluster.pods(component)

    def add_volumes(self):
        """What a cluster's storage would make of claims, for all nodes: folders of this machine."""
        claims = {"state": ("state-fsdpd-coordinator-0", "ReadWriteOnce"), "data": ("fsdpd-data", "ReadWriteMany"),
                  "checkpoints": ("fsdpd-checkpoints", "ReadWriteMany")}
        for name, (claim, mode) in claims.items():
            self.volumes[name].mkdir()
            os.chown(self.volumes[name], USER, USER)
            self.cluster.apply({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
                "spec": {"capacity": {"storage": "1Ti"}, "accessModes": [mode], "hostPath": {"path": str(self.volumes[name])},
                         "claimRef": {"namespace": "fsdpd", "name": claim}}})
        corpus(self.volumes["data"] / "corpus.txt")

    def apply(self, release):
        """An overlay of one's own: CPU ranks, with volumes to read and to save in."""
        mine = self.folder / "mine"
        mine.mkdir(exist_ok=True)
        (mine / "kustomization.yaml").write_text(yaml.safe_dump({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": "fsdpd",
            "resources": ["../deploy/kubernetes/overlays/cpu-test"], "components": ["../deploy/kubernetes/components/claims"],
            "images": [{"name": name, "newTag": release} for name in ("fsdpd-coordinator", "fsdpd-agent")]}))
        return self.typed("kubectl apply -k mine")

    def wait_ready(self, component, count=1):
        wait_until(f"{count} pods of {component} are ready", lambda: sum(map(is_ready, self.pods(component).values())) == count
                   or self._fail(self.pods(component)), timeout_s=300)

    @staticmethod
    def _fail(pods):
        raise AssertionError([(name, each["status"]) for name, each in pods.items()])

    # --- jobs

    def ctl(self, *arguments):
        return self.typed(f"FSDPD_SERVER=fsdpd-coordinator:7777 FSDPD_COORDINATOR_CA=pki/ca.crt FSDPD_TOKEN_FILE=me.token "
                          f"fsdpctl {' '.join(arguments)}")

    def submit(self, name, steps, **sections):
        made = spec(steps=steps, name=name, data={"synthetic": None, "tokens": [{"path": "/data/corpus.txt", "type": "u8"}]},
                    checkpoint={"dir": f"/ckpt/{name}", "every_steps": 20, "keep_last": 3},
                    **{"resources": {"nodes": 2, "ranks_per_node": 1}, **sections})
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(made))
        return json.loads(self.ctl("submit", "-f", f"{name}.yaml", "-o", "json"))["id"]

    def job(self, job_id):
        return json.loads(self.ctl("get", job_id, "-o", "json"))

    def wait_job(self, job_id, what, is_so, timeout_s=300):
        """The job once it is so. Nobody answers while there is no coordinator: `ctl`'s AssertionError is "not yet"."""
        def looked():
            job = self.job(job_id)
            return job if is_so(job) else None
        return wait_until(f"{job_id} {what}", looked, timeout_s, interval_s=0.2)

    def wait_trains(self, job_id, beyond=0):
        """Beyond a step, with a checkpoint that is committed."""
        return self.wait_job(job_id, f"trains beyond step {beyond}", lambda job: job["state"] == "running"
                             and step_of(job) > beyond and job.get("checkpoints"))

    def wait_succeeded(self, job_id):
        job = self.wait_job(job_id, "has ended", lambda job: int(job.get("end_unix_nanos", 0)) > 0, timeout_s=600)
        assert job["state"] == "succeeded", self.ctl("describe", job_id)
        assert step_of(job) == job["spec"]["train"]["steps"]
        return job

    def agent_on(self, node):
        return next(each for each in self.pods("agent").values() if each["spec"]["nodeName"] == node)


def step_of(job):
    return int((job.get("last_step") or {}).get("step", 0))


def goes_on(job, attempt):
    """Whether it has made a step in that attempt, after those that it has restored."""
    restored = job.get("restored") or {}
    return job["state"] == "running" and job["attempt"] == attempt and step_of(job) > int(restored.get("step", 1 << 62))


def restarts(pod):
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", []))


class Clock:
    """Says how long after a fault something was so."""

    def __init__(self, fault):
        self._fault, self._start = fault, time.monotonic()

    def __call__(self, what):
        print(f"{self._fault}: {what} after {time.monotonic() - self._start:.1f} s", flush=True)


@pytest.fixture(scope="module")
def fsdpd(tmp_path_factory, request):
    if missing():
        pytest.skip(f"needs {', '.join(missing())}; `tests/run kubelets` builds what is to be built")
    for each in ("coordinator/fsdpd-coordinator", "agent/fsdpd-agent", "fsdp/fsdpd-rank", "client/fsdpctl"):
        program(each)
    folder = tmp_path_factory.mktemp("kubelets")
    clock = Clock("start")
    save_images(folder / "images")
    clock("images are built")
    clock, mark = Clock("start"), f"kubelets-{folder}"
    cluster = Kubelets(folder, mark)
    try:
        clock("two nodes are ready")
        made = folder / "installation"
        made.mkdir()
        yield Installation(cluster, made)
    finally:
        if request.session.testsfailed:
            print(cluster.logs())
        cluster.stop()
        shutil.rmtree(folder / "images")
        assert not marked(mark)


def block_of(words):
    """The block of commands in docs/deploy.md that has these words."""
    return next(each.text for each in pages.blocks("docs/deploy.md") if words in each.text)


def test_the_commands_of_the_page_install_it(fsdpd):
    """With volumes beside overlays/cpu-test; test_apiserver.py applies overlays/gpu."""
    fsdpd.add_volumes()
    prepare, apply, dial = block_of("create secret generic fsdpd-coordinator-tls").partition("kubectl apply -k")
    clock = Clock("installation")
    fsdpd.typed(prepare)
    fsdpd.apply(RELEASE)
    fsdpd.wait_ready("coordinator")
    clock("the coordinator is ready")
    fsdpd.wait_ready("agent", 2)
    clock("both agents are ready")
    forward, look = (apply + dial).splitlines()[-2:]
    assert "port-forward" in forward, forward
    # As a person looks again: the port-forward and the agents' first connection take a moment.
    fsdpd.typed(f"{forward}\nuntil {look} > nodes.txt && [ $(grep -c ^node- nodes.txt) = 2 ]; do sleep 0.2; done; kill $!")
    clock("both nodes are listed, by a port-forward")


def test_the_first_job_of_the_page_trains_on_both_nodes(fsdpd):
    """Which a pod of fsdpctl's image submits."""
    clock = Clock("first job")
    fsdpd.typed(block_of("first-job.yaml"))
    fsdpd.typed("kubectl -n fsdpd wait --for=condition=complete --timeout=300s job/fsdpd-first-job")
    clock("it has succeeded")


def test_a_job_reads_and_saves_on_volumes(fsdpd):
    clock = Clock("job of 200 steps")
    job = fsdpd.wait_succeeded(fsdpd.submit("whole", 200))
    clock("it has succeeded")
    assert job["attempt"] == 1 and sorted(path.name for path in (fsdpd.volumes["checkpoints"] / "whole").iterdir())


def kill(fsdpd, pod, name):
    """The program that a pod runs, as its node's kernel would for want of memory."""
    process, = fsdpd.cluster.nodes[pod["spec"]["nodeName"]].processes(name)
    os.kill(process.pid, signal.SIGKILL)


def test_a_coordinator_that_is_killed_costs_a_job_nothing(fsdpd):
    job_id = fsdpd.submit("coordinator-killed", STEPS)
    fsdpd.wait_trains(job_id)
    kill(fsdpd, fsdpd.pods("coordinator")["fsdpd-coordinator-0"], "fsdpd-coordinator")
    clock = Clock("coordinator killed")
    wait_until("its container is started again", lambda: restarts(fsdpd.pods("coordinator")["fsdpd-coordinator-0"]) == 1)
    fsdpd.wait_ready("coordinator")
    clock("its pod is ready")
    step = step_of(fsdpd.wait_job(job_id, "is known to train", lambda job: job["state"] == "running"))
    fsdpd.wait_trains(job_id, step)
    clock("the job's next step is told")
    job = fsdpd.wait_succeeded(job_id)
    clock("the job has succeeded")
    assert job["attempt"] == 1 and not job["failed_attempts"], fsdpd.ctl("describe", job_id)


def test_an_agent_that_is_killed_costs_a_job_what_it_made_since_its_checkpoint(fsdpd):
    job_id = fsdpd.submit("agent-killed", STEPS)
    job = fsdpd.wait_trains(job_id)
    pod = fsdpd.agent_on("node-1")
    kill(fsdpd, pod, "fsdpd-agent")
    clock = Clock("agent killed")
    next_one = fsdpd.wait_job(job_id, "trains again", lambda now: goes_on(now, 2))
    clock("the job trains again")
    assert int(next_one["restored"]["step"]) >= int(job["checkpoints"][-1]["step"])
    now = fsdpd.agent_on("node-1")
    assert now["metadata"]["uid"] == pod["metadata"]["uid"] and restarts(now) == 1
    job = fsdpd.wait_succeeded(job_id)
    clock("the job has succeeded")
    assert job["attempt"] == 2 and len(job["failed_attempts"]) == 1, fsdpd.ctl("describe", job_id)


def test_a_node_whose_link_is_down_gets_its_ranks_back_with_the_link(fsdpd):
    """For longer than its agent's lease, and than Kubernetes waits before it takes the node for gone. The job needs both
    nodes."""
    name = next(each for each in fsdpd.cluster.nodes if each != fsdpd.place().name)
    job_id = fsdpd.submit("link-down", STEPS)
    fsdpd.wait_trains(job_id)
    pod, node = fsdpd.agent_on(name), fsdpd.cluster.nodes[name]
    node.plug(False)
    clock = Clock("link down")
    try:
        fsdpd.wait_job(job_id, "waits for the node", lambda job: job["state"] == "queued")
        clock("the job waits in the queue")
        wait_until("Kubernetes takes the node for gone", lambda: name not in fsdpd.cluster.ready_nodes())
        clock("Kubernetes takes the node for gone")
    finally:
        node.plug(True)
    clock = Clock("link up again")
    job = fsdpd.wait_job(job_id, "trains again", lambda now: goes_on(now, 2))
    clock("the job trains again")
    wait_until("the node is ready", lambda: name in fsdpd.cluster.ready_nodes())
    clock("Kubernetes takes the node for ready")
    assert fsdpd.agent_on(name)["metadata"]["uid"] == pod["metadata"]["uid"]
    job = fsdpd.wait_succeeded(job_id)
    clock("the job has succeeded")
    assert job["attempt"] == 2, fsdpd.ctl("describe", job_id)


def test_a_node_that_is_drained_loses_no_step(fsdpd):
    """That of the coordinator, first by `fsdpctl drain` and then by `kubectl drain`, as docs/deploy.md has it."""
    drained = fsdpd.place().name
    other = next(each for each in fsdpd.cluster.nodes if each != drained)
    fsdpd.ctl("cordon", other)  # So that the job is on the one that is drained.
    job_id = fsdpd.submit("drained", STEPS, resources={"nodes": 1, "ranks_per_node": 2})
    before = fsdpd.wait_trains(job_id)
    fsdpd.ctl("uncordon", other)
    clock = Clock("drain")
    fsdpd.ctl("drain", drained, "--wait")
    clock("fsdpctl drain says that the node is free")
    job = fsdpd.wait_job(job_id, "trains elsewhere", lambda now: goes_on(now, 2))
    clock("the job trains elsewhere")
    assert int(job["restored"]["step"]) >= step_of(before)
    fsdpd.typed(f"kubectl drain {drained} --ignore-daemonsets --delete-emptydir-data")
    fsdpd.wait_ready("coordinator")
    clock("kubectl drain is done, and the coordinator's pod is ready elsewhere")
    assert fsdpd.place().name == other
    fsdpd.wait_trains(job_id, step_of(job))
    clock("the job's next step is told")
    fsdpd.typed(f"kubectl uncordon {drained}")
    fsdpd.ctl("uncordon", drained)
    job = fsdpd.wait_succeeded(job_id)
    clock("the job has succeeded")
    assert job["attempt"] == 2 and not job["failed_attempts"], fsdpd.ctl("describe", job_id)


def test_the_next_release_is_applied_while_a_job_trains(fsdpd):
    """The coordinator's at once, which costs the job nothing; an agent's when its pod is deleted, before which ranks save."""
    for node in fsdpd.cluster.nodes.values():
        for name in ("fsdpd-coordinator", "fsdpd-agent"):
            run(*node.inside(fsdpd.cluster.built / "ctr", "--namespace", "k8s.io", "images", "tag",
                             *(f"docker.io/library/{name}:{release}" for release in (RELEASE, NEXT_RELEASE))))
    job_id = fsdpd.submit("upgraded", STEPS)
    fsdpd.wait_trains(job_id)
    agents = {name: each["metadata"]["uid"] for name, each in fsdpd.pods("agent").items()}
    clock = Clock("upgrade")
    fsdpd.apply(NEXT_RELEASE)
    fsdpd.typed("kubectl -n fsdpd rollout status statefulset/fsdpd-coordinator --timeout 5m")
    clock("the next coordinator is ready")
    assert image_of(fsdpd.pods("coordinator")["fsdpd-coordinator-0"]) == f"fsdpd-coordinator:{NEXT_RELEASE}"
    job = fsdpd.wait_trains(job_id, step_of(fsdpd.wait_job(job_id, "is known", bool)))
    clock("the job's next step is told")
    assert job["attempt"] == 1 and agents == {name: each["metadata"]["uid"] for name, each in fsdpd.pods("agent").items()}
    for attempt, node in enumerate(fsdpd.cluster.nodes, 2):
        step = step_of(fsdpd.wait_trains(job_id))
        clock = Clock(f"agent of {node} replaced")
        fsdpd.typed(f"kubectl -n fsdpd delete pod {fsdpd.agent_on(node)['metadata']['name']}")
        clock("its pod is gone")
        job = fsdpd.wait_job(job_id, "trains again", lambda now: goes_on(now, attempt))
        clock("the job trains again")
        assert int(job["restored"]["step"]) >= step
        assert image_of(fsdpd.agent_on(node)) == f"fsdpd-agent:{NEXT_RELEASE}"
    job = fsdpd.wait_succeeded(job_id)
    clock("the job has succeeded")
    assert [each["cause"] for each in job["failed_attempts"]] == ["drained", "drained"], fsdpd.ctl("describe", job_id)
