"""Running `fsdpctl data` and `fsdpctl model`: their errors, signals and exit codes."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import socket
import sys
import threading
import time
import types
from typing import NoReturn

from fsdpd import faults
from fsdpd.faults import Fault

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S = 5.0  # Until the process exits without removing its temporary files.


class Interrupted(BaseException):
    pass


def interrupt(number: int, frame: types.FrameType | None) -> NoReturn:
    # Ignore further signals while incomplete files are removed.
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted


@dataclasses.dataclass(frozen=True)
class Program:
    name: str  # Of the command, and of its pip extra.
    libraries: tuple[str, ...]  # Modules that the extra installs.
    output: str  # Option with the file to write, for an OSError of a write, which has no file name.

    def run(self, options: argparse.Namespace) -> int:
        try:
            return int(options.run(options))
        except ImportError as error:
            # An import error of another module is a bug of this package, not a missing extra.
            if (error.name or "").split(".")[0] not in self.libraries:
                raise
            self._print(f"libraries of the extra `{self.name}` are missing ({error}); "
                        f"run pip install 'CLONE/clients/python[{self.name}]'")
        except Fault as fault:
            self._print(str(fault))
        except OSError as error:
            file = error.filename or getattr(options, self.output, "")
            self._print(f"{file}: {error.strerror}" if error.strerror else str(error))
        return faults.WRONG_USAGE

    def run_interruptible(self, options: argparse.Namespace) -> int:
        for each in SIGNALS:
            signal.signal(each, interrupt)
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._exit_after_signal, args=(reader, writer), daemon=True).start()
        try:
            return self.run(options)
        except Interrupted:
            self._print("interrupted")
            return faults.INTERRUPTED

    def _exit_after_signal(self, reader: socket.socket, writer: socket.socket) -> None:
        """A handler in Python waits for the end of the operation that runs, which may take minutes."""
        reader.recv(1)
        time.sleep(GRACE_S)
        self._print("interrupted")
        os._exit(faults.INTERRUPTED)

    def _print(self, text: str) -> None:
        print(f"fsdpctl {self.name}: {text}", file=sys.stderr)
