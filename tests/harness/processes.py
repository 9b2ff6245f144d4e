"""Processes started by tests, and the check that none of them is left.

The test process becomes the subreaper of its descendants: an orphaned or daemonized grandchild becomes its child instead
of init's, so a walk over the descendants finds all. An inherited environment variable identifies the cluster of each
process.
"""

import contextlib
import ctypes
import os
import pathlib
import re
import signal
import subprocess
from dataclasses import dataclass

MARK = "FSDPD_TEST_CLUSTER"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def become_subreaper():
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def interrupt_with_parent():
    """For preexec_fn: sends SIGINT to the process when its parent is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)


@dataclass(frozen=True)
class Process:
    """Snapshot of one entry of /proc."""
    pid: int
    parent: int
    state: str
    command: str

    @property
    def program(self):
        return os.path.basename(self.command.split(" ")[0])


def _read(pid):
    try:
        directory = pathlib.Path("/proc") / str(pid)
        # The name in parentheses may contain spaces: the fields start after the last parenthesis.
        fields = (directory / "stat").read_text().rsplit(")", 1)[1].split()
        command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return Process(pid, int(fields[1]), fields[0], command)
    except (FileNotFoundError, ProcessLookupError):
        return None  # Ended while being read.


def _all():
    found = (_read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process]


def descendants(pid):
    """All live descendants of `pid`. Excludes zombies, which run nothing and hold no resources."""
    by_parent = {}
    for process in _all():
        by_parent.setdefault(process.parent, []).append(process)
    found, queue = [], [pid]
    while queue:
        for process in by_parent.get(queue.pop(), []):
            queue.append(process.pid)
            if process.state != "Z":
                found.append(process)
    return found


def marked(mark):
    """Descendants with `mark` in their environment."""
    found = []
    for process in descendants(os.getpid()):
        try:
            environment = pathlib.Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        own = [entry for entry in environment if entry.startswith(MARK.encode() + b"=")]
        if own == [f"{MARK}={mark}".encode()]:
            found.append(process)
    return found


# ::1 in /proc/net/tcp6. No daemon listens there, but Bazel's server does and may use the same port number.
IPV6_LOOPBACK = "00000000000000000000000001000000"


def peak_kib(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE).group(1))


def listening(port):
    """Whether a descendant listens on TCP `port`, except on IPv6 loopback. Other processes may own a port that was
    freed."""
    ours = {link for process in descendants(os.getpid()) for link in _open_files(process.pid)}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            address, number = fields[1].rsplit(":", 1)
            listens = fields[3] == "0A" and address != IPV6_LOOPBACK and int(number, 16) == port
            if listens and f"socket:[{fields[9]}]" in ours:
                return True
    return False


def _open_files(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                yield os.readlink(f"/proc/{pid}/fd/{name}")


class Daemon:
    """A started program. Its stdout and stderr go to one log file."""

    def __init__(self, name, command, log, mark):
        self.name, self.command, self.log = name, [str(each) for each in command], pathlib.Path(log)
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                            start_new_session=True, env={**os.environ, MARK: mark})

    @property
    def pid(self):
        return self.process.pid

    def running(self):
        return self.process.poll() is None

    def text(self):
        return self.log.read_text(errors="replace")

    def kill(self):
        """Kills without warning, like a crash."""
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s=120):
        """Stops like an operator, with SIGTERM. Returns the exit code."""
        if self.running():
            self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s=120):
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs {timeout_s} s after it should have ended; its log:\n"
                                 f"{self.text()[-4000:]}") from None
