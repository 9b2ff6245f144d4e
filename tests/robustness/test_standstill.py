"""Processes that are suspended and resumed, as on a machine that swaps, migrates or is overloaded; and a log reader
that ends."""

import os
import signal
import subprocess

import grpc

from harness.cluster import rank_of
from harness.processes import MARK
from harness.programs import program
from harness.specs import ENDLESS, one_rank, spec, to_message
from harness.stubs import coordinator as api
from harness.stubs import coordinator_grpc
from harness.wait import measured, wait_until


def test_short_agent_suspension_keeps_ranks(own):
    with own() as cluster:
        job_id = cluster.submit(spec(steps=ENDLESS))
        cluster.wait_step(job_id, 2)
        agent, attached = cluster.agents["node-1"], cluster.agents["node-1"].text().count("attached coordinator=")
        os.kill(agent.pid, signal.SIGSTOP)
        before = cluster.job(job_id).last_step.step
        cluster.wait_step(job_id, before + 20)  # Ranks do not need their agent while they train.
        os.kill(agent.pid, signal.SIGCONT)
        cluster.wait_step(job_id, cluster.job(job_id).last_step.step + 20)
        job = cluster.job(job_id)
        assert job.attempt == 1 and cluster.state(job_id) == "RUNNING", job
        assert agent.text().count("attached coordinator=") == attached, "the stream was kept"
        cluster.cancel(job_id)


def test_stale_ranks_end_when_lost_agent_resumes(own):
    """Suspends an agent for longer than its lease; the job's next attempt uses the other node."""
    with own(slots=1) as cluster:
        job_id = cluster.submit(one_rank(steps=ENDLESS, restart={"max_attempts": 3}))
        cluster.wait_step(job_id, 2)
        node = cluster.job(job_id).placements[0].node
        other = next(name for name in cluster.agents if name != node)
        stale = cluster.ranks(node)[0].pid
        os.kill(cluster.agents[node].pid, signal.SIGSTOP)
        wait_until("the next attempt runs elsewhere", lambda: cluster.job(job_id).attempt == 2
                   and cluster.job(job_id).placements[0].node == other and cluster.ranks(other))
        os.kill(cluster.agents[node].pid, signal.SIGCONT)
        wait_until("the stale rank has ended", lambda: stale not in [each.pid for each in cluster.all_ranks()])
        cluster.wait_nodes(2)
        cluster.wait_step(job_id, 2)
        assert cluster.job(job_id).attempt == 2 and [rank_of(each) for each in cluster.all_ranks()] == [0]
        cluster.cancel(job_id)


def test_coordinator_survives_end_of_log_reader(tmp_path):
    port_file = tmp_path / "port"
    command = [program("coordinator/fsdpd-coordinator"), "--insecure", "--listen", "127.0.0.1:0", "--state-dir",
               tmp_path / "state", "--port-file", port_file]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, MARK: "log"}) as process:
        try:
            wait_until("the coordinator serves", port_file.exists)
            process.stderr.close()
            with grpc.insecure_channel(port_file.read_text().strip()) as channel:
                for name in ("first", "second"):  # Each logs a line.
                    coordinator_grpc.CoordinatorStub(channel).SubmitJob(
                        api.SubmitJobRequest(spec=to_message(spec(name=name))), timeout=60, wait_for_ready=True)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_calls_to_suspended_coordinator_execute_once(own):
    with own(agents=1) as cluster:
        running = cluster.submit(one_rank(steps=ENDLESS))
        cluster.wait_step(running, 2)
        stub = cluster.api()
        os.kill(cluster.coordinator.pid, signal.SIGSTOP)
        calls = [stub.SubmitJob.future(api.SubmitJobRequest(spec=to_message(spec(name=f"job-{number}")),
                                                            request_id=f"request-{number}"), timeout=100)
                 for number in range(20)]
        # The calls wait in the socket. A call that is cancelled meanwhile must not be executed.
        assert stub.CancelJob.future(api.CancelJobRequest(id=running), timeout=0.5).code() == \
            grpc.StatusCode.DEADLINE_EXCEEDED
        os.kill(cluster.coordinator.pid, signal.SIGCONT)
        with measured("all calls are answered after the suspension"):
            ids = {call.result().job.id for call in calls}
        assert len(ids) == 20 and {job.id for job in cluster.jobs()} == ids | {running}
        assert cluster.job(running).attempt == 1
        cluster.cancel_all()
