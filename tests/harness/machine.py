"""Debian machine for tests: a real systemd in namespaces of systemd-nspawn, with its own network. Its root is an
overlay over a directory made by tests/debian/build, and is removed with the machine."""

import os
import pathlib
import shutil
import subprocess

import pytest

from harness.processes import Daemon, descendants
from harness.programs import ROOT
from harness.wait import wait_until

BUILD = ROOT / "tests/debian/build"
# The mount is private to the machine and ends with it.
_START = """
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
shift 2
exec "$@"
"""


def debian_root(name):
    """Root directory `slim` or `machine`; skips the test if missing."""
    directory = pathlib.Path(subprocess.run([BUILD, "--path"], capture_output=True, text=True, check=True).stdout.strip())
    if os.geteuid() != 0 or not (directory / ".complete").exists():
        pytest.skip("needs root, and tests/debian/build to have been run once")
    return directory / name


def _over(root, directory, *command):
    """Wraps `command` so that `directory`/root is an overlay of `root` with changes below `directory`."""
    for each in ("upper", "work", "root"):
        (directory / each).mkdir(parents=True, exist_ok=True)
    return ["unshare", "--mount", "sh", "-ec", _START, "sh", root, directory, *command]


def changed(root, directory, script):
    """Runs a sh script on an overlay of `root` in which no service runs. Returns its stdout."""
    command = _over(root, directory, "chroot", directory / "root", "sh", "-exc", script)
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Machine:
    """`with Machine(directory) as machine`: booted for the duration of the block. `directory`/shared is mounted at
    /shared."""

    def __init__(self, directory, name="node-0"):
        self.root, self.directory, self.name = debian_root("machine"), directory, name
        if not shutil.which("systemd-nspawn"):
            pytest.skip("systemd-nspawn is not installed (Debian package systemd-container)")
        self.shared = directory / "shared"
        self.shared.mkdir(parents=True)

    def __enter__(self):
        self._nspawn = Daemon("machine", _over(
            self.root, self.directory, "systemd-nspawn", f"--directory={self.directory / 'root'}", f"--machine=fsdpd-{os.getpid()}",
            f"--hostname={self.name}", "--register=no", "--keep-unit", "--private-network", "--link-journal=no",
            "--resolv-conf=off", "--console=pipe", f"--bind={self.shared}:/shared", "--boot"),
            self.directory / "machine.log", "machine")
        try:
            self._systemd = wait_until("systemd is started", self._first_process)
            wait_until("the machine is up", lambda: self("systemctl is-system-running", code=None).strip() in ("running", "degraded"))
        except BaseException:
            self._end()
            raise
        return self

    def _first_process(self):
        assert self._nspawn.running(), self._nspawn.text()
        return next((each.pid for each in descendants(self._nspawn.pid) if each.program == "systemd"), None)

    def __exit__(self, kind, error, trace):
        if kind is not None:
            print(self("journalctl --no-pager --lines 60", code=None))
        self._end()

    def _end(self):
        self._nspawn.stop()  # Shuts down the machine.
        for each in ("upper", "work"):  # Half a gigabyte of libraries.
            shutil.rmtree(self.directory / each)

    def __call__(self, script, code=0):
        """Runs a sh script on the machine as root and returns its stdout. `code` None accepts any exit code."""
        done = subprocess.run(["nsenter", f"--target={self._systemd}", "--all", "env", "-i", "HOME=/root",
                               "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive",
                               "sh", "-ec", script], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
        assert code is None or done.returncode == code, f"{script}\nexit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def property(self, unit, name):
        return self(f"systemctl show --property={name} --value {unit}").strip()

    def pid(self, unit):
        """Pid of the unit's main process, in the machine's PID namespace."""
        return int(self.property(unit, "MainPID"))
