"""Parser of job specs with the rules of fsdpctl (client/spec/spec_text.h): field names as in the proto or in camelCase,
enums by short or full name, `auto`, sizes ("1.5GiB"), 1e4 as an integer, `env` as a map.

It finds all violations of the text, with field and position. The coordinator checks the values; the parser adds the
positions of the fields to the coordinator's violations.
"""

from __future__ import annotations

import difflib
import math
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field as member
from typing import Any, cast

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from fsdpd import text_tree
from fsdpd.errors import SpecError, spec_message
from fsdpd.package_file import read_package
from fsdpd.renamed import current_name
from fsdpd.text_tree import Node, Place
from fsdpd.v1.job_pb2 import JobSpec, Package, Variable
from fsdpd.v1.plan_pb2 import SEVERITY_ERROR, Violation

# A message; a mapping of fields; YAML or JSON as text; or the path of a file with that.
SpecSource = JobSpec | Mapping[str, Any] | str | os.PathLike[str]

_MAX_VIOLATIONS = 100
# Python's int() and float() also take underscores and the digits of other scripts.
_DECIMAL = re.compile(r"[+-]?[0-9.][0-9.eE+-]*\Z")
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}\Z")  # int() refuses more than 4,300 digits.
_SIZE = re.compile(r"(.*?)(KiB|MiB|GiB|TiB|KB|MB|GB|TB|B|) *\Z", re.DOTALL)
_UNIT_BYTES = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
               "TiB": 2**40}
_MAX_EXACT = 2**53  # Doubles above it do not represent every integer.


@dataclass
class SpecText:
    """Result of parsing. `spec` is complete if `violations` is empty. `unread` are fields of the text that could not be
    stored in `spec`. `is_tree` is false if the text is not a map of fields."""
    spec: JobSpec
    violations: list[Violation] = member(default_factory=list)
    unread: list[str] = member(default_factory=list)
    places: dict[str, Place] = member(default_factory=dict)
    is_tree: bool = True

    def located(self, violations: Iterable[Violation]) -> list[Violation]:
        """Returns the coordinator's violations with the position of their field, or of the nearest enclosing field."""
        return [self._located(fault) for fault in violations]

    def _located(self, fault: Violation) -> Violation:
        field = fault.field
        while field and field not in self.places:
            field = field[:max(field.rfind("."), field.rfind("["), 0)]
        place = self.places.get(field, Place())
        made = Violation(file=place.file, line=place.line, column=place.column)
        made.MergeFrom(fault)
        return made

    def refusal(self, violations: Iterable[Violation]) -> SpecError:
        """Returns the error with all violations of the text, and those of the coordinator (`violations`) except about
        fields that could not be read."""
        unread = self.unread
        kept = [fault for fault in violations if not any(
            _is_within(fault.field, each) or _is_within(each, fault.field) for each in unread)]
        found = _in_order([*self.violations, *self.located(kept)])
        return SpecError(spec_message(found), code=grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_SPEC",
                         violations=found)

    def with_places(self, error: SpecError, violations: Sequence[Violation]) -> SpecError:
        """Adds positions to an error of the coordinator. `violations` is the complete list of violations, or empty if
        `error` has all of them."""
        error.violations = tuple(_in_order(self.located(violations or error.violations)))
        if violations:
            error.more_violations = 0
        if error.violations and not error.more_violations:  # The coordinator's message repeats the first violation.
            error.message = spec_message(error.violations)
        return error


def _in_order(violations: Iterable[Violation]) -> list[Violation]:
    return sorted(violations, key=lambda fault: (fault.file, fault.line, fault.column))


def _is_within(field: str, parent: str) -> bool:
    return field.startswith(parent) and field[len(parent):][:1] in ("", ".", "[")


def read_spec(source: SpecSource) -> JobSpec:
    """Parses a spec. Relative paths of token files, checkpoints and plug-ins become absolute, based on the file's
    directory, or on the working directory for other sources. Raises SpecError with all violations of the text."""
    text = load_spec(source)
    if text.violations:
        raise text.refusal(())
    return text.spec


def load_spec(source: SpecSource) -> SpecText:
    """Like read_spec(), but returns the violations of the text instead of raising them."""
    if isinstance(source, JobSpec):
        return SpecText(source)
    directory = pathlib.Path.cwd()
    if isinstance(source, os.PathLike):
        path = pathlib.Path(source)
        directory = path.absolute().parent
        root, fault = text_tree.parse(path.read_bytes(), str(source))
    elif isinstance(source, str):
        root, fault = text_tree.parse(source.encode(), "<text>")
    else:
        root, fault = text_tree.of_values(source), None
    spec = JobSpec()
    made = SpecText(spec, places={"": Place(root.place.file, 1, 1) if root.place.line else root.place})
    reader = _Reader(made)
    if fault is not None:
        made.violations.append(fault)
        made.is_tree = False
    elif root.kind == "null":
        reader.fault(root.place, "no_value", "", "the spec is empty",
                     "write at least name, model, data and train.steps")
        made.is_tree = False
    elif root.kind == "scalar" and isinstance(source, str):
        reader.fault(root.place, "wrong_type", "", f"'{root.text[:80]}' is not a group of fields",
                     "a str is the text of a spec; write pathlib.Path(...) for the path of one")
        made.is_tree = False
    else:
        reader.message(root, "", spec)
        made.is_tree = root.kind == "map"
    _make_absolute(spec, directory, made, reader)
    return made


def _make_absolute(spec: JobSpec, directory: pathlib.Path, made: SpecText, reader: _Reader) -> None:
    def absolute(path: str, field: str) -> str:
        if path.startswith("~") or (not path.startswith("/") and "://" in path):
            reader.fault(made.places.get(field, Place()), "path_of_node", field, f"'{path}' is not a path on the nodes",
                         "write the absolute path on the nodes, /...")
        if not path or ".." in path.split("/"):  # Keep "..": the coordinator rejects such a path.
            return path and os.path.join(directory, path)
        return os.path.normpath(directory / path)

    for name, files in (("tokens", spec.data.tokens), ("validation", spec.data.validation)):
        for index, file in enumerate(files):
            file.path = absolute(file.path, f"data.{name}[{index}].path")
            file.mask = absolute(file.mask, f"data.{name}[{index}].mask")
    if spec.HasField("checkpoint"):
        spec.checkpoint.dir = absolute(spec.checkpoint.dir, "checkpoint.dir")
        spec.checkpoint.load = absolute(spec.checkpoint.load, "checkpoint.load")
    if spec.train.HasField("lora"):
        spec.train.lora.base_model = absolute(spec.train.lora.base_model, "train.lora.base_model")
    if spec.model.WhichOneof("source") == "plugin":
        spec.model.plugin.path = absolute(spec.model.plugin.path, "model.plugin.path")
    if spec.model.WhichOneof("source") == "package":
        spec.model.package.path = absolute(spec.model.package.path, "model.package.path")
        _take_package(spec.model.package, made, reader)


def _take_package(package: Package, made: SpecText, reader: _Reader) -> None:
    """Fills the fields that the package has. Without the file on this machine, the spec must have them."""
    def fault(rule: str, field: str, reason: str, fix: str) -> None:
        reader.fault(made.places.get(field, Place()), rule, field, reason, fix)

    if not package.path or "model.package.path" in made.unread:
        return
    try:
        read = read_package(package.path)
    except FileNotFoundError:
        return
    except ValueError as error:
        return fault("package_unreadable", "model.package.path", str(error), "export the package again, or copy it again")
    if package not in (Package(path=package.path), read):
        return fault("package_differs", "model.package", f"the spec has other values than the package {package.path}",
                     "leave out all fields except path")
    package.CopyFrom(read)


def _short_names(field: FieldDescriptor) -> dict[str, int]:
    assert field.enum_type is not None
    # The name of the zero value has the prefix: STRATEGY_UNSPECIFIED.
    prefix = field.enum_type.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix).lower(): value.number for value in field.enum_type.values if value.number}


def _bytes(text: str) -> int | None:
    match = _SIZE.match(text)
    if match is None or not _DECIMAL.match(match[1].strip(" ")):
        return None
    try:
        size = float(match[1]) * _UNIT_BYTES[match[2]]
    except ValueError:
        return None
    return round(size) if 0 <= size < 9.2e18 else None


class _Reader:
    def __init__(self, out: SpecText) -> None:
        self._out = out

    def fault(self, place: Place, rule: str, field: str, reason: str, fix: str) -> None:
        if field and rule not in ("duplicate_field", "two_of_oneof"):  # For these, the first value is stored.
            # One bad item makes the whole list unread, because the indices of later items shift.
            self._out.unread.append(field[:field.rfind("[")] if field.endswith("]") else field)
        if len(self._out.violations) < _MAX_VIOLATIONS:
            self._out.violations.append(Violation(rule=rule, severity=SEVERITY_ERROR, field=field, reason=reason, fix=fix,
                                          file=place.file, line=place.line, column=place.column))

    def message(self, node: Node, path: str, message: Message) -> None:
        if node.kind == "null":
            return self._no_value(node, path, "write {} for the defaults")
        type_ = cast(Descriptor, message.DESCRIPTOR)
        names = [field.name for field in type_.fields]
        if node.kind != "map":
            return self._wrong_type(node, path, "a group of fields", f"its fields: {', '.join(names)}")
        message.SetInParent()
        seen: dict[str, FieldDescriptor] = {}
        for key, place, child in node.fields:
            field = type_.fields_by_name.get(key) or type_.fields_by_camelcase_name.get(key)
            if field is None:
                self._unknown(place, path, key, type_)
                continue
            field_path = f"{path}.{field.name}" if path else field.name
            if field.name in seen:
                self.fault(place, "duplicate_field", field_path, f"{field_path} is written twice", "keep one")
                continue
            other = next((each for each in seen.values() if _exclude(each, field)), None)
            seen[field.name] = field
            if other is not None:
                self.fault(place, "two_of_oneof", field_path, f"{field.name} is not supported with {other.name}",
                           "keep one of them")
                continue
            self._out.places[field_path] = place
            self._field(child, field_path, message, field)
        return None

    def _unknown(self, place: Place, parent: str, key: str, type_: Descriptor) -> None:
        dot = parent and f"{parent}."
        path = dot + key
        names = [field.name for field in type_.fields]
        if name := current_name(type_.full_name, key):
            self._out.unread.append(dot + name)
            return self.fault(place, "renamed_field", path, f"renamed to {name}", "use the new name")
        meant = [f"{key}_bytes"] if f"{key}_bytes" in names else difflib.get_close_matches(key.lower(), names, 1)
        self._out.unread += [dot + meant[0]] if meant else []
        self.fault(place, "unknown_field", path, f"unknown field {path}",
                   f"did you mean {meant[0]}?" if meant else f"fields here: {', '.join(names) or 'none, write {}'}")
        return None

    def _no_value(self, node: Node, path: str, instead: str) -> None:
        self.fault(node.key_place or node.place, "no_value", path, "has no value", f"{instead}, or remove the field")

    def _wrong_type(self, node: Node, path: str, wanted: str, fix: str) -> None:
        got = f"'{node.text[:80]}'" if node.kind == "scalar" else node.what
        self.fault(node.place, "wrong_type", path, f"{got} is not {wanted}", fix)

    def _field(self, node: Node, path: str, message: Message, field: FieldDescriptor) -> None:
        if not field.is_repeated:
            return self._value(node, path, message, field)
        if field.message_type is Variable.DESCRIPTOR and node.kind == "map":
            return self._variables(node, path, getattr(message, field.name))
        if node.kind != "list":
            is_default = node.text == "all-linear" and field.full_name == "fsdpd.v1.Lora.targets"  # PEFT's name of it.
            return self._wrong_type(node, path, "a list", "leave it out: all matrices that can have an adapter are the default"
                                    if is_default else "write [...]")
        for index, item in enumerate(node.items):
            self._out.places[f"{path}[{index}]"] = item.place
            self._value(item, f"{path}[{index}]", message, field)
        return None

    def _variables(self, node: Node, path: str, variables: Any) -> None:
        """Reads {NAME: value}. Any scalar is a string, including 1 and true."""
        for index, (key, place, child) in enumerate(node.fields):
            self._out.places[f"{path}[{index}]"] = self._out.places[f"{path}[{index}].name"] = place
            self._out.places[f"{path}[{index}].value"] = child.place
            if child.kind == "scalar":
                variables.add(name=key, value=child.text)
            elif child.kind == "null":
                self._no_value(child, f"{path}[{index}].value", "write a value, \"\" for an empty one")
            else:
                self._wrong_type(child, f"{path}[{index}].value", "a single value", "write NAME: value")

    def _value(self, node: Node, path: str, message: Message, field: FieldDescriptor) -> None:
        """Reads one value: sets a singular field, or appends to a repeated one."""
        holder = getattr(message, field.name)
        if field.message_type is not None:
            return self.message(node, path, holder.add() if field.is_repeated else holder)
        if node.kind == "null":
            return self._no_value(node, path, "write a value")
        if node.kind != "scalar":
            return self._wrong_type(node, path, "a single value", "write a single value")
        # `auto` leaves the field unset: an `optional` scalar, or an enum, whose 0 means auto.
        may_be_auto = field.enum_type is not None or (field.has_presence and field.containing_oneof is not None)
        if may_be_auto and not field.is_repeated and node.text == "auto":
            return None
        value = self._scalar(node, path, field)
        if value is None:
            return None
        if field.is_repeated:
            holder.append(value)
        else:
            setattr(message, field.name, value)
        return None

    def _scalar(self, node: Node, path: str, field: FieldDescriptor) -> str | bool | int | float | None:
        """Returns the value, or None after reporting a violation."""
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            # An empty string often comes from a template variable that was not set. It must not select the default.
            if not node.text and not field.is_repeated and field.full_name != "fsdpd.v1.Variable.value":
                self._no_value(node, path, "write a value")
                return None
            return node.text
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            if node.quoted or node.text not in ("true", "false"):
                self._wrong_type(node, path, "true or false", "write true or false")
                return None
            return node.text == "true"
        if field.enum_type is not None:
            return self._enum(node, path, field)
        if field.cpp_type == FieldDescriptor.CPPTYPE_INT64:
            return self._integer(node, path, field)
        if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
            return self._double(node, path)
        raise NotImplementedError(f"{field.full_name}: unsupported field type")

    def _enum(self, node: Node, path: str, field: FieldDescriptor) -> int | None:
        names = _short_names(field)
        assert field.enum_type is not None
        full = field.enum_type.values_by_name.get(node.text)
        if node.text in names or (full is not None and full.number):
            return names[node.text] if full is None else full.number
        self.fault(node.place, "unknown_value", path, f"'{node.text[:80]}' is not a value of {path}",
                   f"write one of {', '.join(names)}")
        return None

    def _integer(self, node: Node, path: str, field: FieldDescriptor) -> int | None:
        if _INTEGER.match(node.text) and -2**63 <= int(node.text) < 2**63:
            return int(node.text)
        number = self._number(node.text)
        if number is not None and abs(number) > _MAX_EXACT:
            self._out_of_range(node, path, "an integer of at most 18 digits")
            return None
        if number is not None and number == int(number):  # 1e4 and 2.0 are integers.
            return int(number)
        if field.name.endswith("_bytes"):
            size = _bytes(node.text)
            if size is None:
                self._wrong_type(node, path, "a size", "write bytes, or a number with KiB, MiB, GiB")
            return size
        self._wrong_type(node, path, "an integer", "write digits, for example 100")
        return None

    def _double(self, node: Node, path: str) -> float | None:
        number = self._number(node.text)
        if number is None:
            self._wrong_type(node, path, "a number", "write a number, for example 0.1 or 1e-3")
            return None
        if math.isfinite(number):
            return number
        self._out_of_range(node, path, "a number of at most 308 digits")
        return None

    @staticmethod
    def _number(text: str) -> float | None:
        try:
            return float(text) if _DECIMAL.match(text) else None
        except ValueError:
            return None

    def _out_of_range(self, node: Node, path: str, instead: str) -> None:
        self.fault(node.place, "out_of_range", path, f"{node.text[:80]} does not fit", f"write {instead}")


def _exclude(one: FieldDescriptor, other: FieldDescriptor) -> bool:
    """True for members of the same oneof. An `optional` field is the only member of a synthetic oneof."""
    return one.containing_oneof is not None and one.containing_oneof is other.containing_oneof
