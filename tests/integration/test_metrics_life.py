"""How long a metric lives: it follows its rank, and outlives the coordinator."""

import os
import signal

from harness.prometheus import Prometheus
from harness.specs import ENDLESS, spec
from harness.wait import wait_until


def value(cluster, node, name, *labels):
    """The sum of a metric's samples that carry all of `labels`, None when there is none."""
    found = [float(line.rsplit(" ", 1)[1]) for line in cluster.scrape(node).splitlines()
             if line.startswith((name + "{", name + " ")) and all(label in line for label in labels)]
    return sum(found) if found else None


def test_an_ended_rank_is_down_and_keeps_its_totals(cluster):
    job_id = cluster.submit(spec(steps=5))
    cluster.wait_state(job_id, "SUCCEEDED")
    of_job = f'fsdpd_job="{job_id}"'
    wait_until("its ranks are down", lambda: value(cluster, "node-0", "fsdpd_rank_up", of_job) == 0)
    assert value(cluster, "node-0", "fsdpd_steps_total", of_job) == 10, "two ranks, five steps each"
    assert value(cluster, "node-0", "fsdpd_agent_ranks") == 0


def test_a_job_that_failed_is_told_from_one_that_was_cancelled(cluster):
    failed, cancelled = (cluster.submit(spec(steps=ENDLESS, resources={"ranks_per_node": 1})) for _ in range(2))
    for job_id in (failed, cancelled):
        cluster.wait_step(job_id, 1)
    victim = next(each for each in cluster.all_ranks() if f"/{failed}/" in os.readlink(f"/proc/{each.pid}/fd/1"))
    os.kill(victim.pid, signal.SIGKILL)
    cluster.cancel(cancelled)
    cluster.wait_state(failed, "FAILED")
    told = [value(cluster, node, "fsdpd_rank_failed", f'fsdpd_job="{failed}"') for node in ("node-0", "node-1")]
    assert 1 in told, told
    for node in ("node-0", "node-1"):
        assert value(cluster, node, "fsdpd_rank_failed", f'fsdpd_job="{cancelled}"') is None


def test_metrics_do_not_need_the_coordinator(own):
    with own() as cluster:
        job_id = cluster.submit(spec(steps=ENDLESS))
        cluster.wait_step(job_id, 2)
        cluster.coordinator.kill()
        wait_until("the agent says that it is alone",
                   lambda: value(cluster, "node-0", "fsdpd_agent_connected") == 0)
        steps = value(cluster, "node-0", "fsdpd_steps_total", f'fsdpd_job="{job_id}"')
        wait_until("steps go on", lambda: value(cluster, "node-0", "fsdpd_steps_total") > steps)
        cluster.start_coordinator(listen=cluster.address)
        cluster.wait_nodes(2)
        wait_until("the agent is back", lambda: value(cluster, "node-0", "fsdpd_agent_connected") == 1)
        cluster.cancel(job_id)


def test_what_was_killed_raises_alerts(own, tmp_path):
    """None was raised by an agent's kill -9, nor for its job, nor by the coordinator's. That they fire half a minute
    after they are raised is for dashboards/rules_test.yml."""
    with own() as cluster:
        job_id = cluster.submit(spec(steps=ENDLESS))
        cluster.wait_step(job_id, 2)
        with Prometheus(tmp_path / "prometheus", list(cluster.metrics.values()), cluster.mark) as server:
            def raised(alert, **labels):
                wanted = "".join(f', {label}="{text}"' for label, text in labels.items())
                return server.query(f'ALERTS{{alertname="{alert}"{wanted}}}')

            up = f'fsdpd_rank_up{{fsdpd_job="{job_id}"}}'
            wait_until("all ranks were scraped", lambda: len(server.query(up)) == 4)
            assert not server.query("ALERTS")
            cluster.agents["node-1"].kill()
            wait_until("the agent is missed", lambda: raised("FsdpdAgentDown", instance=cluster.metrics["node-1"]))
            wait_until("its ranks are missed", lambda: raised("FsdpdRanksLost", fsdpd_job=job_id))
            wait_until("the job has failed", lambda: raised("FsdpdJobFailed", fsdpd_job=job_id))
            cluster.coordinator.kill()
            wait_until("the coordinator is missed", lambda: raised("FsdpdCoordinatorDown"))
            assert not raised("FsdpdAgentDown", instance=cluster.metrics["node-0"])
