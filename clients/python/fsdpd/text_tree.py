"""Parser of YAML (and JSON, a subset) into a tree of strings with positions, with the limits of fsdpctl
(base/spec_text/yaml_tree.h). Values are not typed: the field decides what `1e4` or `yes` means, not YAML."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from fsdpd.v1.plan_pb2 import SEVERITY_ERROR, Violation

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 32
_MAX_NODES = 20_000
_MAX_BITS = 1024  # Of an integer in Python's values; a field has 64 bits.
_NULLS = ("", "~", "null", "Null", "NULL")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WHAT = {"null": "nothing", "list": "a list", "map": "a group of fields"}


@dataclass(frozen=True)
class Place:
    """Line and column, from 1; 0 for values that do not come from a text."""
    file: str = ""
    line: int = 0
    column: int = 0


@dataclass
class Node:
    kind: str  # null, scalar, list or map
    place: Place
    text: str = ""  # Only for a scalar.
    quoted: bool = False  # The scalar is quoted or a block.
    items: list[Node] = field(default_factory=list)
    fields: list[tuple[str, Place, Node]] = field(default_factory=list)
    key_place: Place | None = None  # Position of the key, for a value of a map.

    @property
    def what(self) -> str:
        return _WHAT.get(self.kind, "a single value")


class _Refused(Exception):
    def __init__(self, place: Place, rule: str, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.fault = Violation(rule=rule, severity=SEVERITY_ERROR, reason=reason, fix=fix, file=place.file, line=place.line,
                           column=place.column)


def parse(text: bytes, file: str) -> tuple[Node, Violation | None]:
    """Returns the root and a violation or None. With a violation the tree is invalid. The root of an empty text is
    null."""
    nothing = Node("null", Place(file, 1, 1))
    try:
        if len(text) > _MAX_BYTES:
            raise _Refused(nothing.place, "too_large", f"more than {_MAX_BYTES} bytes", "shorten the file")
        return _Builder(file).build(yaml.parse(text.decode(), Loader=_LOADER)) or nothing, None
    except _Refused as refused:
        return nothing, refused.fault
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        column = error.start - text.rfind(b"\n", 0, error.start)
        return nothing, _Refused(Place(file, line, column), "not_utf8", f"byte 0x{text[error.start]:02x} is not UTF-8",
                                 "save the file as UTF-8").fault
    except yaml.reader.ReaderError as error:  # The loader decides whether its position is in bytes or characters.
        before = text.decode().partition(chr(error.character))[0]
        place = Place(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        return nothing, _Refused(place, "syntax", f"the character U+{error.character:04X} is not allowed in YAML",
                                 "remove it").fault
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = Place(file, mark.line + 1, mark.column + 1) if mark else nothing.place
        return nothing, _Refused(place, "syntax", getattr(error, "problem", None) or str(error), "").fault


def of_values(value: Any, depth: int = 0) -> Node:
    """Converts Python values to the tree that their YAML would have."""
    place = Place()
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    if value is None:
        return Node("null", place)
    if isinstance(value, Mapping):
        return Node("map", place, fields=[(str(key), place, of_values(each, depth + 1)) for key, each in value.items()])
    if isinstance(value, bool):
        return Node("scalar", place, "true" if value else "false")
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:  # repr() refuses integers of more than 4,300 digits.
        return Node("scalar", place, f"{'-' * (value < 0)}1e{int(value.bit_length() * math.log10(2))}")
    if isinstance(value, (int, float)):
        return Node("scalar", place, repr(value))
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return Node("list", place, items=[of_values(each, depth + 1) for each in value])
    return Node("scalar", place, str(value), quoted=True)


class _Builder:
    def __init__(self, file: str) -> None:
        self._file = file
        self._nodes = 0

    def build(self, events: Iterator[Any]) -> Node | None:
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent) and root is not None:
                raise _Refused(self._place(event), "several_documents", "a second document starts here",
                               "write one spec per file")
            if isinstance(event, (yaml.NodeEvent, yaml.CollectionStartEvent)):
                root = self._node(event, events, 0)
        return root

    def _place(self, event: Any) -> Place:
        return Place(self._file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        place = self._place(event)
        self._nodes += 1
        if isinstance(event, yaml.AliasEvent):
            raise _Refused(place, "alias", "aliases (*name) are not allowed", "write the value out")
        if event.anchor:
            raise _Refused(place, "alias", "anchors (&name) are not allowed", "write the value out")
        if event.tag and event.tag != "!":
            raise _Refused(place, "tag", "tags (!name) are not allowed",
                           "leave it out, or quote a value that begins with !")
        if self._nodes > _MAX_NODES:
            raise _Refused(place, "too_large", f"more than {_MAX_NODES} values", "shorten the file")
        if isinstance(event, yaml.ScalarEvent):
            plain = not event.style
            if plain and event.value in _NULLS:
                return Node("null", place)
            return Node("scalar", place, event.value, quoted=not plain)
        if depth >= _MAX_DEPTH:
            raise _Refused(place, "too_deep", f"nested deeper than {_MAX_DEPTH} levels", "")
        if isinstance(event, yaml.SequenceStartEvent):
            return Node("list", place, items=list(self._items(events, depth)))
        return Node("map", place, fields=list(self._fields(events, depth)))

    def _items(self, events: Iterator[Any], depth: int) -> Iterator[Node]:
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            yield self._node(event, events, depth + 1)

    def _fields(self, events: Iterator[Any], depth: int) -> Iterator[tuple[str, Place, Node]]:
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._node(event, events, depth + 1)
            if key.kind != "scalar":
                raise _Refused(key.place, "bad_key", f"a field's name is {key.what}", "write a plain name")
            value = self._node(next(events), events, depth + 1)
            value.key_place = key.place
            yield key.text, key.place, value
