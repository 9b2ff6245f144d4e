"""Running `fsdpctl data` and `fsdpctl model`: their errors, signals and exit codes."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
import types
from typing import NoReturn

from fsdpd import faults
from fsdpd.faults import Fault

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
        try:
            return self.run(options)
        except Interrupted:
            self._print("interrupted")
            return faults.INTERRUPTED

    def _print(self, text: str) -> None:
        print(f"fsdpctl {self.name}: {text}", file=sys.stderr)
