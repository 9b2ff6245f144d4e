"""Progress on stderr: one line that is redrawn on a terminal, or else a line every ten seconds."""

from __future__ import annotations

import sys
import time

TERMINAL_S, LOG_S = 0.2, 10.0


def of_count(number: float) -> str:
    return f"{number:,.0f}"


class Progress:
    def __init__(self, what: str) -> None:
        self._what = what
        self._terminal = sys.stderr.isatty()
        self._began = self._shown = time.monotonic()
        self._drawn = False

    def show(self, tokens: int, documents: int, fraction: float | None = None) -> None:
        now = time.monotonic()
        if now - self._shown < (TERMINAL_S if self._terminal else LOG_S):
            return
        self._shown = now
        part = "" if fraction is None else f", {fraction:.0%}"
        text = f"{self._what}: {self._counts(tokens, documents)}{part}"
        if self._terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._drawn = True
        else:
            print(text, file=sys.stderr, flush=True)

    def end(self, tokens: int, documents: int) -> None:
        self.clear()
        print(f"{self._what}: {self._counts(tokens, documents)}, in {time.monotonic() - self._began:.1f} s",
              file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self._drawn = False

    def _counts(self, tokens: int, documents: int) -> str:
        seconds = max(time.monotonic() - self._began, 1e-3)
        return f"{of_count(tokens)} tokens of {of_count(documents)} documents, {of_count(tokens / seconds)} tokens/s"
