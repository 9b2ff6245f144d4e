"""Soak test: many jobs while all processes are killed and stopped at random: three coordinators on one etcd and two
agents, over TLS.

Every job succeeds without help, each `submit --follow` stays attached until then, and no resource leaks.
"""

import contextlib
import dataclasses
import os
import random
import signal
import threading
import time

import pytest

from harness import stubs
from harness.coordinators import NAMES, Coordinators
from harness.processes import Daemon
from harness.programs import program
from harness.security import Security
from harness.specs import spec
from harness.wait import tell, wait_until

FOLLOWERS = 8  # Maximum number of live jobs: more than the four slots can run.


@dataclasses.dataclass
class Deaths:
    """Injects one random fault into a random process every `every_s` seconds for `seconds`, until `stop` is set."""
    cluster: Coordinators
    seconds: float
    every_s: float
    seed: int
    done: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self._random = random.Random(self.seed)
        self._stop = threading.Event()
        self._error = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *failure):
        if failure[0] is not None:
            self._stop.set()
        self._thread.join()
        if failure[0] is None and self._error is not None:
            raise self._error

    def _run(self):
        try:
            end = time.monotonic() + self.seconds
            while time.monotonic() < end and not self._stop.wait(self._random.uniform(0.5, 1.5) * self.every_s):
                kind = self._random.choice([self._coordinator_killed, self._coordinator_stopped, self._agent_killed,
                                            self._agent_stopped, self._rank_killed, self._rank_killed, self._rank_stopped])
                if kind():
                    self.done.append(kind.__name__.strip("_"))
        except BaseException as error:  # Raised by the thread that joins this one.
            self._error = error

    def _coordinator_killed(self):
        name = self._random.choice(NAMES)
        self.cluster.daemons[name].kill()
        self._stop.wait(self._random.uniform(0, 3))
        self.cluster.start_one(name)
        return True

    def _coordinator_stopped(self):
        return self._stopped(self.cluster.daemons[self._random.choice(NAMES)].pid, 8)

    def _agent_killed(self):
        name = self._random.choice(sorted(self.cluster.agents))
        self.cluster.agents[name].kill()
        self._stop.wait(self._random.uniform(0, 3))
        self.cluster.start_agent(name, wait=False)
        return True

    def _agent_stopped(self):
        return self._stopped(self._random.choice(sorted(self.cluster.agents.values(), key=lambda each: each.name)).pid, 15)

    def _rank(self):
        ranks = sorted(each.pid for each in self.cluster.all_ranks())
        return self._random.choice(ranks) if ranks else None

    def _rank_killed(self):
        return self._signal(self._rank(), signal.SIGKILL)

    def _rank_stopped(self):
        return self._stopped(self._rank(), 10)

    def _stopped(self, pid, at_most_s):
        if not self._signal(pid, signal.SIGSTOP):
            return False
        self._stop.wait(self._random.uniform(0.5, at_most_s))
        self._signal(pid, signal.SIGCONT)
        return True

    @staticmethod
    def _signal(pid, number):
        with contextlib.suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, number)
                return True
        return False


def job(number, directory):
    """A job of some seconds on one or two nodes, with periodic checkpoints."""
    return spec(name=f"soak-{number}", steps=60, resources={"nodes": 1 + number % 2, "ranks_per_node": 1},
                checkpoint={"dir": str(directory / f"soak-{number}"), "every_steps": 20},
                restart={"max_attempts": 50, "hang_seconds": 5})


def open_descriptors(daemon):
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


# Nightly: about a hundred faults with a new seed. All jobs must end within `limit_s` of the first submit.
@pytest.mark.parametrize("jobs, seconds, every_s, limit_s, seed", [
    pytest.param(6, 30, 3, 400, 1, marks=pytest.mark.timeout(600)),
    pytest.param(100, 480, 2, 900, None, marks=[pytest.mark.nightly, pytest.mark.timeout(1500)]),
])
def test_jobs_succeed_under_random_faults(tmp_path, jobs, seconds, every_s, limit_s, seed):
    security = Security(tmp_path / "security")
    seed = seed or random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    with Coordinators(tmp_path / "cluster", security=security) as cluster:
        def follow(number):
            path = cluster.write_spec(job(number, tmp_path), f"soak-{number}.yaml")
            return Daemon(f"follower-{number}", [
                program("client/fsdpctl"), "--server", cluster.address, *security.ctl_flags("ada"), "submit", "--follow",
                "-f", path], tmp_path / f"follower-{number}.txt", cluster.mark)

        began = time.monotonic()
        events = Daemon("events", [program("client/fsdpctl"), "--server", cluster.address, *security.ctl_flags("ada"),
                                   "events", "-w"], tmp_path / "events.txt", cluster.mark)
        followers = []
        with Deaths(cluster, seconds, every_s, seed) as deaths:
            for number in range(jobs):
                wait_until("a follower may be started", lambda: sum(each.running() for each in followers) < FOLLOWERS,
                           limit_s)
                followers.append(follow(number))
                time.sleep(seconds / jobs)
        for follower in followers:
            follower.wait(max(1, began + limit_s - time.monotonic()))
        tell("faults", len(deaths.done))
        tell("all jobs have ended", f"{time.monotonic() - began:.0f} s")
        lost = {each.name: each.text()[-2000:] for each in followers if each.process.returncode != 0}
        assert not lost, f"seed {seed}, {len(deaths.done)} faults: {deaths.done}: {lost}"
        assert {each.spec.name: stubs.coordinator.JobState.Name(each.state) for each in cluster.jobs()} == {
            f"soak-{number}": "JOB_STATE_SUCCEEDED" for number in range(jobs)}
        assert events.running(), events.text()[-2000:]
        events.stop()
        cluster.wait_nodes(2)
        cluster.wait_idle()
        for daemon in (*cluster.daemons.values(), *cluster.agents.values()):
            wait_until(f"{daemon.name} has closed what its jobs had open", lambda: open_descriptors(daemon) < 150)
