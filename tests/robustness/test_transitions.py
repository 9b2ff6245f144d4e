"""The coordinator is dead, as by kill -9, around each transition of a job that the job machine allows: before it is on
disk, and when it is on disk and nothing was done about it. What was answered holds, what was not can be asked again, and the
job goes where it would have gone. Of a job that ends as failed after its ranks were stopped there is only the moment after it
is on disk: it says then what it said before."""

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


class Mortal:
    """Two agents of one slot each, and a coordinator that dies where it is told to."""

    def __init__(self, cluster, deaths):
        self.cluster, self.deaths, self.where, self.texts = cluster, deaths, None, None

    def dies(self, act=lambda: None):
        """Around the transition of the case, which `act` brings about; then it is back, with its agents."""
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
        """A call that is not answered is made again."""
        request = getattr(api, f"{call}Request")(id=job_id, reason=word, **fields)

        def ask():
            getattr(self.cluster.api(), call)(request, timeout=30)
        self.dies(ask)
        getattr(self.cluster.api(), call)(request, timeout=60, wait_for_ready=True)

    def submits(self, made):
        """The answer may be on its way when the coordinator dies."""
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
        """What the coordinator says to agents lies in front of them."""
        for node in NODES:
            self.freeze(node)
        job_id = self.cluster.submit(made)
        self.cluster.wait_state(job_id, state)
        return job_id

    def starting(self, made):
        return self.unread(made, "STARTING")

    def measures(self):
        """From now on, nodes before a job meets them."""
        self.cluster.coordinator.stop()
        self.cluster.coordinator_flags += ["--preflight", "all"]
        self.cluster.start_coordinator(listen=self.cluster.address)
        self.cluster.wait_nodes(2)

    def measured_first(self, made):
        self.measures()
        return self.unread(made, "PREFLIGHT")

    def stopping(self, made):
        """One of its agents says that a rank has failed; the other one does not say that nothing is left."""
        job_id = self.running(made)
        self.freeze("node-0")
        self.kill_rank("node-1")
        self.cluster.wait_state(job_id, "STOPPING")
        return job_id

    def pausing(self, made):
        """A rank does not save, as it stands still."""
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
def mortal(tmp_path):
    """With a store of its own: in another's pages there may be what is left of a job that said the same."""
    deaths = Deaths(tmp_path / "deaths")
    cluster = Cluster(tmp_path / "cluster", slots=1)
    cluster.coordinator_prefix = deaths.prefix
    cluster.coordinator_flags = ["--reattach-grace-ms", "6000"]
    with cluster:
        yield Mortal(cluster, deaths)


@dataclass(frozen=True)
class Case:
    written: str  # What the log says of the transition.
    unwritten: str  # What only the job after it says of itself; "" where nothing does.
    story: object

    def __str__(self):
        return self.story.__name__.replace("_", "-")


def a_launch(mortal, made, again):
    job_id = mortal.submits(made)
    mortal.cluster.wait_step(job_id, 2)
    job = mortal.cluster.job(job_id)
    assert job.attempt == 1 and not job.failed_attempts, "a launch that was stored and not sent is sent by the next life"
    return job_id, "RUNNING"


def a_start(mortal, made, again):
    return a_launch(mortal, made, again)


def a_preflight(mortal, made, again):
    mortal.measures()
    return a_start(mortal, made, again)


def a_launch_after_a_preflight(mortal, made, again):
    mortal.measures()
    job_id, state = a_launch(mortal, made, again)
    assert all(mortal.cluster.node(node).preflight.result.devices for node in NODES)
    return job_id, state


def a_node_that_is_cordoned_in_a_preflight(mortal, made, again):
    job_id = mortal.measured_first(made)
    request = api.CordonNodeRequest(node="node-1", reason="because")
    mortal.dies(lambda: mortal.cluster.api().CordonNode(request, timeout=30))
    mortal.back()
    wait_until("it waits for the node", lambda: "node-1 is cordoned (because)" in mortal.cluster.job(job_id).reason)
    mortal.cluster.api().UncordonNode(api.UncordonNodeRequest(node="node-1"), timeout=60)
    mortal.cluster.wait_step(job_id, 2)
    assert mortal.cluster.job(job_id).attempt == 1
    return job_id, "RUNNING"


def an_end(mortal, made, again):
    made["train"]["steps"] = 20
    job_id = mortal.submits(made)
    job = mortal.cluster.wait_state(job_id, "SUCCEEDED")
    assert job.attempt == 1 and job.last_step.step == 20, job
    return job_id, "SUCCEEDED"


def a_failure(mortal, made, again):
    job_id = mortal.running(again)
    mortal.dies(mortal.kill_rank)
    mortal.back()
    wait_until("the next attempt runs", lambda: mortal.cluster.job(job_id).attempt == 2, LONG_S)
    mortal.cluster.wait_step(job_id, 2)
    assert mortal.cluster.job(job_id).failure.signal == signal.SIGKILL
    return job_id, "RUNNING"


def a_failure_while_it_starts(mortal, made, again):
    job_id = mortal.starting(again)
    mortal.dies(lambda: mortal.cluster.agents["node-1"].kill())
    mortal.cluster.agents["node-1"] = mortal.cluster.start_agent("node-1", 1, wait=False)
    mortal.back()
    mortal.cluster.wait_step(job_id, 2)
    return job_id, "RUNNING"


def another_attempt(mortal, made, again):
    return a_failure(mortal, made, again)


def a_job_given_up(mortal, made, again):
    job_id = mortal.running(made)
    mortal.dies(mortal.kill_rank)
    mortal.back()
    job = mortal.cluster.wait_state(job_id, "FAILED")
    assert job.attempt == 1 and job.failure.signal == signal.SIGKILL, job.failure
    return job_id, "FAILED"


def cancelled(mortal, job_id):
    mortal.asks("CancelJob", job_id, grace_seconds=1)
    mortal.back()
    mortal.cluster.wait_state(job_id, "CANCELLED")
    return job_id, "CANCELLED"


def a_cancel_of_a_queued_job(mortal, made, again):
    return cancelled(mortal, mortal.queued(made))


def a_cancel_of_a_job_in_preflight(mortal, made, again):
    return cancelled(mortal, mortal.measured_first(made))


def a_cancel_of_a_starting_job(mortal, made, again):
    return cancelled(mortal, mortal.starting(made))


def a_cancel_of_a_running_job(mortal, made, again):
    return cancelled(mortal, mortal.running(made))


def a_cancel_of_a_job_that_stops(mortal, made, again):
    return cancelled(mortal, mortal.stopping(again))


def a_cancel_of_a_job_that_is_being_paused(mortal, made, again):
    return cancelled(mortal, mortal.pausing(made))


def a_cancel_of_a_paused_job(mortal, made, again):
    return cancelled(mortal, mortal.paused(made))


def a_cancelled_job_that_is_gone(mortal, made, again):
    job_id = mortal.running(made)
    mortal.dies(lambda: mortal.cluster.api().CancelJob(api.CancelJobRequest(id=job_id, grace_seconds=1), timeout=30))
    mortal.back()
    mortal.cluster.wait_state(job_id, "CANCELLED")
    return job_id, "CANCELLED"


def paused(mortal, job_id):
    mortal.asks("PauseJob", job_id, grace_seconds=LONG_S)
    mortal.back()
    mortal.cluster.wait_state(job_id, "PAUSED")
    return job_id, "PAUSED"


def a_pause_of_a_queued_job(mortal, made, again):
    return paused(mortal, mortal.queued(made))


def a_pause_of_a_job_in_preflight(mortal, made, again):
    return paused(mortal, mortal.measured_first(made))


def a_pause_of_a_starting_job(mortal, made, again):
    return paused(mortal, mortal.starting(made))


def a_pause_of_a_running_job(mortal, made, again):
    return paused(mortal, mortal.running(made))


def a_pause_of_a_job_that_stops(mortal, made, again):
    return paused(mortal, mortal.stopping(again))


def a_paused_job_that_is_gone(mortal, made, again):
    job_id = mortal.running(made)
    mortal.dies(lambda: mortal.cluster.api().PauseJob(api.PauseJobRequest(id=job_id, grace_seconds=LONG_S), timeout=30))
    mortal.back()
    job = mortal.cluster.wait_state(job_id, "PAUSED")
    assert job.pause.step >= 2 and not job.pause.lost_steps, job.pause
    return job_id, "PAUSED"


def a_resume(mortal, made, again):
    job_id = mortal.paused(made)
    step = mortal.cluster.job(job_id).pause.step
    with_resume(mortal, job_id)
    mortal.cluster.wait_step(job_id, step + 1)
    assert mortal.cluster.job(job_id).restored.step == step
    return job_id, "RUNNING"


def with_resume(mortal, job_id):
    """A resume that was done is refused the second time: it is no job any more that waits for one."""
    request = api.ResumeJobRequest(id=job_id, reason="because")
    mortal.dies(lambda: mortal.cluster.api().ResumeJob(request, timeout=30))
    if mortal.cluster.state(job_id) == "PAUSED":
        assert mortal.where == "before"
        mortal.cluster.api().ResumeJob(request, timeout=60)
    mortal.back()


def retried(mortal, job_id, ended):
    """One that was done is refused the second time, as a resume is."""
    request = api.RetryJobRequest(id=job_id, reason="because")
    mortal.dies(lambda: mortal.cluster.api().RetryJob(request, timeout=30))
    if mortal.cluster.state(job_id) == ended:
        assert mortal.where == "before"
        mortal.cluster.api().RetryJob(request, timeout=60)
    mortal.back()
    wait_until("it runs again", lambda: mortal.cluster.job(job_id).attempt == 2, LONG_S)
    mortal.cluster.wait_step(job_id, 2)
    return job_id, "RUNNING"


def a_retry(mortal, made, again):
    return retried(mortal, mortal.failed(made), "FAILED")


def a_retry_of_a_cancelled_job(mortal, made, again):
    job_id = mortal.running(made)
    mortal.cluster.cancel(job_id)
    return retried(mortal, job_id, "CANCELLED")


CASES = [
    Case("job QUEUED -> STARTING", "launching 2 ranks", a_launch),
    Case("job QUEUED -> PREFLIGHT", "measured first (preflight)", a_preflight),
    Case("job PREFLIGHT -> STARTING", "its nodes have passed their preflight", a_launch_after_a_preflight),
    Case("job PREFLIGHT -> QUEUED", "node-1 is cordoned: because", a_node_that_is_cordoned_in_a_preflight),
    Case("job STARTING -> RUNNING", "all 2 ranks run", a_start),
    Case("job RUNNING -> SUCCEEDED", "all ranks finished", an_end),
    Case("job RUNNING -> STOPPING", "stopping the attempt", a_failure),
    Case("job STARTING -> STOPPING", "stopping the attempt", a_failure_while_it_starts),
    Case("job STOPPING -> QUEUED", "the next one starts", another_attempt),
    Case("job STOPPING -> FAILED", "", a_job_given_up),
    Case("job QUEUED -> CANCELLED", ": because", a_cancel_of_a_queued_job),
    Case("job PREFLIGHT -> CANCELLED", ": because", a_cancel_of_a_job_in_preflight),
    Case("job STARTING -> CANCELLING", ": because", a_cancel_of_a_starting_job),
    Case("job RUNNING -> CANCELLING", ": because", a_cancel_of_a_running_job),
    Case("job STOPPING -> CANCELLING", ": because", a_cancel_of_a_job_that_stops),
    Case("job PAUSING -> CANCELLING", ": because", a_cancel_of_a_job_that_is_being_paused),
    Case("job PAUSED -> CANCELLED", ": because", a_cancel_of_a_paused_job),
    Case("job CANCELLING -> CANCELLED", "all ranks are gone", a_cancelled_job_that_is_gone),
    Case("job QUEUED -> PAUSED", ": because", a_pause_of_a_queued_job),
    Case("job PREFLIGHT -> PAUSED", ": because", a_pause_of_a_job_in_preflight),
    Case("job STARTING -> PAUSING", ": because", a_pause_of_a_starting_job),
    Case("job RUNNING -> PAUSING", ": because", a_pause_of_a_running_job),
    Case("job STOPPING -> PAUSING", ": because", a_pause_of_a_job_that_stops),
    Case("job PAUSING -> PAUSED", ", which is saved", a_paused_job_that_is_gone),
    Case("job PAUSED -> QUEUED", ": because", a_resume),
    Case("job FAILED -> QUEUED", ": because", a_retry),
    Case("job CANCELLED -> QUEUED", ": because", a_retry_of_a_cancelled_job),
]
# What no fault brings about at will.
WITHOUT_A_CASE = {
    "job QUEUED -> FAILED": "it is refused when it is launched, by rules that it passed when it was submitted",
    "job STARTING -> SUCCEEDED": "it ends before all its ranks said that they run",
    "job PAUSING -> SUCCEEDED": "its last step is done before it can leave",
    **{f"job {waits} -> CANCELLING": "a node that was lost is back, and ranks of it end in their grace: tests/sim, seed 20180"
       for waits in ("QUEUED", "PREFLIGHT", "PAUSED")},
}


def test_each_transition_that_the_job_machine_allows_has_a_case():
    table = re.search(r"kTransitions\[\] = \{\n(.*?)^\};", (ROOT / "coordinator/job_machine.cc").read_text(), re.M | re.S)[1]
    rows = re.findall(r"\{v1::JOB_STATE_(\w+), JobEvent::k(\w+), v1::JOB_STATE_(\w+)\},", table)
    assert len(rows) == table.count("JobEvent::")
    # A note leaves a job where it is: no state is lost with it.
    edges = {f"job {before} -> {after}" for before, event, after in rows if event != "Note"}
    assert all(before == after for before, event, after in rows if event == "Note")
    assert sorted([*(case.written for case in CASES), *WITHOUT_A_CASE]) == sorted(edges)


PLACES = [(case, where) for case in CASES for where in ("before", "after") if where == "after" or case.unwritten]


@pytest.mark.parametrize("case, where", PLACES, ids=str)
def test_a_coordinator_that_dies_around(mortal, tmp_path, case, where):
    mortal.where, mortal.texts = where, (case.written, case.unwritten)
    cluster = mortal.cluster
    nodes = {"nodes": 2, "ranks_per_node": 1}
    made = saving(tmp_path / "job", steps=ENDLESS, checkpoint={"every_steps": 20}, resources=nodes, restart={"max_attempts": 1})
    again = {**made, "restart": {"max_attempts": 3}}
    job_id, state = case.story(mortal, made, again)
    cluster.wait_state(job_id, state)  # A step may be shown a moment before what follows from it.
    # Nodes are measured to the end, whatever becomes of the job, and whether their agents are back yet or not.
    ranks = 2 if state == "RUNNING" else 0
    wait_until(f"{ranks} ranks are left, and none that measure", lambda: len(cluster.all_ranks()) == ranks)
    assert [job.id for job in cluster.jobs()] == [job_id]
