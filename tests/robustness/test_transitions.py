"""Coordinator deaths, as by kill -9, before and after each stored transition that the job state machine allows.
Acknowledged calls persist, others can be repeated, and the job reaches the same state as without the death. The transition
STOPPING -> FAILED is only tested after it is stored, because its record has no text that identifies it before."""

import os
import re
import signal
from dataclasses import dataclass

import grpc
import pytest

from harness.cluster import Cluster
from harness.deaths import Deaths
from harness.programs import ROOT
from harness.specs import ENDLESS
from harness.stubs import coordinator as api
from harness.training import saving
from harness.wait import wait_until

NODES = ("node-0", "node-1")
LONG_S = 60


class DyingCluster:
    """Two agents with one slot each, and a coordinator that dies at a chosen point."""

    def __init__(self, cluster, deaths):
        self.cluster, self.deaths, self.where, self.texts = cluster, deaths, None, None

    def dies(self, act=lambda: None):
        """Lets the coordinator die around the case's transition, which `act` triggers, and restarts it."""
        written, unwritten = self.texts
        if self.where == "after":
            self.deaths.after(written)
        else:
            self.deaths.before(unwritten)
        try:
            act()
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error
        self.cluster.coordinator.process.wait(60)
        assert not self.deaths.left()
        self.cluster.start_coordinator(listen=self.cluster.address)

    def back(self):
        for node in NODES:
            os.kill(self.cluster.agents[node].pid, signal.SIGCONT)
        self.cluster.wait_nodes(2)

    def freeze(self, node):
        os.kill(self.cluster.agents[node].pid, signal.SIGSTOP)

    def asks(self, call, job_id, word="because", **fields):
        """Makes a call and repeats it if it was not answered."""
        request = getattr(api, f"{call}Request")(id=job_id, reason=word, **fields)

        def ask():
            getattr(self.cluster.api(), call)(request, timeout=30)
        self.dies(ask)
        getattr(self.cluster.api(), call)(request, timeout=60, wait_for_ready=True)

    def submits(self, made):
        """The reply may be in flight when the coordinator dies."""
        self.dies(lambda: self.cluster.submit(made))
        job, = self.cluster.jobs()
        self.back()
        return job.id

    def queued(self, made):
        for node in NODES:
            self.cluster.api().CordonNode(api.CordonNodeRequest(node=node, reason="the test"), timeout=60)
        job_id = self.cluster.submit(made)
        wait_until("it waits", lambda: self.cluster.state(job_id) == "QUEUED")
        return job_id

    def running(self, made):
        job_id = self.cluster.submit(made)
        self.cluster.wait_step(job_id, 2)
        self.cluster.wait_state(job_id, "RUNNING")
        return job_id

    def unread(self, made, state):
        """Suspends the agents, so that the coordinator's messages stay unread."""
        for node in NODES:
            self.freeze(node)
        job_id = self.cluster.submit(made)
        self.cluster.wait_state(job_id, state)
        return job_id

    def starting(self, made):
        return self.unread(made, "STARTING")

    def measures(self):
        """Requests preflights from now on."""
        self.cluster.coordinator.stop()
        self.cluster.coordinator_flags += ["--preflight", "all"]
        self.cluster.start_coordinator(listen=self.cluster.address)
        self.cluster.wait_nodes(2)

    def measured_first(self, made):
        self.measures()
        return self.unread(made, "PREFLIGHT")

    def stopping(self, made):
        """A rank fails, and the other agent, which is suspended, does not report Stopped."""
        job_id = self.running(made)
        self.freeze("node-0")
        self.kill_rank("node-1")
        self.cluster.wait_state(job_id, "STOPPING")
        return job_id

    def pausing(self, made):
        """A suspended rank does not save."""
        job_id = self.running(made)
        os.kill(self.cluster.ranks("node-1")[0].pid, signal.SIGSTOP)
        self.cluster.api().PauseJob(api.PauseJobRequest(id=job_id, grace_seconds=LONG_S), timeout=60)
        self.cluster.wait_state(job_id, "PAUSING")
        return job_id

    def kill_rank(self, node="node-1"):
        os.kill(self.cluster.ranks(node)[0].pid, signal.SIGKILL)

    def paused(self, made):
        job_id = self.running(made)
        self.cluster.api().PauseJob(api.PauseJobRequest(id=job_id, grace_seconds=LONG_S), timeout=60)
        self.cluster.wait_state(job_id, "PAUSED")
        return job_id

    def failed(self, made):
        job_id = self.running(made)
        self.kill_rank()
        self.cluster.wait_state(job_id, "FAILED")
        return job_id


@pytest.fixture
def dying(tmp_path):
    """With a new store: pages of an old one may contain the texts of earlier jobs."""
    deaths = Deaths(tmp_path / "deaths")
    cluster = Cluster(tmp_path / "cluster", slots=1)
    cluster.coordinator_prefix = deaths.prefix
    cluster.coordinator_flags = ["--reattach-grace-ms", "6000"]
    with cluster:
        yield DyingCluster(cluster, deaths)


@dataclass(frozen=True)
class Case:
    written: str  # The log line of the transition.
    unwritten: str  # Text that only the job's next record has; "" if there is none.
    scenario: object

    def __str__(self):
        return self.scenario.__name__.replace("_", "-")


def launch(dying, made, again):
    job_id = dying.submits(made)
    dying.cluster.wait_step(job_id, 2)
    job = dying.cluster.job(job_id)
    assert job.attempt == 1 and not job.failed_attempts, "a launch that was stored but not sent is sent after the restart"
    return job_id, "RUNNING"


def start(dying, made, again):
    return launch(dying, made, again)


def preflight(dying, made, again):
    dying.measures()
    return start(dying, made, again)


def launch_after_preflight(dying, made, again):
    dying.measures()
    job_id, state = launch(dying, made, again)
    assert all(dying.cluster.node(node).preflight.result.devices for node in NODES)
    return job_id, state


def cordon_during_preflight(dying, made, again):
    job_id = dying.measured_first(made)
    request = api.CordonNodeRequest(node="node-1", reason="because")
    dying.dies(lambda: dying.cluster.api().CordonNode(request, timeout=30))
    dying.back()
    wait_until("it waits for the node", lambda: "node-1 is cordoned (because)" in dying.cluster.job(job_id).reason)
    dying.cluster.api().UncordonNode(api.UncordonNodeRequest(node="node-1"), timeout=60)
    dying.cluster.wait_step(job_id, 2)
    assert dying.cluster.job(job_id).attempt == 1
    return job_id, "RUNNING"


def success(dying, made, again):
    made["train"]["steps"] = 20
    job_id = dying.submits(made)
    job = dying.cluster.wait_state(job_id, "SUCCEEDED")
    assert job.attempt == 1 and job.last_step.step == 20, job
    return job_id, "SUCCEEDED"


def failure(dying, made, again):
    job_id = dying.running(again)
    dying.dies(dying.kill_rank)
    dying.back()
    wait_until("the next attempt runs", lambda: dying.cluster.job(job_id).attempt == 2, LONG_S)
    dying.cluster.wait_step(job_id, 2)
    assert dying.cluster.job(job_id).failure.signal == signal.SIGKILL
    return job_id, "RUNNING"


def failure_while_starting(dying, made, again):
    job_id = dying.starting(again)
    dying.dies(lambda: dying.cluster.agents["node-1"].kill())
    dying.cluster.agents["node-1"] = dying.cluster.start_agent("node-1", 1, wait=False)
    dying.back()
    dying.cluster.wait_step(job_id, 2)
    return job_id, "RUNNING"


def next_attempt(dying, made, again):
    return failure(dying, made, again)


def last_attempt_failed(dying, made, again):
    job_id = dying.running(made)
    dying.dies(dying.kill_rank)
    dying.back()
    job = dying.cluster.wait_state(job_id, "FAILED")
    assert job.attempt == 1 and job.failure.signal == signal.SIGKILL, job.failure
    return job_id, "FAILED"


def check_cancel(dying, job_id):
    dying.asks("CancelJob", job_id, grace_seconds=1)
    dying.back()
    dying.cluster.wait_state(job_id, "CANCELLED")
    return job_id, "CANCELLED"


def cancel_queued(dying, made, again):
    return check_cancel(dying, dying.queued(made))


def cancel_in_preflight(dying, made, again):
    return check_cancel(dying, dying.measured_first(made))


def cancel_starting(dying, made, again):
    return check_cancel(dying, dying.starting(made))


def cancel_running(dying, made, again):
    return check_cancel(dying, dying.running(made))


def cancel_stopping(dying, made, again):
    return check_cancel(dying, dying.stopping(again))


def cancel_pausing(dying, made, again):
    return check_cancel(dying, dying.pausing(made))


def cancel_paused(dying, made, again):
    return check_cancel(dying, dying.paused(made))


def cancel_completed(dying, made, again):
    job_id = dying.running(made)
    dying.dies(lambda: dying.cluster.api().CancelJob(api.CancelJobRequest(id=job_id, grace_seconds=1), timeout=30))
    dying.back()
    dying.cluster.wait_state(job_id, "CANCELLED")
    return job_id, "CANCELLED"


def check_pause(dying, job_id):
    dying.asks("PauseJob", job_id, grace_seconds=LONG_S)
    dying.back()
    dying.cluster.wait_state(job_id, "PAUSED")
    return job_id, "PAUSED"


def pause_queued(dying, made, again):
    return check_pause(dying, dying.queued(made))


def pause_in_preflight(dying, made, again):
    return check_pause(dying, dying.measured_first(made))


def pause_starting(dying, made, again):
    return check_pause(dying, dying.starting(made))


def pause_running(dying, made, again):
    return check_pause(dying, dying.running(made))


def pause_stopping(dying, made, again):
    return check_pause(dying, dying.stopping(again))


def pause_completed(dying, made, again):
    job_id = dying.running(made)
    dying.dies(lambda: dying.cluster.api().PauseJob(api.PauseJobRequest(id=job_id, grace_seconds=LONG_S), timeout=30))
    dying.back()
    job = dying.cluster.wait_state(job_id, "PAUSED")
    assert job.pause.step >= 2 and not job.pause.lost_steps, job.pause
    return job_id, "PAUSED"


def resume(dying, made, again):
    job_id = dying.paused(made)
    step = dying.cluster.job(job_id).pause.step
    repeat_resume(dying, job_id)
    dying.cluster.wait_step(job_id, step + 1)
    assert dying.cluster.job(job_id).restored.step == step
    return job_id, "RUNNING"


def repeat_resume(dying, job_id):
    """A resume that took effect is rejected when repeated, because the job is no longer paused."""
    request = api.ResumeJobRequest(id=job_id, reason="because")
    dying.dies(lambda: dying.cluster.api().ResumeJob(request, timeout=30))
    if dying.cluster.state(job_id) == "PAUSED":
        assert dying.where == "before"
        dying.cluster.api().ResumeJob(request, timeout=60)
    dying.back()


def check_retry(dying, job_id, ended):
    """A retry that took effect is rejected when repeated."""
    request = api.RetryJobRequest(id=job_id, reason="because")
    dying.dies(lambda: dying.cluster.api().RetryJob(request, timeout=30))
    if dying.cluster.state(job_id) == ended:
        assert dying.where == "before"
        dying.cluster.api().RetryJob(request, timeout=60)
    dying.back()
    wait_until("it runs again", lambda: dying.cluster.job(job_id).attempt == 2, LONG_S)
    dying.cluster.wait_step(job_id, 2)
    return job_id, "RUNNING"


def retry_failed(dying, made, again):
    return check_retry(dying, dying.failed(made), "FAILED")


def retry_cancelled(dying, made, again):
    job_id = dying.running(made)
    dying.cluster.cancel(job_id)
    return check_retry(dying, job_id, "CANCELLED")


CASES = [
    Case("job QUEUED -> STARTING", "launching 2 ranks", launch),
    Case("job QUEUED -> PREFLIGHT", "measured first (preflight)", preflight),
    Case("job PREFLIGHT -> STARTING", "its nodes have passed their preflight", launch_after_preflight),
    Case("job PREFLIGHT -> QUEUED", "node-1 is cordoned: because", cordon_during_preflight),
    Case("job STARTING -> RUNNING", "all 2 ranks run", start),
    Case("job RUNNING -> SUCCEEDED", "all ranks finished", success),
    Case("job RUNNING -> STOPPING", "stopping the attempt", failure),
    Case("job STARTING -> STOPPING", "stopping the attempt", failure_while_starting),
    Case("job STOPPING -> QUEUED", "the next one starts", next_attempt),
    Case("job STOPPING -> FAILED", "", last_attempt_failed),
    Case("job QUEUED -> CANCELLED", ": because", cancel_queued),
    Case("job PREFLIGHT -> CANCELLED", ": because", cancel_in_preflight),
    Case("job STARTING -> CANCELLING", ": because", cancel_starting),
    Case("job RUNNING -> CANCELLING", ": because", cancel_running),
    Case("job STOPPING -> CANCELLING", ": because", cancel_stopping),
    Case("job PAUSING -> CANCELLING", ": because", cancel_pausing),
    Case("job PAUSED -> CANCELLED", ": because", cancel_paused),
    Case("job CANCELLING -> CANCELLED", "all ranks are gone", cancel_completed),
    Case("job QUEUED -> PAUSED", ": because", pause_queued),
    Case("job PREFLIGHT -> PAUSED", ": because", pause_in_preflight),
    Case("job STARTING -> PAUSING", ": because", pause_starting),
    Case("job RUNNING -> PAUSING", ": because", pause_running),
    Case("job STOPPING -> PAUSING", ": because", pause_stopping),
    Case("job PAUSING -> PAUSED", ", which is saved", pause_completed),
    Case("job PAUSED -> QUEUED", ": because", resume),
    Case("job FAILED -> QUEUED", ": because", retry_failed),
    Case("job CANCELLED -> QUEUED", ": because", retry_cancelled),
]
# Transitions that tests cannot trigger.
WITHOUT_A_CASE = {
    "job QUEUED -> FAILED": "validation at launch fails although validation at submit passed",
    "job STARTING -> SUCCEEDED": "the job ends before all ranks reported that they run",
    "job PAUSING -> SUCCEEDED": "the last step ends before the ranks leave",
    **{f"job {state} -> CANCELLING": "ranks on a node that was lost and returned are in their grace period (tests/sim, seed 20180)"
       for state in ("QUEUED", "PREFLIGHT", "PAUSED")},
}


def test_cases_cover_all_transitions():
    table = re.search(r"kTransitions\[\] = \{\n(.*?)^\};", (ROOT / "coordinator/job/job_machine.cc").read_text(), re.M | re.S)[1]
    rows = re.findall(r"\{v1::JOB_STATE_(\w+), JobEvent::k(\w+), v1::JOB_STATE_(\w+)\},", table)
    assert len(rows) == table.count("JobEvent::")
    # Notes do not change the state.
    edges = {f"job {before} -> {after}" for before, event, after in rows if event != "Note"}
    assert all(before == after for before, event, after in rows if event == "Note")
    assert sorted([*(case.written for case in CASES), *WITHOUT_A_CASE]) == sorted(edges)


PLACES = [(case, where) for case in CASES for where in ("before", "after") if where == "after" or case.unwritten]


@pytest.mark.parametrize("case, where", PLACES, ids=str)
def test_coordinator_death_around_transition(dying, tmp_path, case, where):
    dying.where, dying.texts = where, (case.written, case.unwritten)
    cluster = dying.cluster
    nodes = {"nodes": 2, "ranks_per_node": 1}
    made = saving(tmp_path / "job", steps=ENDLESS, checkpoint={"every_steps": 20}, resources=nodes, restart={"max_attempts": 1})
    again = {**made, "restart": {"max_attempts": 3}}
    job_id, state = case.scenario(dying, made, again)
    cluster.wait_state(job_id, state)  # A step may be reported before the state that follows from it.
    # Preflights complete regardless of the job, and may start when agents are back.
    ranks = 2 if state == "RUNNING" else 0
    wait_until(f"{ranks} ranks are left, and none that measure", lambda: len(cluster.all_ranks()) == ranks)
    assert [job.id for job in cluster.jobs()] == [job_id]
