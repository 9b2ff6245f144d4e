"""Tests of events: exactly once and in order over a restart, selection of jobs by labels, and events of a drain."""

import re
import time

import grpc
import pytest

from harness import stubs
from harness.clock import shifted_clock
from harness.processes import Daemon
from harness.programs import program
from harness.specs import ENDLESS
from harness.training import saving
from harness.wait import wait_until

LONE = {"nodes": 1, "ranks_per_node": 1}


def kinds(events):
    return [stubs.event.EventKind.Name(event.kind)[len("EVENT_KIND_"):] for event in events]


def listed(cluster, **filters):
    """Lists events over all pages of two events each."""
    events, token = [], ""
    while True:
        request = stubs.coordinator.ListEventsRequest(page_size=2, page_token=token, **filters)
        page = cluster.api().ListEvents(request, timeout=60, wait_for_ready=True)
        events += page.events
        token = page.next_page_token
        if not token:
            return events


def test_event_times_are_monotonic_with_clock_behind(own, tmp_path):
    with own(slots=1) as cluster:
        path = cluster.write_spec(saving(tmp_path / "job", name="dated", steps=ENDLESS, resources=LONE))
        job_id = cluster.ctl("submit", "-f", path).expect(0).out.split()[0]
        cluster.wait_step(job_id, 2)
        cluster.agents["node-1"].kill()
        wait_until("node-1 is lost", lambda: re.search(r"^node-1 +lost ", cluster.ctl("nodes").expect(0).out, re.MULTILINE))
        cluster.coordinator.kill()
        cluster.coordinator_prefix = shifted_clock(tmp_path, -3600)
        cluster.start_coordinator(listen=cluster.address)
        cluster.wait_nodes(1)
        path = cluster.write_spec(saving(tmp_path / "later", name="later", resources=LONE))
        later = cluster.ctl("submit", "-f", path).expect(0).out.split()[0]
        cluster.ctl("cancel", job_id, "--wait").expect(0)
        assert time.time() - cluster.job(later).create_unix_nanos / 1e9 > 3000, \
            "the coordinator's clock is behind"
        dates = [event.unix_nanos for event in listed(cluster)]
        assert dates == sorted(dates)
        for each in (job_id, later):  # The later job may go on between the two reads.
            wait_until("a job and the list have the same dates", lambda: [
                event.unix_nanos for event in cluster.job(each).events] == [
                    event.unix_nanos for event in listed(cluster, job=each)])
        ages = re.findall(r"^node-. .* (\S+) (\S+) ago ", cluster.ctl("nodes").expect(0).out, re.MULTILINE)
        assert len(ages) == 2 and all(unit in ("ms", "s") for _, unit in ages), ages


def test_events_are_unique_over_restart_and_drain(own, tmp_path):
    with own(slots=1) as cluster:
        path = cluster.write_spec(saving(tmp_path / "job", name="moved", steps=ENDLESS, resources=LONE,
                                         restart={"max_attempts": 1}))
        job_id = cluster.ctl("submit", "-f", path, "--label", "team=vision").expect(0).out.split()[0]
        cluster.wait_step(job_id, 7)
        watch = Daemon("events", [program("client/fsdpctl"), "--server", cluster.address, "events", "-w"],
                       cluster.directory / "events.txt", cluster.mark)
        wait_until("the first event is shown", lambda: "submitted" in watch.text())
        node, = [placement.node for placement in cluster.job(job_id).placements]
        cluster.ctl("drain", node, "--reason", "gets a new disk").expect(0)
        cluster.coordinator.kill()
        cluster.start_coordinator(listen=cluster.address)
        assert "is empty" in cluster.ctl("drain", node, "--reason", "gets a new disk", "--wait").expect(0).out
        wait_until("it runs elsewhere", lambda: cluster.state(job_id) == "RUNNING" and cluster.job(job_id).attempt == 2)
        job = cluster.job(job_id)
        assert [placement.node for placement in job.placements] != [node]
        assert job.restored.step >= 7, "nothing that it had trained is lost"
        assert not cluster.ranks(node)
        assert job_id in cluster.ctl("get", "-l", "team=vision,stage!=test").expect(0).out
        assert job_id not in cluster.ctl("get", "-l", "team!=vision").expect(0).out
        assert "no jobs match the selector" in cluster.ctl("cancel", "-l", "team=speech").expect(4).err
        cluster.ctl("cancel", "-l", "team!=speech").expect(2)
        cluster.ctl("cancel", "-l", "team=vision", "--wait").expect(0)
        cluster.ctl("uncordon", node).expect(0)

        events = listed(cluster)
        sequences = [event.sequence for event in events]
        assert sequences == sorted(set(sequences))
        of_job = kinds(listed(cluster, job=job_id))
        assert of_job[:3] == ["SUBMITTED", "LAUNCHED", "READY"] and of_job.count("DRAINED") == 1, of_job
        of_node = kinds(listed(cluster, node=node))
        assert of_node == ["LAUNCHED", "DRAINING", "DRAINED", "RANKS_EXITED", "NODE_DRAINED", "UNCORDONED"]
        assert [event.message for event in cluster.job(job_id).events] == [
            event.message for event in listed(cluster, job=job_id)], "one history, told in two places"
        wait_until("the last event is shown", lambda: "uncordoned" in watch.text())
        watch.stop()
        shown = [int(line.split()[0]) for line in watch.text().splitlines() if line.split()[0].isdigit()]
        assert shown == sequences, "the watch missed none and told none twice"
        with pytest.raises(grpc.RpcError) as refused:
            cluster.api().ListEvents(stubs.coordinator.ListEventsRequest(page_token="x"), timeout=60)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
