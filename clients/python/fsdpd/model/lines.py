"""Source lines of the user's code, for errors: 'model.py:12 (x = y.sort())'."""

from __future__ import annotations

import pathlib
import re
import traceback
from collections.abc import Sequence
from typing import Any

import torch

from fsdpd.faults import Fault

OWN = (pathlib.Path(torch.__file__).parent, pathlib.Path(__file__).parent)
CALLERS = 3  # Lines of an error, after the innermost one.
Frame = tuple[str, Any, "str | None"]


def where(node: torch.fx.Node) -> str:
    lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines()]
    frames = []
    for line, code in zip(lines, [*lines[1:], ""]):
        if found := re.fullmatch(r'File "(.+)", line (\d+), in .*', line):
            frames.append((found[1], found[2], code))
    return place(frames) or f"operation {node.target}"


def place(frames: Sequence[Frame]) -> str:
    """The innermost frame outside PyTorch and this package."""
    return next(iter(places(frames)), "")


def places(frames: Sequence[Frame]) -> list[str]:
    return [f"{file}:{line} ({code})" for file, line, code in reversed(frames)
            if not file.startswith("<") and not any(pathlib.Path(file).is_relative_to(directory) for directory in OWN)]


def frames_of(error: BaseException) -> list[Frame]:
    found: list[Frame] = [(each.filename, each.lineno, each.line) for each in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        found.append((error.filename, error.lineno, (error.text or "").strip()))
    return found


def located(error: Exception, name: str) -> Fault:
    """An error in the user's code, with the lines that led to it."""
    innermost, *callers = places(frames_of(error)) or [name]
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    called = "".join(f"\n  called at {each}" for each in callers[:CALLERS])
    return Fault(f"{innermost}: {type(error).__name__}: {message}{called}")
