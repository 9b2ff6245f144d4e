"""Child processes of the quickstart: started in order, monitored while they run, and always stopped.

The stop is verified. The quickstart makes itself the reaper of orphans (PR_SET_CHILD_SUBREAPER), so
processes that a daemon started stay below it in the process tree however the daemon ended: a walk over /proc finds them.
Listening sockets are named by inode, so a port that another process opened meanwhile is not mistaken for ours.

A signal sets a flag, and only `pause` raises Interrupted: never between a fork and the note that it happened.
"""
import contextlib
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TCP_LISTEN = "0A"
_libc = ctypes.CDLL(None, use_errno=True)
_signals = []


class Interrupted(Exception):
    """SIGINT, SIGTERM or SIGHUP was received."""


class Failed(Exception):
    """A part of the quickstart failed. `log` is the log file of the failed process, or None."""

    def __init__(self, what, log=None):
        super().__init__(what)
        self.log = log


def heed_signals():
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda number, frame: _signals.append(number))


def pause(seconds=0.05):
    """Sleeps briefly. Every waiting loop calls it. Raises Interrupted after a signal."""
    if not _signals:
        time.sleep(seconds)
    if _signals:
        raise Interrupted()


class Child:
    def __init__(self, name, process, log):
        self.name, self.process, self.log = name, process, log

    def require_running(self):
        code = self.process.poll()
        if code is not None:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise Failed(f"{self.name} {how}", self.log)


class Processes:
    """Child processes in start order. Call `adopt_orphans` before the first start, and always `stop` at the end."""

    def __init__(self, stop_seconds=20):
        self._daemons, self._children = [], []
        self._stop_seconds = stop_seconds  # More than the grace period of an agent's ranks (5 s).

    @staticmethod
    def adopt_orphans():
        if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")

    def start(self, name, argv, log, env):
        """Starts a daemon with its output in `log`."""
        with open(log, "wb") as output:
            daemon = self._spawn(name, argv, log, stdout=output, stderr=subprocess.STDOUT, env=env)
        self._daemons.append(daemon)
        return daemon

    def run(self, name, argv, on_interrupt=None, **options):
        """Runs a program on this terminal until it exits, and checks that all daemons run. Returns its exit code. On an
        interrupt, `on_interrupt` may make the program exit by itself before `stop` kills it."""
        child = self._spawn(name, argv, None, **options)
        try:
            while child.process.poll() is None:
                self.require_running()
                pause()
        except Interrupted:
            if on_interrupt:
                on_interrupt()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(5)
            raise
        self._children.remove(child)
        return child.process.returncode

    def _spawn(self, name, argv, log, **options):
        # A new session, so that the terminal's Ctrl-C does not reach children: they are stopped in order with their
        # descendants. If the quickstart is killed, the kernel sends them SIGTERM.
        process = subprocess.Popen(
            [str(arg) for arg in argv], stdin=subprocess.DEVNULL, start_new_session=True, **options,
            preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0))
        self._children.append(Child(name, process, log))
        return self._children[-1]

    def require_running(self):
        for daemon in self._daemons:
            daemon.require_running()

    def address(self, daemon, port_file, seconds=30):
        """Waits until `daemon` serves, and returns the HOST:PORT that it writes to `port_file`."""
        deadline = time.monotonic() + seconds
        while not Path(port_file).exists():
            daemon.require_running()
            if time.monotonic() > deadline:
                raise Failed(f"{daemon.name} did not serve within {seconds} s", daemon.log)
            pause(0.02)
        return Path(port_file).read_text().strip()

    def stop(self):
        """Stops all processes: SIGTERM in reverse start order, one after the other, then SIGKILL. Idempotent."""
        sockets = _listening(descendants())
        stuck, count = [], len(self._daemons)
        for child in reversed(self._children):
            if child.process.poll() is not None:
                continue
            os.killpg(child.process.pid, signal.SIGTERM)
            try:
                child.process.wait(self._stop_seconds)
            except subprocess.TimeoutExpired:
                stuck.append(child.name)
                child.process.kill()
                child.process.wait()
        self._children, self._daemons = [], []
        leaked = kill_descendants()
        open_ports = [port for inode, port in _listening_sockets().items() if inode in sockets]
        return Stopped(count, sorted(sockets.values()), stuck, leaked, open_ports)


class Stopped:
    """Result of `Processes.stop`."""

    def __init__(self, daemons, ports, stuck, leaked, open_ports):
        self.daemons, self.ports = daemons, ports
        self.stuck, self.leaked, self.open_ports = stuck, leaked, open_ports

    def faults(self):
        return ([f"{name} did not stop on SIGTERM and was killed" for name in self.stuck] +
                [f"this process was left behind and was killed: {line}" for line in self.leaked] +
                [f"port {port} is still open" for port in self.open_ports])


def descendants():
    """Returns the living descendants of this process, without zombies."""
    children = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:  # The process exited meanwhile.
            continue
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(entry.name))
    found, frontier = [], [os.getpid()]
    while frontier:
        below = children.get(frontier.pop(), [])
        found += below
        frontier += below
    return found


def kill_descendants(seconds=5):
    """Kills processes and waits for their exit. Returns the command lines of those that were still alive."""
    left = descendants()
    lines = [_command_line(pid) for pid in left]
    deadline = time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
        left = descendants()
    return lines


def _listening(pids):
    """Returns the listening TCP sockets of `pids` as {inode: port}."""
    held = set()
    for pid in pids:
        try:
            held.update(os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd"))
        except OSError:
            continue
    return {inode: port for inode, port in _listening_sockets().items() if f"socket:[{inode}]" in held}


def _listening_sockets():
    sockets = {}
    for table in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else []:
            fields = line.split()
            if fields[3] == _TCP_LISTEN:
                sockets[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return sockets


def _command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return f"process {pid}"
