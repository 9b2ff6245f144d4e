"""Tests of environment variables of jobs: every rank has the variables of the spec, and only permitted ones."""

import os
import pathlib
import signal

from harness.specs import ENDLESS, spec
from harness.wait import wait_until


def environment(process):
    return pathlib.Path(f"/proc/{process.pid}/environ").read_bytes().decode().split("\0")


def test_all_ranks_have_job_variables(own):
    with own(agents=0) as cluster:
        for node in ("node-0", "node-1"):
            cluster.start_agent(node)
        made = spec(steps=ENDLESS, restart={"max_attempts": 2},
                    env={"NCCL_DEBUG": "WARN", "MY_APP_MODE": "a b=c"})
        path = cluster.write_spec(made)
        job_id = cluster.ctl("submit", "-f", path).expect(0).out.split()[0]
        for attempt in (1, 2):
            wait_until(f"attempt {attempt} makes a step",
                       lambda: cluster.job(job_id).attempt == attempt and cluster.job(job_id).last_step.step >= 1)
            ranks = cluster.all_ranks()
            assert len(ranks) == 4
            for rank in ranks:
                found = environment(rank)
                assert "NCCL_DEBUG=WARN" in found and "MY_APP_MODE=a b=c" in found, found
            os.kill(ranks[0].pid, signal.SIGKILL)
        recorded = {each.name: each.value for each in cluster.job(job_id).resolved.env}
        assert recorded == {"NCCL_DEBUG": "WARN", "MY_APP_MODE": "a b=c"}
        cluster.cancel_all()


def test_ranks_have_assigned_cores(own):
    with own(agents=0) as cluster:
        cluster.start_agent("node-0")
        cluster.start_agent("node-1", rank_cores="all")
        job_id = cluster.submit(spec(steps=ENDLESS))
        cluster.wait_step(job_id, 1)
        reported = [each for rank in cluster.all_ranks() for each in environment(rank) if each.startswith("FSDPD_RANK_CORES=")]
        assert sorted(reported) == 2 * ["FSDPD_RANK_CORES=all"] + 2 * ["FSDPD_RANK_CORES=near"]
        cluster.cancel_all()


def test_job_runs_only_where_variables_are_allowed(own):
    with own(agents=1) as cluster:
        cluster.start_agent("node-9", allow_env="CUDA_CACHE_*")
        made = spec(steps=2, train={"global_batch": 1}, resources={"nodes": 1, "ranks_per_node": 1},
                    env={"CUDA_CACHE_PATH": str(cluster.directory / "cache")})
        path = cluster.write_spec(made)
        job_id = cluster.ctl("submit", "-f", path).expect(0).out.split()[0]
        assert [place.node for place in cluster.wait_state(job_id, "SUCCEEDED").placements] == ["node-9"]
        for name in ("LD_PRELOAD", "NCCL_NET_PLUGIN", "CUDA_LOG_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
            made["env"] = {name: "/tmp/x.so"}
            refused = cluster.ctl("submit", "-f", cluster.write_spec(made)).expect(3)
            assert "env[0].name" in refused.err and f"--allow-env {name}" in refused.err, refused
