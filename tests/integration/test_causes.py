"""Tests of failure causes: the cause decides between a retry, no retry, and a cordon of the node."""

import re

import grpc
import pytest

from harness.specs import ENDLESS, corpus, one_rank, spec
from harness.stubs import coordinator, event
from harness.wait import wait_until


def cause_of(job):
    return event.FailureCause.Name(job.failure.cause).removeprefix("FAILURE_CAUSE_")


def attempts_of(job):
    names = [event.FailureCause.Name(each.cause) for each in job.failed_attempts]
    return [(each.attempt, name.removeprefix("FAILURE_CAUSE_")) for each, name in zip(job.failed_attempts, names)]


def tokens(path):
    return {"synthetic": None, "tokens": [{"path": str(path), "type": "u16"}]}


def test_token_outside_vocabulary_fails_job_without_retry(cluster, tmp_path):
    small = {"llama": {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "layers": 1, "heads": 4}}
    job_id = cluster.submit(spec(model=small, data=tokens(corpus(tmp_path / "corpus.txt")),
                                 restart={"max_attempts": 5}))
    job = cluster.wait_state(job_id, "FAILED")
    assert (job.attempt, cause_of(job), job.failure.error_class.permanent) == (1, "DATA", True), job
    assert re.search("failed by its data: .*corpus.txt.*; another attempt would fail in the same way", job.reason), job.reason
    assert "failure of attempt 1 (data):" in cluster.ctl("describe", job_id).expect(0).out
    assert re.search(r'^fsdpd_rank_failures_total{cause="data"} [1-9]', cluster.scrape(job.failure.node), re.M)


@pytest.mark.parametrize("field", ["data.tokens[0].path", "checkpoint.load", "checkpoint.dir"])
def test_wrong_path_fails_job_without_retry(cluster, tmp_path, field):
    """Regression: the job was launched again and failed with the same error."""
    used = tmp_path / "used"
    if field == "checkpoint.dir":
        cluster.wait_state(cluster.submit(spec(name="before", checkpoint={"dir": str(used)})), "SUCCEEDED")
    wrong, cause, words = {
        "data.tokens[0].path": ({"data": tokens(tmp_path / "nowhere.bin")}, "DATA", "nowhere.bin: open: No such file"),
        "checkpoint.load": ({"checkpoint": {"load": str(tmp_path / "nowhere")}}, "CONFIGURATION",
                            f"checkpoint.load: no checkpoint at {tmp_path}/nowhere"),
        "checkpoint.dir": ({"checkpoint": {"dir": str(used)}}, "CONFIGURATION", "belongs to another run"),
    }[field]
    made = spec(restart={"max_attempts": 5}, **wrong)
    reported = cluster.ctl("validate", "-f", cluster.write_spec(made, "wrong.yaml")).expect(0).err
    assert re.search(rf"wrong.yaml: not checked on the nodes: .*{re.escape(field)}", reported), reported
    job_id = cluster.submit(made)
    job = cluster.wait_state(job_id, "FAILED")
    assert attempts_of(job) == [(1, cause)], job
    again = "another attempt would fail in the same way|not launched again before its first step: .*`fsdpctl retry"
    assert re.search(f"{re.escape(words)}(.|\n)*; ({again})", job.reason), job.reason


def test_checkpoint_of_other_model_fails_job_without_retry(cluster, tmp_path):
    made = cluster.submit(spec(name="made", checkpoint={"dir": str(tmp_path / "made")}))
    cluster.wait_state(made, "SUCCEEDED")
    other = {"llama": {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 64, "layers": 2, "heads": 4}}
    job_id = cluster.submit(spec(model=other, restart={"max_attempts": 5}, train={"steps": 9},
                                 checkpoint={"load": str(tmp_path / "made")}))
    job = cluster.wait_state(job_id, "FAILED")
    assert (job.attempt, cause_of(job)) == (1, "CONFIGURATION"), job
    assert "failed by its configuration: " in job.reason, job.reason


def kill_agent(cluster, name):
    """Kills and restarts an agent, like a node that reboots after a crash."""
    cluster.agents[name].kill()
    cluster.start_agent(name)


def test_node_is_cordoned_after_two_agent_kills(own):
    with own() as cluster:
        job_id = cluster.submit(spec(steps=ENDLESS, restart={"max_attempts": 9}))
        for attempt in (1, 2):
            wait_until(f"attempt {attempt} makes a step",
                       lambda: cluster.job(job_id).attempt == attempt and cluster.job(job_id).last_step.step >= 2)
            assert not cluster.node("node-1").HasField("cordon")
            kill_agent(cluster, "node-1")
        wait_until("the job says why it waits",
                   lambda: "node-1 is cordoned (two attempts in a row failed on this node" in cluster.job(job_id).reason)
        job = cluster.job(job_id)
        assert attempts_of(job) == [(1, "NODE"), (2, "NODE")] and cluster.state(job_id) == "QUEUED"
        shown = cluster.ctl("nodes").expect(0).out
        assert re.search(r"^node-1 +cordoned .*\n(.*\n)*node-1 is cordoned by the coordinator since \d{4}-", shown, re.M)
        cluster.coordinator.kill()
        cluster.start_coordinator(listen=cluster.address)
        cluster.wait_nodes(2)
        assert cluster.node("node-1").cordon.automatic and not cluster.node("node-0").HasField("cordon")
        # What one node can take runs there.
        cluster.wait_state(cluster.submit(spec(resources={"nodes": 1})), "SUCCEEDED")
        assert cluster.ctl("uncordon", "node-1").expect(0).out == "node-1 open\n"
        wait_until("the job goes on", lambda: cluster.job(job_id).attempt == 3 and cluster.job(job_id).last_step.step >= 2)
        assert re.search(r"failed attempts:\n +ATTEMPT +CAUSE.*\n +1 +node +node-1 +\d+\n +2 +node +node-1",
                         cluster.ctl("describe", job_id).expect(0).out)
        cluster.cancel(job_id)


def test_cordoned_node_keeps_running_jobs_only(own):
    with own(agents=1) as cluster:
        running = cluster.submit(one_rank(steps=ENDLESS))
        cluster.wait_step(running, 1)
        assert cluster.ctl("cordon", "node-0", "--reason", "a fan is broken").expect(0).out == "node-0 cordoned\n"
        submitted = cluster.ctl("submit", "-f", cluster.write_spec(one_rank(steps=2, name="waits"))).expect(0)
        assert "node-0 is cordoned (a fan is broken)" in submitted.err, "it is warned of"
        waits = next(job.id for job in cluster.jobs() if job.id.startswith("waits-"))
        wait_until("the next one says why it waits",
                   lambda: "node-0 is cordoned (a fan is broken)" in cluster.job(waits).reason)
        step = cluster.job(running).last_step.step
        cluster.wait_step(running, step + 3)
        assert cluster.ctl("uncordon", "node-0").expect(0).out == "node-0 open\n"
        cluster.wait_state(waits, "SUCCEEDED")
        cluster.cancel(running)


@pytest.mark.parametrize("command", ["cordon", "uncordon"])
def test_unknown_node_is_reported(cluster, command):
    output = cluster.ctl(command, "nod-0").expect(4)
    assert "[NODE_NOT_FOUND]" in output.err
    assert "node" in cluster.ctl(command, "no/de").expect(2).err
    with pytest.raises(grpc.RpcError) as refused:
        cluster.api().CordonNode(coordinator.CordonNodeRequest(node="node-0", reason="x" * 1025), timeout=60)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not any(node.HasField("cordon") for node in cluster.nodes())
