"""Tests of the preflight with real ranks: on CPUs it runs the measurements that GPUs run over NCCL."""

import re

from harness.specs import spec
from harness.stubs import coordinator
from harness.wait import wait_until

ALL = ["--preflight", "all"]


def states_of(job):
    return [coordinator.JobState.Name(event.state).removeprefix("JOB_STATE_") for event in job.events]


def never_done(directory):
    """A rank that never responds; it exits by a signal, and with its agent."""
    script = directory / "silent-rank"
    script.write_text("#!/bin/sh\nexec cat <&3 >/dev/null\n")
    script.chmod(0o755)
    return script


def test_passed_nodes_are_measured_once_a_day(own):
    with own(coordinator_flags=[*ALL, "--preflight-floor", "cpu:matmul_tflops=0.000001"]) as cluster:
        first = cluster.submit(spec(steps=3))
        job = cluster.wait_state(first, "SUCCEEDED")
        assert states_of(job)[:3] == ["QUEUED", "PREFLIGHT", "STARTING"], job.events
        assert "node-0, node-1 are measured first (preflight)" in job.events[1].message
        for name in ("node-0", "node-1"):
            result = cluster.node(name).preflight
            assert not result.violations and len(result.result.devices) == 2, result
            for number, device in enumerate(result.result.devices):
                assert (device.device, device.name) == (number, "cpu")
                assert device.matmul_flops > 1e6 and device.memory_bytes_per_second > 1e6
                assert device.all_gather_bytes_per_second > 1e3 and [pair.device for pair in device.pairs] == [1 - number]
        job = cluster.wait_state(cluster.submit(spec(steps=3)), "SUCCEEDED")
        assert "PREFLIGHT" not in states_of(job), job.events
        cluster.coordinator.stop()
        cluster.start_coordinator(listen=cluster.address)
        cluster.wait_nodes(2)
        job = cluster.wait_state(cluster.submit(spec(steps=3)), "SUCCEEDED")
        assert "PREFLIGHT" not in states_of(job), job.events
        shown = cluster.ctl("preflight", "node-0").expect(0).out
        assert re.match(r"node-0 has passed its preflight .* ago, in .*\n  DEVICE  NAME  PRODUCTS .*\n  0 +cpu ", shown), shown
        assert "[NODE_NOT_FOUND]" in cluster.ctl("preflight", "nod-0").expect(4).err


def test_node_below_limit_is_cordoned(own):
    with own(agents=1, coordinator_flags=[*ALL, "--preflight-floor", "cpu:matmul_tflops=1000"]) as cluster:
        job_id = cluster.submit(spec(steps=3, resources={"nodes": 1}))
        wait_until("the job says why it waits",
                   lambda: re.search(r"node-0 is cordoned \(preflight: device 0: product rate [0-9.]+ TFLOP/s, floor 1000; "
                                     r"device 1: ", cluster.job(job_id).reason))
        assert cluster.state(job_id) == "QUEUED"
        assert cluster.node("node-0").cordon.automatic
        shown = cluster.ctl("describe", "node", "node-0").expect(0).out
        assert "node-0 has not passed its preflight" in shown and "floor 1000" in shown
        assert "floor 1000" in cluster.ctl("preflight", "node-0").expect(7).out
        cluster.ctl("uncordon", "node-0").expect(0)
        job = cluster.wait_state(job_id, "SUCCEEDED")
        assert states_of(job).count("PREFLIGHT") == 1, job.events


def test_unresponsive_preflight_fails_after_timeout(own, tmp_path):
    with own(agents=0, coordinator_flags=[*ALL, "--preflight-limit-seconds", "1"]) as cluster:
        cluster.start_agent("node-0", rank_binary=never_done(tmp_path))
        job_id = cluster.submit(spec(steps=3, resources={"nodes": 1}))
        wait_until("the job says why it waits",
                   lambda: "node-0 is cordoned (preflight: devices 0, 1 were not done after" in cluster.job(job_id).reason)
        cluster.cancel(job_id)


def test_preflight_ends_by_cancel_pause_and_restart(own, tmp_path):
    with own(agents=0, coordinator_flags=ALL) as cluster:
        cluster.start_agent("node-0", rank_binary=never_done(tmp_path))
        jobs = [cluster.submit(spec(name=name, steps=3, resources={"nodes": 1})) for name in ("one", "two")]
        cluster.wait_state(jobs[0], "PREFLIGHT")
        cluster.ctl("pause", jobs[0], "--wait").expect(0)
        assert cluster.state(jobs[0]) == "PAUSED"
        wait_until("the other says what it waits for",
                   lambda: "held by its preflight" in cluster.job(jobs[1]).reason)
        cluster.coordinator.kill()
        cluster.start_coordinator(listen=cluster.address)
        cluster.wait_nodes(1)
        wait_until("the node is still measured", lambda: cluster.node("node-0").in_preflight)
        assert cluster.state(jobs[1]) == "QUEUED"
        cluster.agents["node-0"].kill()
        cluster.start_agent("node-0")
        cluster.ctl("resume", jobs[0]).expect(0)
        for job_id in jobs:
            cluster.wait_state(job_id, "SUCCEEDED")
        cluster.start_agent("node-1", rank_binary=never_done(tmp_path))
        waits = cluster.submit(spec(name="waits", steps=3))
        cluster.wait_state(waits, "PREFLIGHT")
        cluster.ctl("cancel", waits, "--wait").expect(0)
        assert cluster.state(waits) == "CANCELLED" and cluster.job(waits).attempt == 0
