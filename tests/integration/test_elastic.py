"""Tests of elastic jobs: after the loss of a node the job continues with fewer ranks, and later with all of them again.
The losses are those of a run with one break."""

import re

import pytest

from harness import checkpoints
from harness.training import EVERY, STEPS, Record, messages, saving, wait_committed
from harness.wait import wait_until


def test_elastic_job_shrinks_and_grows_again(own, whole, tmp_path):
    with own() as cluster:
        job_id = cluster.submit(saving(tmp_path, restart={"elastic": {"min_ranks": 2, "wait_seconds": 1}}))
        record = Record(cluster, job_id)
        known = wait_committed(cluster, job_id, 2 * EVERY)
        cluster.agents["node-1"].kill()
        wait_until("it goes on with two ranks",
                   lambda: cluster.job(job_id).HasField("shrunk") and cluster.state(job_id) == "RUNNING")
        job = cluster.job(job_id)
        assert [(each.node, each.ranks) for each in job.placements] == [("node-0", 2)] and job.attempt == 2
        assert (job.resolved.resources.nodes, job.resolved.train.global_batch) == (1, 4), "the samples of a step stay"
        assert (job.failed_attempts[0].ranks, job.spec.resources.nodes) == (4, 2)
        assert any(re.match("launching 2 of 4 ranks on node-0, because not all are available: ", text) for text in messages(job))
        assert '\nfsdpd_job_restarts_total{cause="node",mode="resized"} 1\n' in cluster.scrape_coordinator()
        assert " 2/4 " in cluster.ctl("get").expect(0).out
        assert "ranks:     2 of 4" in cluster.ctl("describe", job_id).expect(0).out
        step = wait_committed(cluster, job_id, job.restored.step + EVERY)
        cluster.start_agent("node-1")  # Until it is back, ranks of the first attempt may live there, and no pause ends.
        cluster.ctl("pause", job_id, "--wait").expect(0)
        cluster.ctl("resume", job_id).expect(0)
        job = cluster.wait_state(job_id, "SUCCEEDED")
        assert job.attempt == 3 and job.restored.step >= step >= known and not job.HasField("shrunk")
        assert sorted(each.node for each in job.placements) == ["node-0", "node-1"]
        losses = record.losses()
        assert set(dict(losses)) >= set(range(known + 1, STEPS + 1)), "no step was left out"
        # Other samples would make tenths of a difference; sums in another order make 1e-5 of it in so many steps.
        for at, loss in losses:
            assert loss == pytest.approx(whole.losses.get(at, loss), rel=1e-3), at
        assert len(set(dict(losses)) & set(whole.losses)) >= STEPS - known
        checkpoints.assert_whole(tmp_path / "run")


def test_rejects_elastic_job_that_cannot_shrink(cluster, tmp_path):
    made = saving(tmp_path, restart={"elastic": {"min_ranks": 3}})
    refused = cluster.ctl("submit", "-f", cluster.write_spec(made)).expect(3)
    assert "restart.elastic.min_ranks: " in refused.err and "[elastic_nothing_smaller]" in refused.err, refused.err
