"""Runs fsdpd-rank processes without a daemon: this module launches them like an agent and is their rendezvous store.

    reports = run_job(message, world=2, directory=path)   # StepReports by rank
"""

import os
import socket
import struct
import threading

from harness import stubs
from harness.programs import program

_RANK_FD = 3  # Where a rank expects its line to the agent.
_LENGTH = struct.Struct("<I")


class Store:
    """Keys are set once; a reader waits until its key exists."""

    def __init__(self):
        self._values = {}
        self._changed = threading.Condition()

    def set(self, key, value):
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key):
        with self._changed:
            self._changed.wait_for(lambda: key in self._values)
            return self._values[key]


class Rank:
    """A rank process, and the thread that serves it."""

    def __init__(self, launch, store, log):
        self.reports, self.saved, self.error = [], [], "it said nothing before it ended"
        self._store, self._lock = store, threading.Lock()
        self._line, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        binary = program("fsdp/fsdpd-rank")
        actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), _RANK_FD),
                   (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
                   (os.POSIX_SPAWN_DUP2, 1, 2)]
        self._pid = os.posix_spawn(binary, [binary], {**os.environ, "OMP_NUM_THREADS": "1"}, file_actions=actions)
        theirs.close()
        self._send(stubs.rank.AgentToRank(launch=launch))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self):
        """Returns the exit code."""
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._reader.join()
        self._line.close()
        return code

    def _send(self, message):
        payload = message.SerializeToString()
        with self._lock:
            self._line.sendall(_LENGTH.pack(len(payload)) + payload)

    def _read(self):
        stream = self._line.makefile("rb")
        while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
            message = stubs.rank.RankToAgent.FromString(stream.read(*_LENGTH.unpack(head)))
            kind = message.WhichOneof("body")
            if kind == "step":
                self.reports.append(message.step)
            elif kind == "saved":
                self.saved.append(message.saved)
            elif kind == "finished":
                self.error = message.finished.error
            elif kind == "store_set":
                self._store.set(message.store_set.key, message.store_set.value)
            elif kind == "store_get":
                threading.Thread(target=self._answer, args=(message.store_get,), daemon=True).start()

    def _answer(self, question):
        value = stubs.rank.StoreValue(request=question.request, value=self._store.get(question.key))
        self._send(stubs.rank.AgentToRank(store_value=value))


def run_job(spec, world, directory):
    """Runs a JobSpec message to its end; returns each rank's StepReports."""
    return [rank.reports for rank in run_ranks(spec, world, directory)]


def run_ranks(spec, world, directory):
    """Like run_job(), but returns the exited ranks."""
    store = Store()
    ranks = [Rank(stubs.rank.RankLaunch(job_id="perf", attempt=1, spec=spec, rank=rank, world_size=world), store,
                  directory / f"rank-{rank}.log") for rank in range(world)]
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        raise RuntimeError(f"ranks ended with {codes}: {[rank.error for rank in ranks]}")
    return ranks
