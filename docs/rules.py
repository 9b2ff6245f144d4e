"""docs/rules.md: the validation table, as it is written in fsdp/plan/rules."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "fsdp/plan/rules"
HEAD = """# Rules

Why a spec is refused, by the name that stands in brackets at the end of each fault, made by `docs/references.py` of the
tables in [fsdp/plan/rules](../fsdp/plan/rules). `fsdpctl validate -f job.yaml` tells all faults of a spec at once, each with
its place, what it found and what to write instead; `fsdpctl explain RULE` prints a line of this page. All rules hold for every job, whoever submits it and by whichever client.

An *error* refuses the job, a *warning* is told, and an *adjustment* says what the job runs with in the place of what was
written. [spec.md](spec.md) has the rules of each field. What is wrong with the file before it is a spec (`unknown_field`,
`wrong_type`, `unknown_value`, `duplicate_field`, `two_of_oneof`, `no_value`, `out_of_range`) is told beside them.
"""
STRINGS = r'(?:"(?:[^"\\]|\\.)*"\s*)+'
ROW = re.compile(r'\{(?:"(?P<id>\w+)"|(?P<constant>k\w+)),\s*(?:FaultLevel::)?(?P<level>k(?:Error|Warn|Adjust)),\s*'
                 rf'"(?P<field>[^"]*)",\s*(?P<text>{STRINGS}),')
CONSTANT = re.compile(r'constexpr char (k\w+)\[\] = "(\w+)";')
# What the plan finds, and not a rule of the table: MakePlan() and the coordinator's admission.
PLANNED = re.compile(rf'texts\.push_back\(\{{"(\w+)",\s*({STRINGS})\}}\)')
KINDS = {"kError": "error", "kWarn": "warning", "kAdjust": "adjustment"}


def joined(literals):
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"')


def cell(text):
    """As Markdown takes it in a table: stars outside of code are none of its own."""
    parts = text.replace("|", "\\|").split("`")
    return "`".join(part if number % 2 else part.replace("*", "\\*") for number, part in enumerate(parts))


def parts():
    """[(title, [row])] in the order in which rules run; a row has id, kind, field and text."""
    table = (FOLDER / "rules.cc").read_text()
    constants = dict(CONSTANT.findall((FOLDER / "rules.h").read_text()))
    made = []
    for name in re.findall(r"&(\w+)Rules\(\)", table):
        file = FOLDER / (re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() + "_rules.cc")
        source = file.read_text()
        rows = [{"id": found["id"] or constants[found["constant"]], "kind": KINDS[found["level"]],
                 "field": re.sub(r"\[\d*\]", "[]", found["field"]), "text": joined(found["text"])}
                for found in ROW.finditer(source)]
        # A row is the one place where a level stands before a field.
        levels = len(re.findall(r",\s*(?:FaultLevel::)?k(?:Error|Warn|Adjust),", source))
        assert len(rows) == levels > 0, f"{file}: {levels} rules, and {len(rows)} of them are read"
        said = re.match(r"// (.*?)(?:\.\n|: )", source)
        made.append((said[1] if said else rows[0]["field"], rows))
    planned = [{"id": rule, "kind": "error", "field": "resources.memory_budget_bytes", "text": joined(text)}
               for rule, text in PLANNED.findall(table)]
    assert len(planned) == 2
    return [*made, ("the plan", planned)]


def page():
    text = HEAD
    for title, rows in parts():
        text += f"\n## {title}\n\n| rule | what must hold | field | kind |\n|---|---|---|---|\n"
        for row in rows:
            text += f"| `{row['id']}` | {cell(row['text'])} | `{row['field']}` | {row['kind']} |\n"
    return text
