"""Tests of every dashboard query against a real Prometheus with known values (harness/injected.py): results must equal
values that are computed here in Python. The data also contains other jobs, ranks, clusters and namespaces, and the
second test checks that a selector which matches them is detected. test_metrics.py runs the queries against a real job.
"""

import re
import statistics
import uuid

import pytest

from harness import dashboards
from harness.injected import BUCKETS, CARDS, CAUSES, JOBS, NODES, PLACES, RANKS, TABLES, TIMES, VALUES, Injected

WINDOW = 60  # Of rates.


class Seen:
    """The values that a viewer of the chosen jobs and ranks must see. A result is {labels: value} with the requested
    labels."""

    def __init__(self, data, jobs, ranks):
        self.data, self.jobs, self.ranks = data, jobs, ranks

    def rate(self, name, job, rank, **more):
        return self.data.rate(f"fsdpd_{name}", instance=PLACES[job, rank][0], fsdpd_job=job, rank=rank, **more)

    def at(self, name, job, rank, **more):
        return self.data.at(f"fsdpd_{name}", instance=PLACES[job, rank][0], fsdpd_job=job, rank=rank, **more)

    def reported(self, name, job, **more):
        """Values of a job from the coordinator."""
        return self.data.at(f"fsdpd_{name}", instance="c0", fsdpd_job=job, **more)

    def card(self, name, job, rank):
        node, device = PLACES[job, rank]
        return self.at(name, job, rank, fsdpd_node=node, device=device)

    def sum(self, name, job, **more):
        """Sums rates over the ranks of the job."""
        return sum(self.rate(name, job, rank, **more) for rank in self.ranks)

    def plan(self, job, rank):
        return sum(self.at("memory_plan_bytes", job, rank, component=each) for each in VALUES["component"])


def by_job(value):
    return lambda see: ({"fsdpd_job"}, {(job,): value(see, job) for job in see.jobs})


def by_rank(value):
    return lambda see: ({"fsdpd_job", "rank"}, {(job, rank): value(see, job, rank) for job in see.jobs for rank in see.ranks})


def by_job_and(label, values, value):
    return lambda see: ({"fsdpd_job", label}, {tuple(text for _, text in sorted({"fsdpd_job": job, label: each}.items())): value(see, job, each)
                                               for job in see.jobs for each in values})


def by(label, values, value):
    return lambda see: ({label} - {""}, {(each,) if label else (): value(see, each) for each in values})


def one(value):
    return by("", [""], lambda see, _: value(see))


def by_card(value, cards=CARDS):
    return lambda see: ({"fsdpd_node", "device"}, {(device, node): value(see, node, device) for node, device in cards})


def newest(name, choose=max):
    return by_job(lambda see, job: choose(see.at(name, job, rank) for rank in see.ranks))


def rank_0s(name):
    return by_job(lambda see, job: see.at(name, job, "0"))


def coordinators(name, **more):
    return by_job(lambda see, job: see.reported(name, job, **more))


def a_step(name):
    """Rates divided by the rate of steps."""
    return by_job(lambda see, job: see.sum(name, job) / see.sum("steps_total", job))


def card_of(name):
    return by_rank(lambda see, job, rank: see.card(name, job, rank))


def of_card(name):
    def value(see, node, device):
        job, rank = CARDS[node, device]
        return see.data.at(f"fsdpd_{name}", instance=node, fsdpd_node=node, device=device, **({"fsdpd_job": job, "rank": rank} if job else {}))
    return by_card(value)


def counted(see, name, **labels):
    return see.data.rate(f"fsdpd_{name}", **labels)


def quantile(q, name):
    """All values are in one bucket, in which Prometheus assumes a uniform distribution."""
    bounds = [0, *(float(each) for each in TABLES["bounds"]()[name][0].split(","))]
    low, high = bounds[BUCKETS[name]:BUCKETS[name] + 2]
    return low + q * (high - low)


OPS = VALUES["op"]
BUSY = ("queue", "pause")
tokens = by_job(lambda see, job: see.sum("tokens_total", job))
loss_tokens = by_job(lambda see, job: see.sum("loss_tokens_total", job))
mfu, predicted_mfu = coordinators("job_mfu_ratio"), coordinators("job_predicted_mfu_ratio")
restarts = by_job(lambda see, job: max(see.data.at("fsdpd_restarts_total", instance=node, fsdpd_job=job) for node in NODES))
exposed_share = by_job(lambda see, job: see.sum("exposed_seconds_total", job) / see.sum("step_seconds_total", job))
predicted_step = by_job(lambda see, job: sum(see.reported("job_predicted_step_seconds", job, part=part) for part in VALUES["part"]))
slowest = by_rank(lambda see, job, rank: see.rate("compute_seconds_total", job, rank) / see.rate("steps_total", job, rank))
over_plan = by_rank(lambda see, job, rank: see.at("memory_peak_bytes", job, rank) / see.plan(job, rank))


def all_ranks(see):
    """The values of the fleet dashboard, which has no job selection."""
    return Seen(see.data, JOBS, RANKS)


def of_all(answer):
    return lambda see: answer(all_ranks(see))


def ledger(see, job, cause):
    return see.reported("job_seconds", job, cause=cause)


def clamped_rest(see, job):
    rest = see.sum("step_seconds_total", job) - see.sum("compute_seconds_total", job) - see.sum("exposed_seconds_total", job)
    return max(0, rest / see.sum("steps_total", job))


def stale(see):
    labels, ages = by_rank(lambda see, job, rank: see.data.now - see.at("last_step_timestamp_seconds", job, rank))(see)
    return labels, {key: age for key, age in ages.items() if see.at("rank_up", *key) == 1}


def checkpoint_age(see):
    """Jobs with a running rank, independent of the rank selection, because the query is about the job."""
    return by_job(lambda see, job: see.data.now - see.at("checkpoint_last_success_timestamp_seconds", job, "0"))(see)


def straggles(see, job, rank):
    mine = {each: see.rate("compute_seconds_total", job, each) for each in see.ranks}
    return mine[rank] / statistics.median(mine.values())


def failures(see):
    return {"instance", "cause"}, {(cause, node): WINDOW * counted(see, "rank_failures_total", instance=node, cause=cause)
                                   for node in NODES for cause in CAUSES}


def restarts_by_cause(see):
    return {"cause", "mode"}, {(cause, mode): WINDOW * counted(see, "job_restarts_total", instance="c0", cause=cause, mode=mode)
                               for cause in CAUSES for mode in VALUES["mode"]}


def slowdowns(see):
    return {"fsdpd_node", "device", "reason"}, {
        (device, node, reason): counted(see, "gpu_slowdown_seconds_total", instance=node, fsdpd_node=node, device=device, reason=reason)
        for node, device in CARDS for reason in VALUES["reason"]}


def ecc(see):
    return {"fsdpd_node", "device", "kind"}, {
        (device, node, kind): WINDOW * counted(see, "gpu_ecc_errors_total", instance=node, fsdpd_node=node, device=device, kind=kind)
        for node, device in CARDS for kind in ("corrected", "uncorrected")}


def agents(name, label="instance"):
    return by(label, NODES, lambda see, node: see.data.at(f"fsdpd_{name}", instance=node))


def agents_sum(name):
    return one(lambda see: sum(see.data.at(f"fsdpd_{name}", instance=node) for node in NODES))


def known(name, label, scale=lambda see: 1, at=True):
    return by(label, VALUES.get(label, TIMES), lambda see, each: scale(see) * (see.data.at if at else see.data.rate)(
        f"fsdpd_{name}", instance="c0", **{label: each}))


def bounded(name, label, values, q=0.99):
    return by(label, values, lambda see, each: quantile(q, name))


# By board, in its order: [(panel, [answer of each of its questions])].
EXPECTED = {
    "fsdpd-job.json": [
        ("Steps", [newest("steps_total")]),
        ("Loss", [newest("loss")]),
        ("Validation loss", [rank_0s("validation_loss")]),
        ("Tokens/s", [tokens]),
        ("MFU", [mfu]),
        ("Step time", [newest("step_seconds")]),
        ("Ranks up", [newest("rank_up", sum)]),
        ("Restarts", [restarts]),
        ("Energy per step", [by_job(lambda see, job: sum(see.card("gpu_step_energy_joules", job, rank) for rank in see.ranks))]),
        ("Loss", [newest("loss"), rank_0s("validation_loss")]),
        ("Gradient norm", [newest("grad_norm")]),
        ("Learning rate", [rank_0s("learning_rate")]),
        ("Skipped and bad steps", [
            by_job(lambda see, job: max(see.at("skipped_steps_total", job, rank) for rank in RANKS)),
            by_job_and("kind", ["nonfinite", "spike"], lambda see, job, kind: see.at("bad_steps_total", job, "0", kind=kind))]),
        ("Loss scale", [by_job(lambda see, job: max(see.at("loss_scale", job, rank) for rank in RANKS))]),
        ("FP8 underflow", [by_job_and("class", ["weights", "gradients"], lambda see, job, of: (
            see.rate("fp8_underflows_total", job, "0", **{"class": of}) / see.rate("fp8_values_total", job, "0", **{"class": of})))]),
        ("Router imbalance and entropy", [rank_0s("expert_imbalance"), rank_0s("router_entropy")]),
        ("Tokens/s", [tokens, loss_tokens]),
        ("Step time by part", [a_step("compute_seconds_total"), a_step("exposed_seconds_total"), by_job(clamped_rest)]),
        ("Data wait", [by_rank(lambda see, job, rank: see.rate("data_wait_seconds_total", job, rank) / see.rate("steps_total", job, rank))]),
        ("MFU", [mfu, predicted_mfu]),
        ("Time since the last step", [stale]),
        ("Failed attempts", [by_job_and("cause", CAUSES, lambda see, job, cause: see.reported("job_failed_attempts", job, cause=cause))]),
        ("Goodput", [by_job(lambda see, job: (ledger(see, job, "step") + ledger(see, job, "exposed"))
                            / sum(ledger(see, job, each) for each in TIMES if each not in BUSY))]),
        ("Time since admission by cause", [by_job_and("cause", TIMES, ledger)]),
        ("Current time by cause", [by_job_and("cause", TIMES, lambda see, job, cause: ledger(see, job, cause)
                                            / sum(ledger(see, job, each) for each in TIMES))]),
        ("Newest checkpoint", [rank_0s("checkpoint_last_step")]),
        ("Time since the newest checkpoint", [checkpoint_age]),
        ("Checkpoints of the attempt", [rank_0s("checkpoints_total"), rank_0s("checkpoint_failures_total")]),
        ("Checkpoint duration", [rank_0s("checkpoint_seconds")]),
        ("Checkpoint stall", [by_job(lambda see, job: see.rate("checkpoint_stall_seconds_total", job, "0"))]),
        ("Checkpoint size", [rank_0s("checkpoint_bytes")]),
    ],
    "fsdpd-memory.json": [
        ("Memory by rank", [
            *(by_rank(lambda see, job, rank, name=name: see.at(f"memory_{name}_bytes", job, rank)) for name in ("allocated", "reserved", "peak")),
            by_job(lambda see, job: statistics.mean(see.plan(job, rank) for rank in see.ranks))]),
        ("Plan by component", [by_job_and("component", VALUES["component"], lambda see, job, component: statistics.mean(
            see.at("memory_plan_bytes", job, rank, component=component) for rank in see.ranks))]),
        ("Peak over plan", [over_plan]),
        ("Planned and measured by component", [
            by_job_and("part", ["activations_and_workspace", "optimizer"], lambda see, job, part: sum(
                see.at("memory_plan_bytes", job, "0", component=each) for each in part.split("_and_"))),
            by_job_and("component", VALUES["component"], lambda see, job, component: see.at(
                "memory_component_bytes", job, "0", component=component))]),
        ("Memory spikes", [by_rank(lambda see, job, rank: see.at("memory_spikes_total", job, rank))]),
        ("Size of memory spikes", [lambda see: ({"fsdpd_job", "rank", "instruction"}, {
            (job, instruction, rank): see.at("memory_spike_excess_bytes", job, rank, instruction=instruction)
            for job in see.jobs for rank in see.ranks for instruction in VALUES["instruction"]})]),
        ("Device mallocs and frees", [by_job(lambda see, job: see.sum("device_mallocs_total", job)),
                                      by_job(lambda see, job: see.sum("device_frees_total", job))]),
        ("Allocator requests per step", [a_step("allocations_total")]),
        ("Reserved and not allocated", [by_rank(lambda see, job, rank: 1 - see.at("memory_allocated_bytes", job, rank)
                                                / see.at("memory_reserved_bytes", job, rank))]),
        ("Allocator retries and failures", [card_of("gpu_allocator_retries_total"), card_of("gpu_out_of_memory_total")]),
        ("GPU memory in use", [card_of("gpu_memory_used_bytes")]),
        ("GPU memory outside of the rank", [card_of("gpu_memory_outside_bytes")]),
    ],
    "fsdpd-overlap.json": [
        ("Overlap", [by_job(lambda see, job: 1 - sum(see.sum("comm_exposed_seconds_total", job, op=op) for op in OPS)
                            / sum(see.sum("comm_seconds_total", job, op=op) for op in OPS))]),
        ("Overlap by operation", [by_job_and("op", OPS, lambda see, job, op: 1 - see.sum("comm_exposed_seconds_total", job, op=op)
                                             / see.sum("comm_seconds_total", job, op=op))]),
        ("Exposed communication", [exposed_share]),
        ("Exposed time per step by operation", [by_job_and("op", OPS, lambda see, job, op: see.sum("comm_exposed_seconds_total", job, op=op)
                                                         / see.sum("steps_total", job))]),
        ("Communication time per step by operation", [by_job_and("op", OPS, lambda see, job, op: see.sum("comm_seconds_total", job, op=op)
                                                               / see.sum("steps_total", job))]),
        ("Copy engines", [newest("copy_engines", statistics.fmean)]),
        ("Bandwidth by operation", [by_job_and("op", OPS, lambda see, job, op: see.sum("comm_bytes_total", job, op=op)
                                                    / see.sum("comm_seconds_total", job, op=op))]),
        ("Step time", [a_step("step_seconds_total"), predicted_step]),
        ("Compute per step", [a_step("compute_seconds_total"), coordinators("job_predicted_step_seconds", part="compute")]),
        ("Exposed communication per step", [a_step("exposed_seconds_total"), coordinators("job_predicted_step_seconds", part="exposed")]),
        ("Exposed fraction of the step by rank", [by_rank(lambda see, job, rank: see.rate("exposed_seconds_total", job, rank)
                                                       / see.rate("step_seconds_total", job, rank))]),
        ("Compute lane busy by rank", [by_rank(lambda see, job, rank: see.rate("compute_seconds_total", job, rank)
                                               / see.rate("step_seconds_total", job, rank))]),
        ("Stragglers", [by_rank(straggles)]),
        ("Compute time per step by rank", [slowest]),
        ("Power", [card_of("gpu_power_watts")]),
        ("SM clock during a step", [card_of("gpu_step_sm_clock_hertz")]),
        ("Energy per step", [card_of("gpu_step_energy_joules")]),
    ],
    "fsdpd-fleet.json": [
        ("Agents connected", [agents_sum("agent_connected"), one(lambda see: len(NODES))]),
        ("Slots", [agents_sum("agent_slots"), agents_sum("agent_ranks")]),
        ("Running jobs", [one(lambda see: len(JOBS))]),
        ("Tokens/s", [one(lambda see: sum(all_ranks(see).sum("tokens_total", job) for job in JOBS))]),
        ("Tokens/s by job", [of_all(tokens)]),
        ("Exposed communication by job", [of_all(exposed_share)]),
        ("Peak over plan by job", [of_all(by_job(lambda see, job: max(see.at("memory_peak_bytes", job, rank) / see.plan(job, rank) for rank in RANKS)))]),
        ("Restarts by job", [of_all(restarts)]),
        ("Restarts by cause", [restarts_by_cause]),
        ("Recovery time by phase (p90)", [bounded("fsdpd_recovery_seconds", "phase", VALUES["phase"], 0.9)]),
        ("Jobs by state", [known("jobs", "state")]),
        ("Queue wait", [one(lambda see: quantile(0.5, "fsdpd_queue_wait_seconds")), one(lambda see: quantile(0.9, "fsdpd_queue_wait_seconds"))]),
        ("Slots of connected agents", [known("slots", "state")]),
        ("Submits", [known("submits_total", "outcome", lambda see: WINDOW, at=False)]),
        ("Refusals by rule", [known("submit_violations_total", "rule")]),
        ("Time of all jobs by cause", [known("all_jobs_seconds", "cause", lambda see: 1 / sum(
            see.data.at("fsdpd_all_jobs_seconds", instance="c0", cause=cause) for cause in TIMES))]),
        ("Slots and ranks", [agents("agent_slots"), agents("agent_ranks")]),
        ("Agents connected to their coordinator", [agents("agent_connected")]),
        ("Failed ranks and hangs", [failures, by("instance", NODES, lambda see, node: WINDOW * counted(see, "hangs_total", instance=node))]),
        ("Agents by state", [known("agents", "state"), one(lambda see: see.data.at("fsdpd_agents_cordoned", instance="c0"))]),
        ("RPC latency (p99)", [bounded("fsdpd_rpc_seconds", "method", VALUES["method"])]),
        ("Store latency (p99)", [bounded("fsdpd_store_seconds", "operation", VALUES["operation"])]),
        ("Reconciler tick (p99)", [bounded("fsdpd_tick_seconds", "instance", ["c0"])]),
        ("State size", [by("instance", ["c0"], lambda see, each: see.data.at("fsdpd_state_bytes", instance=each))]),
        ("Events", [one(lambda see: WINDOW * counted(see, "events_total", instance="c0"))]),
        ("File descriptors", [by("instance", [*NODES, "c0"], lambda see, each: see.data.at("process_open_fds", instance=each)
                                 / see.data.at("process_max_fds", instance=each))]),
        ("Power", [of_card("gpu_power_watts")]),
        ("Temperature", [by_card(lambda see, node, device: see.data.at("fsdpd_gpu_temperature_celsius", instance=node, fsdpd_node=node, device=device))]),
        ("SM clock", [of_card("gpu_sm_clock_hertz")]),
        ("Clock slowdown", [slowdowns]),
        ("Errors", [by_card(lambda see, node, device: WINDOW * counted(see, "gpu_xid_errors_total", instance=node, fsdpd_node=node, device=device)), ecc]),
        ("Memory in use", [of_card("gpu_memory_used_bytes")]),
    ],
}
QUESTIONS = [(name, title, expression, answer) for name, panels in EXPECTED.items()
             for (title, expression), answer in zip(dashboards.queries(dashboards.boards()[name]),
                                                    [answer for _, answers in panels for answer in answers])]
IDS = [f"{name[6:-5]}: {title} {number}" for number, (name, title, _, _) in enumerate(QUESTIONS)]
CHOICES = [(JOBS, RANKS), (["a"], ["0"]), (["a"], ["1"]), (["b"], ["0"])]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    with Injected(tmp_path_factory.mktemp("injected"), uuid.uuid4().hex) as server:
        yield server


def requested(expression, jobs, ranks):
    return dashboards.substitute(expression, {"cluster": "one", "namespace": "x", "job": "|".join(jobs), "rank": "|".join(ranks),
                                              "__rate_interval": f"{WINDOW}s"})


def fault(data, expression, answer, jobs, ranks):
    """Returns the difference between Prometheus' result and the expected one; empty if equal."""
    names, expected = answer(Seen(data, jobs, ranks))
    try:
        answers = data.ask(requested(expression, jobs, ranks))
    except AssertionError as error:  # Too many of something, say.
        return str(error)
    found = [(tuple(labels.get(name) for name in sorted(names)), value) for labels, value in answers]
    if sorted(key for key, _ in found) != sorted(expected):
        return f"series {sorted(key for key, _ in found)} instead of {sorted(expected)}"
    return [(key, value, expected[key]) for key, value in found if value != pytest.approx(expected[key], rel=1e-6, abs=1e-9)]


def test_covers_every_query_of_every_dashboard():
    assert set(EXPECTED) == set(dashboards.boards())
    for name, board in dashboards.boards().items():
        assert [title for title, _ in dashboards.queries(board)] == [title for title, answers in EXPECTED[name] for _ in answers], name


@pytest.mark.parametrize("name, title, expression, answer", QUESTIONS, ids=IDS)
def test_panel_shows_injected_values(data, name, title, expression, answer):
    for jobs, ranks in CHOICES:
        assert not fault(data, expression, answer, jobs, ranks), requested(expression, jobs, ranks)


@pytest.mark.parametrize("variable", ["cluster", "namespace", "job", "rank"])
def test_detects_selector_that_is_too_wide(data, variable):
    """Tests each query with a selector."""
    selector, opened = re.compile(rf'(\w+)=~"\${variable}"'), r'\1=~".*"'
    wider = [question for question in QUESTIONS if selector.search(question[2])]
    assert len(wider) > 20
    unnoticed = [f"{title}: {expression}" for _, title, expression, answer in wider
                 if not any(fault(data, selector.sub(opened, expression), answer, jobs, ranks) for jobs, ranks in CHOICES)]
    assert not unnoticed, "\n".join(unnoticed)
