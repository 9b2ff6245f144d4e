"""Tests that commands which follow a job or events reconnect after a coordinator restart, in plaintext and over TLS."""

import pytest

from harness.processes import Daemon
from harness.programs import program
from harness.security import Security
from harness.specs import ENDLESS, one_rank
from harness.wait import wait_until


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
def test_followers_reconnect_after_coordinator_restart(own, tmp_path, tls):
    """Regression: over TLS they exited with 5 after a minute, because no thread polled the connection during the
    handshake."""
    security = Security(tmp_path / "security") if tls else None
    with own(agents=1, slots=2, security=security) as cluster:
        job_id = cluster.submit(one_rank(steps=ENDLESS))
        cluster.wait_step(job_id, 1)
        path = cluster.write_spec(one_rank(name="second", steps=ENDLESS))
        access = security.ctl_flags("ada") if tls else []
        followers = {command[0]: Daemon(command[0], [program("client/fsdpctl"), "--server", cluster.address, *access,
                                                     *command], tmp_path / f"{command[0]}.txt", cluster.mark)
                     for command in (["submit", "--follow", "-f", path], ["watch", job_id], ["logs", "-f", job_id],
                                     ["events", "-w"], ["get", "-w"], ["wait", job_id])}
        reporting = [name for name in followers if name != "wait"]
        for name in reporting:
            wait_until(f"{name} has printed", followers[name].text)
        wait_until("the second job runs", lambda: len(cluster.all_ranks()) == 2)
        cluster.coordinator.kill()
        for name in reporting:
            wait_until(f"{name} has lost its connection", lambda: "connection lost" in followers[name].text())
        cluster.start_coordinator(listen=cluster.address)
        cluster.wait_nodes(1)
        for name in reporting:
            wait_until(f"{name} is connected again", lambda: "connected again" in followers[name].text())
        cluster.cancel_all()
        for name, code in (("submit", 1), ("watch", 1), ("logs", 0), ("wait", 0)):
            assert followers[name].wait() == code, followers[name].text()
        for name in ("events", "get"):
            assert followers[name].running(), followers[name].text()
            followers[name].stop()
