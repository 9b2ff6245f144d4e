"""Calls whose replies are lost, and their retries."""

import contextlib

import grpc
import pytest

from harness.proxy import DeafProxy
from harness.specs import ENDLESS, one_rank, spec, to_message
from harness.stubs import coordinator as api
from harness.stubs import coordinator_grpc
from harness.wait import measured


@contextlib.contextmanager
def through(cluster):
    """Yields (a stub whose calls go through a proxy, the proxy)."""
    proxy = DeafProxy(cluster.address)
    # Without the channel's retries: the test retries.
    channel = grpc.insecure_channel(proxy.address, options=[("grpc.enable_retries", 0)])
    try:
        yield coordinator_grpc.CoordinatorStub(channel), proxy
    finally:
        channel.close()
        proxy.close()


def lost(proxy, call):
    proxy.lose_answers()
    with pytest.raises(grpc.RpcError) as error:
        call()
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE, error.value
    assert proxy.lost.is_set(), "no reply was dropped"


@pytest.mark.parametrize("dies", [False, True], ids=["coordinator_up", "coordinator_killed"])
def test_repeated_submit_after_lost_reply_is_one_job(own, dies):
    with own(agents=0) as cluster:
        request = api.SubmitJobRequest(spec=to_message(spec(name="once")), request_id="my-request")
        with through(cluster) as (stub, proxy):
            stub.GetVersion(api.GetVersionRequest(), timeout=60)
            lost(proxy, lambda: stub.SubmitJob(request, timeout=60))
        with measured("the repeated submit is answered"):
            if dies:
                cluster.coordinator.kill()
                cluster.start_coordinator(listen=cluster.address)
            known, = cluster.jobs()
            again = cluster.api().SubmitJob(request, timeout=60).job
        assert again.id == known.id and [job.id for job in cluster.jobs()] == [known.id]
        other = api.SubmitJobRequest(spec=to_message(spec(name="other")), request_id="my-request")
        with pytest.raises(grpc.RpcError) as error:
            cluster.api().SubmitJob(other, timeout=60)
        assert error.value.code() == grpc.StatusCode.ALREADY_EXISTS, error.value


def test_cancel_after_lost_reply_is_idempotent(own):
    with own(agents=1) as cluster:
        job_id = cluster.submit(one_rank(steps=ENDLESS))
        cluster.wait_step(job_id, 2)
        request = api.CancelJobRequest(id=job_id, grace_seconds=5)
        with through(cluster) as (stub, proxy):
            stub.GetVersion(api.GetVersionRequest(), timeout=60)
            lost(proxy, lambda: stub.CancelJob(request, timeout=60))
        done = cluster.wait_state(job_id, "CANCELLED")
        assert cluster.api().CancelJob(request, timeout=60).job.revision == done.revision
