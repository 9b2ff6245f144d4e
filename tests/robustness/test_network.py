"""Silent network partitions between an agent and its coordinator."""

import pytest

from harness.cluster import Cluster
from harness.network import namespace
from harness.security import Security
from harness.specs import ENDLESS, one_rank
from harness.wait import wait_until


@pytest.fixture
def partitioned(tmp_path):
    """Yields (a cluster whose node-1 has its own network, that network)."""
    with namespace() as network:
        security = Security(tmp_path / "security", names=("localhost", "127.0.0.1", network.outer))
        cluster = Cluster(tmp_path / "cluster", start=False, security=security)
        with cluster:
            cluster.start_coordinator(listen=f"{network.outer}:0")
            cluster.agent_prefixes["node-1"] = network.prefix
            cluster.start_agent("node-1", 1)
            yield cluster, network
            network.repair()


def attached(cluster):
    return cluster.agents["node-1"].text().count("attached coordinator=")


def running_there(cluster):
    job_id = cluster.submit(one_rank(steps=ENDLESS, restart={"max_attempts": 3}))
    cluster.wait_step(job_id, 2)
    return job_id


def test_short_partition_keeps_ranks(partitioned):
    """Repaired after the agent noticed the partition, and before its node is lost."""
    cluster, network = partitioned
    job_id = running_there(cluster)
    rank = cluster.ranks("node-1")[0].pid
    before = cluster.job(job_id).last_step.step
    network.cut()
    wait_until("the agent has noticed", lambda: "not connected to coordinator" in cluster.agents["node-1"].text())
    network.repair()
    wait_until("the agent is attached again", lambda: attached(cluster) == 2)
    cluster.wait_step(job_id, before + 5)
    job = cluster.job(job_id)
    assert job.attempt == 1 and [each.pid for each in cluster.ranks("node-1")] == [rank], job
    cluster.cancel(job_id)


def test_long_partition_moves_job_and_ends_stale_rank(partitioned):
    cluster, network = partitioned
    job_id = running_there(cluster)
    stale = cluster.ranks("node-1")[0].pid
    network.cut()
    cluster.start_agent("node-0", 1, wait=False)
    wait_until("the next attempt runs elsewhere", lambda: cluster.job(job_id).attempt == 2
               and cluster.job(job_id).placements[0].node == "node-0" and cluster.job(job_id).last_step.step > 0)
    assert cluster.job(job_id).failure.node == "node-1" and cluster.job(job_id).failure.rank == -1
    assert stale in [each.pid for each in cluster.all_ranks()], "the stop order cannot reach the agent"
    network.repair()
    wait_until("the stale rank has ended", lambda: stale not in [each.pid for each in cluster.all_ranks()])
    cluster.wait_nodes(2)
    job = cluster.job(job_id)
    assert job.attempt == 2 and len(cluster.all_ranks()) == 1, job
    cluster.cancel(job_id)


def test_job_that_ends_during_partition_succeeds(partitioned):
    cluster, network = partitioned
    # Short enough to end before its node is lost, even on a slow machine.
    job_id = cluster.submit(one_rank(steps=100))
    cluster.wait_step(job_id, 1)
    network.cut()
    wait_until("the rank has finished", lambda: not cluster.all_ranks())
    network.repair()
    job = cluster.wait_state(job_id, "SUCCEEDED")
    assert job.attempt == 1 and job.last_step.step == 100, job
