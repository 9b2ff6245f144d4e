"""Tests of all clients with three coordinators: they find the leader, and the next leader after a failure."""

import asyncio
import json
import subprocess
import threading

import fsdpd
import pytest

from clients.test_go import example, generated  # noqa: F401
from clients.test_python import Followed
from harness.coordinators import NAMES, Coordinators
from harness.security import Security
from harness.specs import ENDLESS, one_rank
from harness.wait import wait_until

pytestmark = pytest.mark.timeout(900)  # As test_go.py's.


def follow(client, job_id, followed):
    for update in client.watch(job_id):
        followed.take(update)


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
def test_all_clients_survive_leader_kill(tmp_path, example, tls):  # noqa: F811
    security = Security(tmp_path / "security") if tls else None
    environ = security.environment("ada") if tls else {}
    with Coordinators(tmp_path / "cluster", security=security) as cluster:
        first = cluster.leader()
        names = sorted(NAMES, key=lambda name: name == first)
        addresses = ",".join(cluster.addresses[name] for name in names)
        path = tmp_path / "job.json"
        path.write_text(json.dumps(one_rank(name="go", steps=ENDLESS)))
        with fsdpd.Client(addresses, environ=environ) as client, \
                fsdpd.Client(cluster.addresses[names[0]], environ=environ) as of_a_standby, \
                subprocess.Popen([example, "several", path], env={**environ, "FSDPD_SERVER": addresses},
                                 stdout=subprocess.PIPE, text=True) as going:
            reported = []
            reader = threading.Thread(target=lambda: reported.extend(map(json.loads, going.stdout)))
            reader.start()
            job_id = client.submit(one_rank(name="python", steps=ENDLESS), request_id="one").job.id
            assert client.get(job_id, timeout_s=5).id == job_id
            assert of_a_standby.submit(one_rank(name="python", steps=ENDLESS), request_id="one").job.id == job_id, \
                "the leader is asked also where it is not among the addresses"
            followed = Followed()
            watch = threading.Thread(target=follow, args=(client, job_id, followed))
            watch.start()
            steps_of_go = lambda: [each for each in reported if each["kind"] == "step"]  # noqa: E731
            wait_until("both have steps", lambda: followed.steps and steps_of_go())
            cluster.daemons[first].kill()
            second = cluster.leader(first)
            cluster.wait_nodes(2)
            before, of_go = len(followed.steps), len(steps_of_go())
            wait_until("both have steps of the new leader",
                       lambda: len(followed.steps) > before + 3 and len(steps_of_go()) > of_go + 3)
            assert client.submit(one_rank(name="python", steps=ENDLESS), request_id="one").job.id == job_id
            assert [line for line in client.logs(job_id, rank=0)]

            async def end_all():
                async with fsdpd.AsyncClient(addresses, environ=environ) as asynchronous:
                    async for job in asynchronous.jobs():
                        await asynchronous.cancel(job.id, grace_s=0)

            asyncio.run(end_all())
            watch.join(60)
            assert going.wait(60) == 1
            reader.join(60)
        assert second != first and not watch.is_alive()
        followed.check()
        assert followed.job.state == fsdpd.JobState.JOB_STATE_CANCELLED and followed.job.attempt == 1
