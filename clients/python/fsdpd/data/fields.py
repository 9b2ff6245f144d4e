"""Fields of records: their names, which --field sets, and the errors for missing fields and values of another type."""

from __future__ import annotations

import json
from typing import Any

from fsdpd.faults import Fault

Record = dict[str, Any]


class Fields:
    """The fields that a command reads, such as `messages`, and their names in the records."""

    def __init__(self, wanted: tuple[str, ...], main: str | None, flags: list[str]) -> None:
        """`flags`: each FIELD=NAME, or NAME for the field `main`."""
        self._names: dict[str, str] = {}
        for flag in flags:
            field, separator, name = flag.partition("=")
            if not separator:
                field, name = main or "", flag
            if not field and not separator:
                raise Fault(f"--field {flag}: several fields are read; write --field {wanted[0]}={flag}")
            if not name:
                raise Fault(f"--field {flag}: has no name; write --field FIELD=NAME")
            if field not in wanted:
                raise Fault(f"--field {flag}: unknown field {field!r} (want {', '.join(wanted)}); write --field FIELD=NAME")
            if field in self._names:
                raise Fault(f"--field {flag}: {field} is set twice")
            self._names[field] = name
        self.columns = frozenset(map(self.name, wanted))

    def name(self, field: str) -> str:
        return self._names.get(field, field)

    def has(self, record: Record, field: str) -> bool:
        return self.name(field) in record

    def optional(self, record: Record, field: str) -> object:
        return record.get(self.name(field))

    def value(self, record: Record, field: str, place: str) -> object:
        name = self.name(field)
        if name not in record:
            raise Fault(f"{place}: no field {name!r} (got {listed(record)}); set --field {field}=NAME")
        return record[name]

    def text(self, record: Record, field: str, place: str) -> str:
        value = self.value(record, field, place)
        if not isinstance(value, str):
            raise Fault(f"{place}: field {self.name(field)!r} is {kind(value)}, want a string")
        return value

    def optional_text(self, record: Record, field: str, place: str) -> str:
        return self.text(record, field, place) if self.optional(record, field) is not None else ""


def listed(record: Record) -> str:
    names = sorted(record)
    return (", ".join(names[:12]) + (", ..." if len(names) > 12 else "")) or "none"


def kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number",
             bytes: "binary", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def parsed(text: str, place: str, column: str = ":") -> Any:
    """Parses JSON. `column` precedes the column in an error."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Fault(f"{place}{column}{error.colno}: invalid JSON: {error.msg}") from None
    except RecursionError:
        raise Fault(f"{place}: JSON is nested too deeply") from None
    except ValueError as error:  # An integer with thousands of digits.
        raise Fault(f"{place}: invalid JSON: {error}") from None
