"""Tests of the agents' metrics, read by a real Prometheus during a real job, and of all queries of the dashboards."""

import json
import math
import re
import subprocess
import time

import grpc
import pytest

from harness import dashboards
from harness.programs import program
from harness.prometheus import Prometheus
from harness.specs import ENDLESS, corpus, spec, to_message
from harness.stubs import coordinator
from harness.wait import wait_until

OPS = {"all_gather", "reduce_scatter", "all_reduce"}
COMPONENTS = {"main_params", "optimizer", "gradients", "replica", "gather_buffers", "reduce_buffers", "activations",
              "workspace", "library", "fragmentation"}
MEASURED = {"main_params", "optimizer", "gradients", "replica", "gather_buffers", "reduce_buffers", "arena_unused",
            "activations_and_workspace"}
COUNTERS = ["fsdpd_steps_total", "fsdpd_step_seconds_total", "fsdpd_tokens_total", "fsdpd_compute_seconds_total",
            "fsdpd_comm_seconds_total", "fsdpd_comm_exposed_seconds_total", "fsdpd_comm_bytes_total",
            "fsdpd_exposed_seconds_total", "fsdpd_data_wait_seconds_total", "fsdpd_skipped_steps_total",
            "fsdpd_memory_spikes_total", "fsdpd_device_mallocs_total", "fsdpd_device_frees_total", "fsdpd_allocations_total"]
GAUGES = ["fsdpd_step_seconds", "fsdpd_loss", "fsdpd_grad_norm",
          "fsdpd_last_step_timestamp_seconds", "fsdpd_memory_allocated_bytes",
          "fsdpd_memory_reserved_bytes",
          "fsdpd_memory_peak_bytes", "fsdpd_memory_plan_bytes", "fsdpd_rank_up"]
CHECKPOINTS = {"fsdpd_checkpoints_total", "fsdpd_checkpoint_failures_total", "fsdpd_checkpoint_stall_seconds_total",
               "fsdpd_checkpoint_last_step", "fsdpd_checkpoint_last_success_timestamp_seconds",
               "fsdpd_checkpoint_seconds", "fsdpd_checkpoint_bytes"}
# What scrape configurations, by annotations, PodMonitors or hand, put on every series: a label of ours of that name
# would be renamed, and all series of a target would have theirs.
SCRAPERS_LABELS = {"job", "instance", "namespace", "pod", "container", "service", "endpoint", "node", "host", "cluster"}


@pytest.fixture(scope="module")
def job(shared, tmp_path_factory):
    """Id of a job that runs until the module's tests are done."""
    shared.wait_idle()
    directory = tmp_path_factory.mktemp("watched")
    text = corpus(directory / "text.bin", tokens=500)
    made = spec(steps=ENDLESS, name="watched", data={"validation": [{"path": str(text), "type": "u8"}]},
                train={"evaluation": {"every_steps": 2}}, checkpoint={"dir": str(directory / "run"), "every_steps": 5})
    with pytest.raises(grpc.RpcError):  # A refusal, for the board that has them by rule.
        shared.api().SubmitJob(coordinator.SubmitJobRequest(spec=to_message(spec(train={"global_batch": 3}))), timeout=60)
    job_id = shared.submit(made)
    shared.wait_step(job_id, 3)
    yield job_id
    shared.cancel(job_id)


@pytest.fixture(scope="module")
def prometheus(shared, job, tmp_path_factory):
    with Prometheus(tmp_path_factory.mktemp("prometheus"), list(shared.metrics.values()), shared.mark,
                    [shared.coordinator_metrics]) as server:
        # Rates need several scrapes.
        wait_until("agents and coordinator were scraped five times",
                   lambda: len(server.query("count_over_time(up[5m]) >= 5")) == 3)
        yield server


def by_rank(prometheus, job, metric, suffix=""):
    found = prometheus.query(f'{metric}{{fsdpd_job="{job}"}}{suffix}')
    assert {labels["rank"] for labels, _ in found} == {"0", "1", "2", "3"}, f"{metric}: {found}"
    return found


@pytest.mark.parametrize("metric", COUNTERS + GAUGES)
def test_every_rank_exports(prometheus, job, metric):
    for labels, value in by_rank(prometheus, job, metric):
        assert math.isfinite(value) and value >= 0, (labels, value)


@pytest.mark.parametrize("metric", ["fsdpd_steps_total", "fsdpd_step_seconds_total", "fsdpd_tokens_total",
                                    "fsdpd_compute_seconds_total", "fsdpd_allocations_total"])
def test_work_counters_increase(prometheus, job, metric):
    for labels, rate in prometheus.query(f'rate({metric}{{fsdpd_job="{job}"}}[5m])'):
        assert rate > 0, (metric, labels)


def test_metrics_are_consistent(shared, prometheus, job):
    for labels, tokens in prometheus.query(f'fsdpd_tokens_total{{fsdpd_job="{job}"}} / fsdpd_steps_total'):
        assert tokens == 16, f"a rank's share of 4 samples of 16 tokens: {labels}"
    for labels, seconds in prometheus.query(f'fsdpd_step_seconds_total{{fsdpd_job="{job}"}}'):
        age = time.time() - shared.job(job).start_unix_nanos * 1e-9
        assert seconds <= age, f"steps take no more time than there is: {labels} {seconds}"
    for labels, share in prometheus.query(f'fsdpd_compute_seconds_total{{fsdpd_job="{job}"}} / '
                                          'fsdpd_step_seconds_total'):
        assert 0 < share <= 1.01, (labels, share)
    exposed = f'fsdpd_comm_exposed_seconds_total{{fsdpd_job="{job}"}}'
    assert not prometheus.query(f"{exposed} > fsdpd_comm_seconds_total + 1e-6"), "exposed is a part of the whole"
    for labels, loss in by_rank(prometheus, job, "fsdpd_loss"):
        assert 0 < loss < 12, (labels, loss)
    for metric in ("fsdpd_learning_rate", "fsdpd_validation_loss"):
        found = prometheus.query(f'{metric}{{fsdpd_job="{job}"}}')
        assert [labels["rank"] for labels, _ in found] == ["0"], "the same on all ranks"
    for labels, age in prometheus.query(f'time() - fsdpd_last_step_timestamp_seconds{{fsdpd_job="{job}"}}'):
        assert -1 < age < 120, (labels, age)
    assert all(value == 1 for _, value in by_rank(prometheus, job, "fsdpd_rank_up"))


def test_exports_every_operation_from_start(prometheus, job):
    for metric in ("fsdpd_comm_seconds_total", "fsdpd_comm_exposed_seconds_total", "fsdpd_comm_bytes_total"):
        assert {labels["op"] for labels, _ in by_rank(prometheus, job, metric)} == OPS, metric
    for op in ("all_gather", "reduce_scatter"):
        rates = prometheus.query(f'rate(fsdpd_comm_bytes_total{{fsdpd_job="{job}", op="{op}"}}[5m])')
        assert len(rates) == 4 and all(rate > 0 for _, rate in rates), (op, rates)


def test_memory_matches_plan(prometheus, shared, job):
    plan = {component.name: component.bytes for component in shared.job(job).memory_plan.components}
    found = by_rank(prometheus, job, "fsdpd_memory_plan_bytes")
    for rank in "0123":
        exported = {labels["component"]: value for labels, value in found if labels["rank"] == rank}
        assert exported == plan and set(plan) <= COMPONENTS, (rank, exported)
    for smaller, larger in [("allocated", "peak"), ("allocated", "reserved")]:
        query = f'fsdpd_memory_{smaller}_bytes{{fsdpd_job="{job}"}} > fsdpd_memory_{larger}_bytes'
        assert not prometheus.query(query), f"{smaller} is at most {larger}"
    assert all(value > 0 for _, value in by_rank(prometheus, job, "fsdpd_memory_peak_bytes"))


def test_rank_0_measures_components(prometheus, job):
    """Persistent memory matches the plan, and the sum of all components is the peak of a step."""
    measured = {labels["component"]: (labels["rank"], value) for labels, value in wait_until(
        "a step timeline was scraped", lambda: prometheus.query(f'fsdpd_memory_component_bytes{{fsdpd_job="{job}"}}'))}
    assert set(measured) == MEASURED and {rank for rank, _ in measured.values()} == {"0"}
    planned = {labels["component"]: value for labels, value in by_rank(prometheus, job, "fsdpd_memory_plan_bytes")
               if labels["rank"] == "0"}
    for component in ("main_params", "optimizer"):
        assert measured[component] == ("0", planned[component])
    peak, = (value for labels, value in by_rank(prometheus, job, "fsdpd_memory_peak_bytes") if labels["rank"] == "0")
    assert sum(value for _, value in measured.values()) == pytest.approx(peak, rel=0.1)


def test_warm_job_allocates_no_device_memory(prometheus, job):
    # The window may still hold the first steps, which do ask.
    wait_until("no rank has asked for five seconds", lambda: [0, 0, 0, 0] == [
        rate for _, rate in prometheus.query(f'rate(fsdpd_device_mallocs_total{{fsdpd_job="{job}"}}[5s])')])
    assert all(value > 0 for _, value in by_rank(prometheus, job, "fsdpd_device_mallocs_total"))


def test_rank_0_exports_checkpoints(prometheus, shared, job):
    found = wait_until("the first checkpoint was scraped", lambda: prometheus.query(
        f'fsdpd_checkpoint_bytes{{fsdpd_job="{job}"}}'))
    # Of two checkpoints, perhaps, whose numbers of steps take a byte more or less.
    assert [value for _, value in found] == [pytest.approx(shared.job(job).checkpoints[-1].bytes, rel=1e-3)]
    reported = prometheus.query(f'{{__name__=~"fsdpd_checkpoint.*", fsdpd_job="{job}"}}')
    assert {labels["__name__"] for labels, _ in reported} == CHECKPOINTS
    assert {labels["rank"] for labels, _ in reported} == {"0"}
    values = {labels["__name__"]: value for labels, value in reported}
    # A query shows one moment while the job continues: five steps per committed one.
    assert values["fsdpd_checkpoint_last_step"] == 5 * values["fsdpd_checkpoints_total"]
    assert values["fsdpd_checkpoint_failures_total"] == 0 and values["fsdpd_checkpoint_seconds"] > 0
    assert -1 < time.time() - values["fsdpd_checkpoint_last_success_timestamp_seconds"] < 120


def test_identity_and_agents(prometheus, shared, job):
    ranks = {labels["rank"]: labels for labels, _ in by_rank(prometheus, job, "fsdpd_rank_info")}
    assert {(rank, labels["fsdpd_node"]) for rank, labels in ranks.items()} == {
        ("0", "node-0"), ("1", "node-0"), ("2", "node-1"), ("3", "node-1")}
    assert all(labels["attempt"] == "1" and labels["device"] for labels in ranks.values())
    assert [value for _, value in prometheus.query(f'sum(fsdpd_restarts_total{{fsdpd_job="{job}"}})')] == [0]
    for metric, value in [("fsdpd_agent_slots", 2), ("fsdpd_agent_ranks", 2), ("fsdpd_agent_connected", 1),
                          ("fsdpd_hangs_total", 0), ("fsdpd_agent_internal_errors_total", 0)]:
        assert [each for _, each in prometheus.query(metric)] == [value, value], metric
    assert {labels["version"] for labels, _ in prometheus.query("fsdpd_build_info")} == {"0.1.0"}


def test_labels_match_targets(prometheus, shared, job):
    """Regression: `job` was the training job's id, and a scrape without honor_labels replaced it by the scrape's name.
    """
    ours = {label for line in shared.scrape("node-0").splitlines() if line.startswith("fsdpd_")
            for label in re.findall(r'(\w+)="', line)}
    assert "fsdpd_job" in ours and not ours & SCRAPERS_LABELS
    scraped = prometheus.query(f'{{__name__=~"fsdpd_.+", fsdpd_job="{job}"}}')
    assert {labels["job"] for labels, _ in scraped if ":" not in labels["__name__"]} == {"fsdpd-agent", "fsdpd-coordinator"}
    assert not [label for labels, _ in scraped for label in labels if label.startswith("exported_")]


@pytest.mark.parametrize("daemon", ["agent", "coordinator"])
def test_promtool_check_passes(shared, job, daemon):
    page = shared.scrape("node-0") if daemon == "agent" else shared.scrape_coordinator()
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr + done.stdout


def test_number_of_series_is_bounded(shared, job):
    text = wait_until("a checkpoint is told", lambda: "fsdpd_checkpoint_bytes{" in (now := shared.scrape("node-0")) and now)
    rank_0, rank_1 = ([line for line in text.splitlines() if f'rank="{rank}"' in line] for rank in (0, 1))
    # On GPUs one more; agent/metrics/metrics_exporter_test.cc tests what a job may add.
    assert len(rank_1) <= 40, "a thousand ranks must not cost a Prometheus more than 40,000 series"
    assert len(rank_1) < 40 or "fsdpd_memory_spike" in text, "one is left for a spike"
    bad_steps, alike = 2, 2  # By kind; learning rate and validation loss.
    assert len(rank_0) - len(rank_1) <= len(CHECKPOINTS) + len(MEASURED) + bad_steps + alike, "and a few more for each job"


# What this job has not: fp16, spikes, a launch of another meanwhile, a failure, cards. That these are asked for
# rightly, as all others, is test_dashboard_values.py's.
NOT_HERE = re.compile("fsdpd_loss_scale|fsdpd_fp8_|fsdpd_router_|fsdpd_expert_imbalance|fsdpd_memory_spike_excess_bytes|fsdpd_queue_wait_seconds_bucket|fsdpd_job_failed_attempts|fsdpd_gpu_"
                      "|fsdpd_job_restarts_total|fsdpd_recovery_seconds_bucket|fsdpd_copy_engines")
QUERIES = [(name, title, expression) for name, board in dashboards.boards().items()
           for title, expression in dashboards.queries(board) if not NOT_HERE.search(expression)]


@pytest.mark.parametrize("name, title, expression", QUERIES, ids=[title for _, title, _ in QUERIES])
def test_every_panel_has_data(shared, prometheus, job, name, title, expression):
    query = dashboards.substitute(expression, {"job": job, "rank": ".*", "__rate_interval": "5s"})

    def answer():
        shared.job(job)  # Calls are shown too, of the newest seconds.
        return prometheus.query(query)
    found = wait_until(query, answer)  # What is recorded needs an evaluation first.
    assert all(math.isfinite(value) for _, value in found), (expression, found)


def test_dashboard_variables_list_job_and_ranks(prometheus, job):
    for board in dashboards.boards().values():
        for variable in board["templating"]["list"][1:]:
            metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
            values = {labels[label] for labels, _ in prometheus.query(dashboards.substitute(metric, {"job": job}))
                      if label in labels}
            # This Prometheus sets neither cluster nor namespace: `All` is their only choice.
            assert values == {"fsdpd_job": {job}, "rank": {"0", "1", "2", "3"}}.get(label, set()), variable["name"]


def test_recording_rules_have_values(prometheus, job):
    # Their window is a minute: the first values need two scrapes and one evaluation only.
    for rule in (rule for rule in dashboards.rules() if "record" in rule):
        found = wait_until(rule["record"], lambda: prometheus.query(f'{rule["record"]}{{fsdpd_job="{job}"}}'))
        assert all(0 <= value for _, value in found), found
        if ":ratio" in rule["record"] and "plan" not in rule["record"]:
            assert all(value <= 1.01 for _, value in found), found


def test_healthy_job_fires_no_alert(prometheus, job):
    assert not [labels for labels, _ in prometheus.query(f'ALERTS{{alertstate="firing", fsdpd_job="{job}"}}')]
    assert not prometheus.query('ALERTS{alertname="FsdpdAgentDisconnected"}')
    assert not prometheus.query('ALERTS{alertname=~"FsdpdAgentDown|FsdpdCoordinatorDown"}')


# Fields of a spec that alerts name, each with a value as their advice would set it.
ADVICE = {"checkpoint.every_steps": "5", "fsdp.prefetch_bytes": "2GiB", "train.micro_batch": "2", "fsdp.recompute": "full",
          "resources.memory_budget_bytes": "4GiB"}


def test_alerts_suggest_only_valid_fields(tmp_path):
    """Regression: an alert suggested telemetry.memory_snapshot, which is rejected."""
    actions = " ".join(rule["annotations"]["action"] for rule in dashboards.rules() if "alert" in rule)
    assert set(re.findall(r"(?<![$.])\b[a-z]+\.[a-z_]+\b", actions)) - {"job.yaml"} == set(ADVICE)
    saves = {"dir": str(tmp_path / "run")}
    (tmp_path / "job.yaml").write_text(json.dumps(spec(steps=5, train={"global_batch": 8}, checkpoint=saves)))
    changes = [word for field, value in ADVICE.items() for word in ("--set", f"{field}={value}")]
    done = subprocess.run([program("client/fsdpctl"), "validate", "--offline", "-f", tmp_path / "job.yaml", *changes],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
