"""Tests of the coordinator's /metrics, read by a real Prometheus together with the agents', and of alerts for injected
failures."""

import json
import os
import pathlib
import re
import runpy
import signal
import socket
import subprocess
import threading

import grpc
import pytest

from harness.cluster import Cluster, rank_of
from harness.programs import ROOT, program
from harness.prometheus import Prometheus
from harness.small_disk import fill, small_disk
from harness.specs import ENDLESS, spec, to_message
from harness.stubs import coordinator, event
from harness.wait import wait_until

TABLES = runpy.run_path(ROOT / "docs/metrics.py")
CAUSES = {"queue", "preflight", "start", "load", "step", "exposed", "save", "replay", "restart", "hang", "pause", "stop", "other"}
SPIKE_BYTES = 64 << 20  # As fsdp/model/testing/spike_plugin.cc has it.


def exported(text):
    """Returns {name: (kind, help)}."""
    kinds = dict(re.findall(r"^# TYPE (fsdpd_\w+) (\w+)$", text, re.MULTILINE))
    return {name: (kinds[name], text_of) for name, text_of in re.findall(r"^# HELP (fsdpd_\w+) (.*)$", text, re.MULTILINE)}


def value(text, line):
    found = re.search(rf"^{re.escape(line)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else None


@pytest.fixture(scope="module")
def job(shared):
    shared.wait_idle()
    job_id = shared.submit(spec(steps=ENDLESS, name="told"))
    shared.wait_step(job_id, 3)
    yield job_id
    shared.cancel(job_id)


def test_daemons_export_documented_metrics(shared, job):
    for daemon, text in (("coordinator", shared.scrape_coordinator()), ("agent", shared.scrape("node-0"))):
        rows = TABLES["rows"](daemon)
        reported = exported(text)
        assert reported and {name: (rows[name]["kind"], rows[name]["help"]) for name in reported} == reported
        for name, labels in re.findall(r"^(fsdpd_\w+?)(?:_bucket|_sum|_count)?\{([^}]*)\}", text, re.MULTILINE):
            output = set(filter(None, rows[name]["labels"].split(", ")))
            assert set(re.findall(r'(\w+)="', labels)) - {"le"} == output, name


def test_daemons_export_process_metrics(shared):
    for text in (shared.scrape_coordinator(), shared.scrape("node-0")):
        assert all(value(text, name) for name in TABLES["rows"]("process"))


def test_coordinator_recovers_from_descriptor_exhaustion(tmp_path):
    """gRPC stops listening forever when accept() finds no free descriptor."""
    with Cluster(tmp_path / "cluster", start=False) as cluster:
        cluster.coordinator_prefix = ["prlimit", "--nofile=128:128"]
        cluster.start_coordinator()
        host, port = cluster.address.rsplit(":", 1)
        idle = [socket.create_connection((host, int(port))) for _ in range(200)]
        log = wait_until("connections are refused", lambda: "rejected connections" in cluster.coordinator.text() and cluster.coordinator.text())
        assert log.count("rejected connections") == 1
        full = cluster.scrape_coordinator()
        assert value(full, "process_open_fds") > 0.8 * value(full, "process_max_fds")
        refused = cluster.ctl("nodes")
        assert refused.code == 5 and cluster.address in refused.err, refused
        for each in idle:
            each.close()
        wait_until("the connections are closed", lambda: value(cluster.scrape_coordinator(), "process_open_fds") < 100)
        cluster.ctl("nodes").expect(0)


def test_exports_jobs_agents_and_calls(shared, job):
    text = shared.scrape_coordinator()
    assert value(text, "fsdpd_coordinator_leader") == 1
    assert value(text, 'fsdpd_jobs{state="RUNNING"}') == 1 and value(text, 'fsdpd_jobs{state="PAUSED"}') == 0
    assert value(text, 'fsdpd_agents{state="ready"}') == 2
    assert value(text, 'fsdpd_slots{state="held"}') == 4 and value(text, 'fsdpd_slots{state="free"}') == 0
    assert value(text, 'fsdpd_rpc_seconds_count{method="SubmitJob",code="OK"}') >= 1
    assert value(text, 'fsdpd_store_seconds_count{operation="Insert"}') >= 1
    assert value(text, "fsdpd_queue_wait_seconds_count") >= 1 and value(text, "fsdpd_tick_seconds_count") > 0
    assert value(text, 'fsdpd_state_bytes') > 4096 and value(text, "fsdpd_events_total") > 0
    refused = value(text, 'fsdpd_submits_total{outcome="refused"}')
    faults = value(text, 'fsdpd_submit_violations_total{rule="global_batch_divisible"}')
    with pytest.raises(grpc.RpcError):
        shared.api().SubmitJob(coordinator.SubmitJobRequest(spec=to_message(spec(train={"global_batch": 3}))), timeout=60)
    text = shared.scrape_coordinator()
    assert value(text, 'fsdpd_submits_total{outcome="refused"}') == refused + 1
    assert value(text, 'fsdpd_submit_violations_total{rule="global_batch_divisible"}') == faults + 1


def test_exports_predicted_step_time(shared, job, tmp_path):
    (tmp_path / "job.yaml").write_text(json.dumps(spec(steps=ENDLESS, name="told")))
    plan = json.loads(shared.ctl("plan", "-f", tmp_path / "job.yaml", "-o", "json").expect(0).out)["prediction"]
    text = wait_until("the prediction is made", lambda: f'fsdpd_job_mfu_ratio{{fsdpd_job="{job}"}}' in (
        now := shared.scrape_coordinator()) and now)
    reported = {part: value(text, f'fsdpd_job_predicted_step_seconds{{fsdpd_job="{job}",part="{part}"}}') for part in ("compute", "exposed", "rest")}
    assert reported["compute"] == pytest.approx(plan["compute_seconds"]) and sum(reported.values()) == pytest.approx(plan["step_seconds"])
    predicted, reached = (value(text, f'fsdpd_job_{name}_ratio{{fsdpd_job="{job}"}}') for name in ("predicted_mfu", "mfu"))
    assert predicted == pytest.approx(plan["mfu"]) and 0 < reached < 1


def test_ledger_sums_to_time_since_admission(shared, job):
    text = shared.scrape_coordinator()
    reported = dict(re.findall(rf'^fsdpd_job_seconds\{{fsdpd_job="{job}",cause="(\w+)"\}} (\S+)$', text, re.MULTILINE))
    assert set(reported) == CAUSES and float(reported["step"]) + float(reported["exposed"]) > 0
    described = shared.job(job)
    ledger = described.ledger
    shares = {field.name: seconds for field, seconds in ledger.ListFields() if field.name.endswith("_seconds")}
    wall = (ledger.until_unix_nanos - described.create_unix_nanos) * 1e-9
    # A job's dates are the wall clock's, and a ledger's time the monotonic one's.
    assert sum(shares.values()) == pytest.approx(wall, abs=2e-2), shares
    # On a busy machine steps are less than 1% of the time at first.
    wait_until("describe shows the share of steps", lambda: re.search(
        r"^time: .*: .*(step|exposed) \d+%", shared.ctl("describe", job).expect(0).out, re.MULTILINE))


def test_names_slow_rank_and_node(shared, job):
    victim = next(each for each in shared.all_ranks() if rank_of(each) == 2)
    over = threading.Event()

    def slow_down():  # It runs for a fifth of the time; a hang it is not.
        try:
            while not over.wait(0.005):  # Less than a step: each is hit, and not the pause after it.
                os.kill(victim.pid, signal.SIGSTOP)
                over.wait(0.02)
                os.kill(victim.pid, signal.SIGCONT)
        finally:
            os.kill(victim.pid, signal.SIGCONT)

    def slowest():
        ranks = shared.job(job).slowest_ranks
        return ranks[0] if ranks and ranks[0].rank == 2 and ranks[0].score > 1.3 else None

    slowed = threading.Thread(target=slow_down)
    slowed.start()
    try:
        found = wait_until("the slow rank is named", slowest)
        assert found.node == "node-1" and found.seconds > 0, found
        line = f'fsdpd_job_slowest_rank_score{{fsdpd_job="{job}",rank="2",fsdpd_node="node-1"}}'
        assert wait_until("the page has it", lambda: value(shared.scrape_coordinator(), line)) > 1
        for screen in (["top", "--once"], ["get", "-o", "wide"]):
            wait_until(f"{screen[0]} shows it",
                       lambda requested=screen: re.search(r" 2 on node-1, \d+\.\d\dx ", shared.ctl(*requested).expect(0).out))
        assert re.search(r"^slowest ranks:\n.*\n  2 +node-1 ", shared.ctl("describe", job).expect(0).out, re.MULTILINE)
    finally:
        over.set()
        slowed.join()
    assert shared.job(job).attempt == 1


def test_ended_job_keeps_ledger_and_leaves_metrics(shared):
    job_id = shared.submit(spec(steps=5, name="short"))
    shared.cancel(job_id)
    shared.wait_state(job_id, "CANCELLED")
    ended = shared.job(job_id)
    shares = [seconds for field, seconds in ended.ledger.ListFields() if field.name.endswith("_seconds")]
    assert sum(shares) == pytest.approx((ended.end_unix_nanos - ended.create_unix_nanos) * 1e-9, abs=2e-2)
    assert job_id not in shared.scrape_coordinator()


def test_stopped_rank_raises_alert(tmp_path):
    """The agent kills the rank and counts it; the alert fires after that, even while another attempt runs."""
    with Cluster(tmp_path / "cluster") as cluster:
        job_id = cluster.submit(spec(steps=ENDLESS, restart={"max_attempts": 2, "hang_seconds": 5}))
        cluster.wait_step(job_id, 10)  # The first few may take long.
        with Prometheus(tmp_path / "prometheus", list(cluster.metrics.values()), cluster.mark,
                        [cluster.coordinator_metrics]) as server:
            wait_until("ranks were scraped", lambda: len(server.query(f'fsdpd_rank_up{{fsdpd_job="{job_id}"}} == 1')) == 4)
            assert not server.query('ALERTS{alertstate="firing"}'), "one that is pending may be of a busy machine"
            victim = next(each for each in cluster.all_ranks() if rank_of(each) == 2)
            os.kill(victim.pid, signal.SIGSTOP)
            fired = wait_until("the hang is told", lambda: server.query('ALERTS{alertname="FsdpdHang", alertstate="firing"}'))
            assert [labels["instance"] for labels, _ in fired] == [cluster.metrics["node-1"]], "where the rank ran"
            wait_until("the coordinator counts it", lambda: server.query('fsdpd_job_failures_total{cause="hang"} == 1'))
            wait_until("and that it went on where it was", lambda: server.query(
                'fsdpd_job_restarts_total{cause="hang", mode="in_place"} == 1'))
            wait_until("what it cost is reported, to the steps that were made again", lambda: len(server.query(
                "fsdpd_recovery_seconds_count == 1")) == 6)
            spent = {labels["phase"]: seconds for labels, seconds in server.query("fsdpd_recovery_seconds_sum")}
            assert min(spent[phase] for phase in ("stop", "queue", "start", "replay")) > 0, spent
            up, failed = ([each.unix_nanos for each in cluster.job(job_id).events if each.kind == kind][-1]
                          for kind in (event.EVENT_KIND_READY, event.EVENT_KIND_ATTEMPT_FAILED))
            assert sum(spent.values()) - spent["replay"] == pytest.approx((up - failed) * 1e-9), spent
        cluster.cancel_all()


def test_memory_growth_raises_alert_with_instruction(tmp_path):
    plugin = program("fsdp/model/testing/spike_plugin.so")
    described = subprocess.run([program("fsdp/fsdpd-rank"), "--describe-plugin", plugin, "--args", str(tmp_path)],
                               capture_output=True, text=True, check=True, timeout=180)
    (tmp_path / "spikes.json").write_text(described.stdout)
    made = spec(steps=ENDLESS, model={"llama": None, "plugin": {"path": plugin, "description": str(tmp_path / "spikes.json")}})
    with Cluster(tmp_path / "cluster", agents=0) as cluster:
        for node in ("node-0", "node-1"):
            cluster.start_agent(node, plugin_dir=pathlib.Path(plugin).parent)
        job_id = cluster.ctl("submit", "-f", cluster.write_spec(made)).expect(0).out.strip()
        cluster.wait_step(job_id, 10)
        with Prometheus(tmp_path / "prometheus", list(cluster.metrics.values()), cluster.mark) as server:
            alerts = f'ALERTS{{alertname="FsdpdMemorySpikes", alertstate="firing", fsdpd_job="{job_id}"}}'
            few = f'fsdpd_memory_spikes_total{{fsdpd_job="{job_id}"}} <= 2'  # The first steps may look like one.
            wait_until("ranks without spikes were scraped", lambda: len(server.query(few)) == 4)
            assert not server.query(alerts)
            (tmp_path / "spikes").touch()
            fired = wait_until("all ranks' spikes are told", lambda: len(found := server.query(alerts)) == 4 and found)
            assert {labels["rank"] for labels, _ in fired} == {"0", "1", "2", "3"}
            named = server.query(f'fsdpd_memory_spike_excess_bytes{{fsdpd_job="{job_id}"}}')
            assert {labels["instruction"] for labels, _ in named} == {"Forward layer.0 mb 0"}, named
            assert all(excess == pytest.approx(SPIKE_BYTES, rel=0.1) for _, excess in named), named
        cluster.cancel_all()


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_hung_ranks_raise_alert_before_they_are_killed(tmp_path):
    """The alert fires after a minute without a step, while the job's hang limit is longer."""
    with Cluster(tmp_path / "cluster") as cluster:
        job_id = cluster.submit(spec(steps=ENDLESS, restart={"hang_seconds": 600}))
        cluster.wait_step(job_id, 10)
        with Prometheus(tmp_path / "prometheus", list(cluster.metrics.values()), cluster.mark) as server:
            victim = next(each for each in cluster.all_ranks() if rank_of(each) == 2)
            os.kill(victim.pid, signal.SIGSTOP)
            stale = f'ALERTS{{alertname="FsdpdStepStale", alertstate="firing", fsdpd_job="{job_id}"}}'
            found = wait_until("all ranks wait for it", lambda: len(found := server.query(stale)) == 4 and found)
            assert {labels["rank"] for labels, _ in found} == {"0", "1", "2", "3"}
            os.kill(victim.pid, signal.SIGCONT)
            wait_until("they go on", lambda: not server.query(stale))
        assert cluster.job(job_id).attempt == 1
        cluster.cancel_all()


def submit_until_refused(cluster):
    for number in range(200):  # What the database has of the disk already may take some.
        wants_more_nodes = spec(steps=5, name=f"more-{number}", resources={"nodes": 9}, train={"global_batch": 18})
        if cluster.ctl("submit", "-f", "-", stdin=json.dumps(wants_more_nodes)).code:
            return
    pytest.fail("a full disk took 200 jobs")


def test_injected_failures_raise_alerts(tmp_path):
    """A killed rank, a stopped agent, and a full disk of the coordinator. dashboards/rules_test.yml tests the alert for
    an agent that is absent for five minutes."""
    cluster = Cluster(tmp_path / "cluster")
    cluster.state_dir = tmp_path / "disk/state"
    with small_disk(tmp_path / "disk") as disk, cluster:
        killed = cluster.submit(spec(steps=ENDLESS, resources={"ranks_per_node": 1}))
        cluster.wait_step(killed, 2)
        with Prometheus(tmp_path / "prometheus", list(cluster.metrics.values()), cluster.mark,
                        [cluster.coordinator_metrics]) as server:
            def raised(alert, **labels):
                wanted = "".join(f', {label}="{text}"' for label, text in labels.items())
                return server.query(f'ALERTS{{alertname="{alert}"{wanted}}}')

            wait_until("all were scraped", lambda: len(server.query("up == 1")) == 3 and len(server.query(
                f'fsdpd_rank_up{{fsdpd_job="{killed}"}} == 1')) == 2 and server.query("fsdpd_coordinator_leader == 1"))
            assert not server.query("ALERTS")
            os.kill(cluster.all_ranks()[0].pid, signal.SIGKILL)
            wait_until("its job has failed", lambda: raised("FsdpdJobFailed", fsdpd_job=killed))
            wait_until("the coordinator counts it", lambda: server.query(
                'fsdpd_job_failures_total{cause="process"} == 1'))
            filler = fill(disk)
            submit_until_refused(cluster)
            wait_until("what cannot be stored is told", lambda: raised("FsdpdStoreFails", alertstate="firing"))
            filler.unlink()
            stopped = cluster.agents["node-1"].process
            stopped.send_signal(signal.SIGSTOP)
            try:
                wait_until("the stopped agent is missed", lambda: raised("FsdpdAgentsLost", state="lost"))
            finally:
                stopped.send_signal(signal.SIGCONT)
            cluster.wait_nodes(2)
            wait_until("the failed job was not launched again for half a minute",
                       lambda: raised("FsdpdJobFailed", alertstate="firing", fsdpd_job=killed))
        cluster.cancel_all()
