"""Pseudo-terminal that runs a program and renders the screen that a user would see.

Supports the few control sequences that a progress display needs. Other sequences are recorded in `unknown`, and tests
fail on them, because they may be garbage on a real terminal too.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

_ESCAPE = re.compile(r"\x1b(?:\[([?0-9;]*)([A-Za-z])|\][^\x07]*\x07|[()][A-Z0-9])")


class Screen:
    """Lines of characters with unlimited scrolling, and a cursor."""

    def __init__(self, columns):
        self.columns = columns
        self.lines = [""]
        self.row = self.column = 0
        self.colors = False
        self.cursor_shown = True
        self.unknown = []
        self._rest = ""

    def feed(self, text):
        text = self._rest + text
        # A sequence may be split between two reads.
        cut = text.rfind("\x1b")
        self._rest = text[cut:] if cut >= 0 and not _ESCAPE.match(text, cut) else ""
        text = text[:len(text) - len(self._rest)]
        at = 0
        while at < len(text):
            escape = _ESCAPE.match(text, at)
            if escape:
                self._control(escape)
                at = escape.end()
            else:
                self._put(text[at])
                at += 1

    def text(self):
        return "\n".join(line.rstrip() for line in self.lines).rstrip() + "\n"

    def _put(self, char):
        if char == "\n":
            self.row += 1
        elif char == "\r":
            self.column = 0
        elif char == "\b":
            self.column = max(0, self.column - 1)
        elif char == "\x07":
            pass
        elif ord(char) < 0x20:
            self.unknown.append(char)
        else:
            if self.column >= self.columns:
                self.row, self.column = self.row + 1, 0
            self._row()
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[:self.column] + char + line[self.column + 1:]
            self.column += 1
        self._row()

    def _row(self):
        self.lines += [""] * (self.row + 1 - len(self.lines))

    def _control(self, escape):
        arguments, letter = escape.group(1) or "", escape.group(2)
        count = int(arguments) if arguments.isdigit() else 0
        if letter == "m":
            self.colors = True
        elif letter == "K":
            line = self.lines[self.row]
            self.lines[self.row] = {0: line[:self.column], 1: " " * self.column + line[self.column:], 2: ""}[count]
        elif letter == "J" and count == 0:
            self.lines[self.row] = self.lines[self.row][:self.column]
            del self.lines[self.row + 1:]
        elif letter == "A":
            self.row = max(0, self.row - max(1, count))
        elif letter == "B":
            self.row += max(1, count)
            self._row()
        elif letter == "G":
            self.column = max(0, count - 1)
        elif letter in "hl" and arguments == "?25":
            self.cursor_shown = letter == "h"
        elif letter in "hl" and arguments == "?7":
            pass  # Line wrap is off while a status line is drawn.
        else:
            self.unknown.append(escape.group())


class Terminal:
    """A program in the foreground of its own session with a pseudo-terminal."""

    def __init__(self, command, columns=100, rows=30, environment=None):
        self.screen = Screen(columns)
        self.raw = ""
        self.code = None
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            variables = {**os.environ, "TERM": "xterm-256color", **(environment or {})}
            variables.pop("NO_COLOR", None)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execvpe(command[0], [str(each) for each in command], variables)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)

    def type(self, keys):
        os.write(self._fd, keys.encode())

    def run_until(self, what, condition=None, timeout_s=180):
        """Reads until `condition(self)`, or without one until the program ends. Returns its exit code."""
        deadline = time.monotonic() + timeout_s
        while not (condition and condition(self)):
            if not select.select([self._fd], [], [], 0.1)[0]:
                assert time.monotonic() < deadline, f"{what}: timeout after {timeout_s} s; screen:\n{self.screen.text()}"
                continue
            try:
                chunk = os.read(self._fd, 65536).decode(errors="replace")
            except OSError:  # The program has ended.
                chunk = ""
            if not chunk:
                status = os.waitpid(self.pid, 0)[1]
                self.code = os.waitstatus_to_exitcode(status)
                assert not condition, f"{what}: the program ended first (exit code {self.code}); screen:\n{self.screen.text()}"
                return self.code
            self.raw += chunk
            self.screen.feed(chunk)
            assert time.monotonic() < deadline, f"{what}: timeout after {timeout_s} s; screen:\n{self.screen.text()}"
        return self.code
