"""Tests of fsdpd on kubelets with overlays/cpu-test and the commands of docs/deploy.md: failures of pods, links and
nodes. Tests run in order, and each leaves the cluster healthy."""

import pytest

from harness.apiserver import image_of
from harness.installation import NEXT_RELEASE, RELEASE, Clock, Installation, block_of, goes_on, restarts, step_of
from harness.wait import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def fsdpd(kubelets, tmp_path_factory):
    with Installation(kubelets, tmp_path_factory.mktemp("faults")) as installed:
        yield installed


def test_documented_commands_install_overlay(fsdpd):
    """Uses overlays/cpu-test with volumes; test_apiserver.py applies overlays/gpu."""
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
    # As a person looks again: agents' first connections take a moment.
    fsdpd.typed(f"{forward}\nuntil [ $({look} | grep -c ^fsdpd-worker) = 2 ]; do sleep 0.2; done")
    clock("both nodes are listed, by a port-forward")


def test_first_job_trains_on_both_nodes(fsdpd):
    """A pod with fsdpctl's image submits the job."""
    clock = Clock("first job")
    fsdpd.typed(block_of("first-job.yaml"))
    fsdpd.typed("kubectl -n fsdpd wait --for=condition=complete --timeout=300s job/fsdpd-first-job")
    clock("it has succeeded")


def test_job_reads_and_saves_on_volumes(fsdpd):
    clock = Clock("job of 200 steps")
    job = fsdpd.wait_succeeded(fsdpd.submit("whole", 200))
    clock("it has succeeded")
    assert job["attempt"] == 1 and sorted(path.name for path in (fsdpd.volumes["checkpoints"] / "whole").iterdir())


def test_killed_coordinator_loses_no_step(fsdpd):
    job_id = fsdpd.submit("coordinator-killed")
    fsdpd.wait_trains(job_id)
    fsdpd.kill(fsdpd.pods("coordinator")["fsdpd-coordinator-0"], "fsdpd-coordinator")
    clock = Clock("coordinator killed")
    wait_until("its container is started again", lambda: restarts(fsdpd.pods("coordinator")["fsdpd-coordinator-0"]) == 1)
    fsdpd.wait_ready("coordinator")
    clock("its pod is ready")
    fsdpd.wait_next_step(job_id)
    clock("the job's next step is told")
    job = fsdpd.end(job_id)
    assert job["attempt"] == 1 and not job["failed_attempts"], fsdpd.ctl("describe", job_id)


def test_killed_agent_loses_only_steps_since_checkpoint(fsdpd):
    job_id = fsdpd.submit("agent-killed")
    job = fsdpd.wait_trains(job_id)
    node = fsdpd.place().name  # Not the one whose link is down next: a second end in a row cordons a node.
    pod = fsdpd.agent_on(node)
    fsdpd.kill(pod, "fsdpd-agent")
    clock = Clock("agent killed")
    next_one = fsdpd.wait_job(job_id, "trains again", lambda now: goes_on(now, 2))
    clock("the job trains again")
    assert int(next_one["restored"]["step"]) >= int(job["checkpoints"][-1]["step"])
    now = fsdpd.agent_on(node)
    assert now["metadata"]["uid"] == pod["metadata"]["uid"] and restarts(now) == 1
    job = fsdpd.end(job_id)
    assert job["attempt"] == 2 and len(job["failed_attempts"]) == 1, fsdpd.ctl("describe", job_id)


def test_node_recovers_after_link_down(fsdpd):
    """The link is down for longer than the agent's lease and than Kubernetes' toleration. The job needs both nodes."""
    name = next(each for each in fsdpd.cluster.nodes if each != fsdpd.place().name)
    job_id = fsdpd.submit("link-down")
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
    job = fsdpd.end(job_id)
    assert job["attempt"] == 2, fsdpd.ctl("describe", job_id)


def test_drained_node_loses_no_step(fsdpd):
    """Drains the coordinator's node first by `fsdpctl drain` and then by `kubectl drain`, as in docs/deploy.md."""
    drained = fsdpd.place().name
    other = next(each for each in fsdpd.cluster.nodes if each != drained)
    fsdpd.ctl("cordon", other)  # So that the job is on the one that is drained.
    job_id = fsdpd.submit("drained", resources={"nodes": 1, "ranks_per_node": 2})
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
    job = fsdpd.end(job_id)
    assert job["attempt"] == 2 and not job["failed_attempts"], fsdpd.ctl("describe", job_id)


def test_upgrade_during_training(fsdpd):
    """The coordinator restarts immediately without an effect on the job; an agent restarts when its pod is deleted,
    after its ranks saved."""
    fsdpd.tag(NEXT_RELEASE)
    job_id = fsdpd.submit("upgraded")
    fsdpd.wait_trains(job_id)
    agents = {name: each["metadata"]["uid"] for name, each in fsdpd.pods("agent").items()}
    clock = Clock("upgrade")
    fsdpd.apply(NEXT_RELEASE)
    fsdpd.typed("kubectl -n fsdpd rollout status statefulset/fsdpd-coordinator --timeout 5m")
    clock("the next coordinator is ready")
    assert image_of(fsdpd.pods("coordinator")["fsdpd-coordinator-0"]) == f"fsdpd-coordinator:{NEXT_RELEASE}"
    job = fsdpd.wait_next_step(job_id)
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
    job = fsdpd.end(job_id)
    assert [each["cause"] for each in job["failed_attempts"]] == ["drained", "drained"], fsdpd.ctl("describe", job_id)
