"""docs/spec.md: every field of a job spec, in the words of proto/fsdpd/v1/job.proto and with the rules that name it."""

import pathlib
import re
import tempfile

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

import rules

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROTO = "fsdpd/v1/job.proto"
HEAD = """# Job spec

Every field of a spec, made by `docs/references.py` of [job.proto](../proto/fsdpd/v1/job.proto), whose words
`fsdpctl explain FIELD` says too. `[]` is each element of a list. *Required* has no default; *auto* is chosen by the plan,
which says what it chose and why (`fsdpctl plan`). In YAML an enum is written by its short name, `auto` leaves a field unset,
and a `_bytes` field takes "1.5GiB". What the [rules](rules.md) of a field ask is told with the fault.
"""
Field = descriptor_pb2.FieldDescriptorProto
# A sentence ends at a dot before a blank; so does not the dot of 1e-5 or 0.9.
DEFAULT = re.compile(r"(?:(?<=[.;)] )|^)(?P<kind>Default by|Default:?|Auto:|Required)(?P<rest>.*?)(?:\.(?=\s|$)|$)")
BESIDE = re.compile(r"(?P<value>[\w.-]+) \((?:the )?default\)")


def words(text):
    """What a comment says, in one line; a blank line or an indented one begins another paragraph, told by <br>."""
    lines = [line.removeprefix(" ").rstrip() for line in text.splitlines() if "buf:lint" not in line]
    made, fresh = "", True
    for line in lines:
        own = not line or line.startswith(" ")
        made += ("" if not made else "<br>" if own or fresh else " ") + line.strip()
        fresh = own
    return made.strip()


# Values of enum fields that some valid spec has, where these are not all.
NARROW = {path: re.findall(r'"(\w+)"', values) for path, values in re.findall(
    r'\{"([\w.]+)", \{([^}]*)\}\}', (ROOT / "fsdp/plan/rules/field_values.cc").read_text())}


class Protos:
    """The messages and enums of job.proto by full name, with their comments."""

    def __init__(self):
        with tempfile.TemporaryDirectory() as directory:
            out = f"{directory}/set"
            code = protoc.main(["protoc", f"-I{ROOT / 'proto'}", "--include_source_info", f"--descriptor_set_out={out}",
                                PROTO])
            assert code == 0, f"protoc ended with {code}"
            self.file = descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(out).read_bytes()).file[0]
        self.comments = {tuple(place.path): words(place.leading_comments + place.trailing_comments)
                         for place in self.file.source_code_info.location}
        self.messages, self.enums = {}, {}  # By full name: descriptor and path.
        self._add(f".{self.file.package}", (), self.file.message_type, 4, self.file.enum_type, 5)

    def _add(self, scope, path, messages, message_tag, enums, enum_tag):
        for number, message in enumerate(messages):
            name, place = f"{scope}.{message.name}", (*path, message_tag, number)
            self.messages[name] = (message, place)
            self._add(name, place, message.nested_type, 3, message.enum_type, 4)
        for number, enum in enumerate(enums):
            self.enums[f"{scope}.{enum.name}"] = (enum, (*path, enum_tag, number))

    def comment(self, path):
        return self.comments.get(tuple(path), "")

    def fields(self, name):
        """[(field, its comment, the others of its oneof)] in the order of the file."""
        message, path = self.messages[name]
        found = []
        for number, field in enumerate(message.field):
            others = [each.name for each in message.field if field.HasField("oneof_index") and not field.proto3_optional
                      and each.HasField("oneof_index") and each.oneof_index == field.oneof_index and each is not field]
            found.append((field, self.comment((*path, 2, number)), others))
        return found

    def values(self, name):
        """[(short name, comment)] of an enum, without the one for unspecified."""
        enum, path = self.enums[name]
        prefix = enum.value[0].name.removesuffix("UNSPECIFIED")
        return [(value.name.removeprefix(prefix).lower(), self.comment((*path, 2, number)))
                for number, value in enumerate(enum.value) if value.number]


def type_of(field):
    one = {Field.TYPE_STRING: "string", Field.TYPE_BOOL: "boolean", Field.TYPE_DOUBLE: "number", Field.TYPE_ENUM: "enum",
           Field.TYPE_MESSAGE: field.type_name.rsplit(".", 1)[-1]}.get(field.type)
    one = one or ("bytes" if field.name.endswith("_bytes") else "integer")
    return f"list of {one}" if field.label == Field.LABEL_REPEATED else one


def parted(comment):
    """(default, the rest) of a comment. `required` and `auto` are as the head of the page says."""
    found = DEFAULT.search(comment)
    if not found:
        beside = BESIDE.search(comment)
        return (beside["value"] if beside else ""), comment
    rest = found["rest"].strip()
    default = {"Required": "required", "Auto:": "auto:", "Default by": "by"}.get(found["kind"], "")
    default = f"{default} {rest}".strip() if found["kind"] != "Required" or rest[:1] not in (",", ":") else f"required{rest}"
    left = (comment[:found.start()].rstrip() + " " + comment[found.end():].strip()).strip()
    left = re.sub(r";$", ".", left)
    # What stood behind "; " begins a sentence now.
    return default, re.sub(r"(^|\. )([a-z])(?=[a-z]* )", lambda begin: begin[1] + begin[2].upper(), left)


class Page:
    def __init__(self):
        self.protos = Protos()
        self.rules = {}
        for _, rows in rules.parts():
            for row in rows:
                if row["field"] == "spec":  # Of the whole.
                    continue
                self.rules.setdefault(row["field"], []).append(row["id"])
        self.told = {}   # Path of the first field that has a message.
        self.paths = []  # All fields.

    def row(self, path, field, comment, others):
        default, what = parted(comment)
        kind = type_of(field)
        if others:
            kind += f", instead of {', '.join(others)}"
        if field.type == Field.TYPE_ENUM:
            values = [f"`{name}`" + (f" ({said.rstrip('.')})" if said else "") for name, said in
                      self.protos.values(field.type_name) if name in NARROW.get(path, [name])]
            what = f"{what} One of {'; '.join(values)}.".strip() if len(values) > 1 else f"{what} Only {values[0]}.".strip()
        self.paths.append(path)
        assert default or others, f"{PROTO}: {path}: its comment says neither a default nor that it is required"
        named = ", ".join(f"`{rule}`" for rule in self.rules.get(path, []))
        return f"| `{path}` | {kind} | {rules.cell(default)} | {rules.cell(what)} | {named} |\n"

    def rows(self, prefix, message):
        text, below = "", []
        for field, comment, others in self.protos.fields(message):
            path = prefix + field.name + ("[]" if field.label == Field.LABEL_REPEATED else "")
            first = self.told.get(field.type_name)
            if first:
                comment = f"{comment} Its fields are those of `{first}`.".strip()
            text += self.row(prefix + field.name, field, comment, others)
            if field.type == Field.TYPE_MESSAGE and not first:
                self.told[field.type_name] = path
                below.append((path + ".", field.type_name))
        return text + "".join(self.rows(*each) for each in below)

    def section(self, field, comment):
        """What one field of JobSpec holds."""
        path = field.name + ("[]" if field.label == Field.LABEL_REPEATED else "")
        message, place = self.protos.messages[field.type_name]
        about = self.protos.comment(place)
        table = self.row(field.name, field, comment, []) + self.rows(path + ".", field.type_name)
        return f"\n## {field.name}\n\n" + (f"{about}\n\n" if about else "") + HEADING + table


HEADING = "| field | type | default | what it is | rules |\n|---|---|---|---|---|\n"


def page():
    made = Page()
    fields = made.protos.fields(f".{made.protos.file.package}.JobSpec")
    text = HEAD + "\n## Of the job itself\n\n" + HEADING
    text += "".join(made.row(field.name, field, comment, others) for field, comment, others in fields
                    if field.type != Field.TYPE_MESSAGE)
    text += "".join(made.section(field, comment) for field, comment, _ in fields if field.type == Field.TYPE_MESSAGE)
    lost = sorted(set(made.rules) - set(made.paths))
    assert not lost, f"rules of fields that a spec does not have: {lost}"
    return text
