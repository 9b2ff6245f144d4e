"""docs/rules.md: the validation table, as it is written in fsdp/plan/rules."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIR = ROOT / "fsdp/plan/rules"
HEAD = """# Rules

Why a spec is refused, by the name that stands in brackets at the end of each fault, made by `docs/references.py` of the
tables in [fsdp/plan/rules](../fsdp/plan/rules). `fsdpctl validate -f job.yaml` tells all faults of a spec at once, each with
its place, what it found and what to write instead; `fsdpctl explain RULE` prints a line of this page. All rules hold for every job, whoever submits it and by whichever client.

An *error* refuses the job, a *warning* is told, and an *adjustment* says what the job runs with in the place of what was
written. [spec.md](spec.md) has the rules of each field; those of the whole have `spec` here. The first table is what must hold
of the text before it is a spec; its errors are reported with the others. The last one is what `fsdpctl migrate` reports of a Megatron run.
"""
STRINGS = r'(?:"(?:[^"\\]|\\.)*"\s*)+'
ROW = re.compile(r'\{(?:"(?P<id>\w+)"|(?P<constant>k\w+)),\s*(?:FaultLevel::)?(?P<level>k(?:Error|Warn|Adjust)),\s*'
                 rf'"(?P<field>[^"]*)",\s*(?P<text>{STRINGS}),')
CONSTANT = re.compile(r'constexpr char (k\w+)\[\] = "(\w+)";')
# A fault that is made elsewhere than in the table: by its members, or all at once.
MADE = re.compile(r'(?P<it>\w+)\.rule = (?:"(?P<id>\w+)"|(?P<constant>k\w+));\n'
                  r'(?P<more>(?:\s+(?P=it)\.(?:level|field) = [^;]+;\n)*)')
MADE_AT_ONCE = re.compile(r'\{"(?P<id>\w+)", (?:FaultLevel::)?(?P<level>k(?:Error|Warn|Adjust)),(?:\s*"(?P<field>[^"]*)",)?')
KINDS = {"kError": "error", "kWarn": "warning", "kAdjust": "adjustment"}


def joined(literals):
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"')


def cell(text):
    """As Markdown takes it in a table: stars outside of code are none of its own."""
    parts = text.replace("|", "\\|").split("`")
    return "`".join(part if number % 2 else part.replace("*", "\\*") for number, part in enumerate(parts))


def rows_of(source, constants):
    return [{"id": found["id"] or constants[found["constant"]], "kind": KINDS[found["level"]],
             "field": re.sub(r"\[\d*\]", "[]", found["field"]), "text": joined(found["text"])}
            for found in ROW.finditer(source)]


def made_elsewhere(constants):
    """[(id, kind, field)] of faults that the plan and the coordinator make; field is None where it is not one literal."""
    made = []
    for file in sorted([*ROOT.glob("coordinator/*.cc"), *ROOT.glob("fsdp/plan/**/*.cc")]):
        if file.stem.endswith("_test") or file.parent == DIR:
            continue
        source = file.read_text()
        for found in MADE.finditer(source):
            level = re.search(r"level = FaultLevel::(\w+);", found["more"])
            field = re.search(r'field = "([^"]*)";', found["more"])
            made.append((found["id"] or constants[found["constant"]], KINDS[level[1] if level else "kError"],
                         field and field[1]))
        made += [(found["id"], KINDS[found["level"]], found["field"]) for found in MADE_AT_ONCE.finditer(source)]
    return made


BRACED = re.compile(r'\{\s*"(\w+)",\s*(?:FaultLevel::)?k(?:Error|Warn|Adjust)\b')
# A fault of migrate: its rule is the first word in quotes, or a constant.
OF_MIGRATE = re.compile(r'\b(?:Fault|Error|Adjust|KnowsWord|ValueFault|TellNames)\(\s*(?:\*\w+(?:\(\w+\))?,\s*)?(?:"(\w+)"|(k[A-Z]\w+)),')


def sources_of(directory, but=()):
    return {file.stem: file.read_text() for file in sorted((ROOT / directory).glob("*.cc"))
            if not file.stem.endswith("_test") and file.stem not in but}


def rows_of_migrate(of_text):
    """The two tables of client/migrate; the one without checks is held against the places that find such faults."""
    tables = ["megatron_rules", "conversion_rules"]
    row = re.compile(rf'\{{"(?P<id>\w+)",\s*(?P<level>k\w+),\s*(?P<text>{STRINGS})[,}}]')
    megatron, conversion = [
        [{"id": found["id"], "kind": KINDS[found["level"]], "text": joined(found["text"])}
         for found in row.finditer((ROOT / "client/migrate" / f"{name}.cc").read_text())] for name in tables]
    constants = dict(CONSTANT.findall((ROOT / "client/migrate/shell_words.h").read_text()))
    found = set(BRACED.findall((ROOT / "client/migrate_command.cc").read_text()))
    for source in sources_of("client/migrate", tables).values():
        found |= {rule or constants[constant] for rule, constant in OF_MIGRATE.findall(source)}
        found |= set(BRACED.findall(source))
    told = {each["id"] for each in conversion}
    assert told <= found <= told | of_text, f"faults of migrate: {sorted((told - found) | (found - told - of_text))}"
    return megatron + conversion


# A fault of the text, where it is found: its rule is the first word in quotes.
OF_TEXT = re.compile(r'\b(?:\w*Fault|Refuse|Warn)\((?:[^"();]|\([^()]*\))*"(\w+)",')


def rows_of_text():
    """client/text_rules.cc, held against the places that find such faults."""
    row = re.compile(rf'\{{"(?P<id>\w+)",\s*(?P<text>{STRINGS}),\s*(?P<level>k\w+),\s*"(?P<field>[^"]*)"\}}')
    rows = [{"id": found["id"], "kind": KINDS[found["level"]], "field": found["field"], "text": joined(found["text"])}
            for found in row.finditer((ROOT / "client/text_rules.cc").read_text())]
    files = [ROOT / "base/yaml_tree.cc", ROOT / "client/spec_text.cc", ROOT / "client/spec_file.cc",
             *(ROOT / "fsdp/checkpoint" / name for name in ("hf_config.cc", "hf_fields.cc", "hf_reader.h"))]
    found = {rule for file in files for rule in OF_TEXT.findall(file.read_text())}
    for name, source in sources_of("client", ["migrate_command"]).items():
        found |= set(BRACED.findall(source))
    found.add("path_of_node")  # TakePaths of migrate_command.cc, too.
    told = {each["id"] for each in rows} | {"unknown_field"}  # That one is a coordinator's too, and stands there.
    assert found == told, f"faults of the text: {sorted(found ^ told)}"
    return rows


def parts():
    """[(title, [row])] in the order in which rules run; a row has id, kind, field and text."""
    table = (DIR / "rules.cc").read_text()
    constants = {name: rule for header in (DIR / "rules.h", ROOT / "fsdp/plan/budget.h", ROOT / "coordinator/spec_shape.h")
                 for name, rule in CONSTANT.findall(header.read_text())}
    made = []
    for name in re.findall(r"&(\w+)Rules\(\)", table):
        file = DIR / (re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() + "_rules.cc")
        source = file.read_text()
        rows = rows_of(source, constants)
        # A row is the one place where a level stands before a field.
        levels = len(re.findall(r",\s*(?:FaultLevel::)?k(?:Error|Warn|Adjust),", source))
        assert len(rows) == levels > 0, f"{file}: {levels} rules, and {len(rows)} of them are read"
        said = re.match(r"// (?:Rules of )?(.*?)(?:\.\n|: )", source)
        made.append((said[1] if said else rows[0]["field"], rows))
    elsewhere = rows_of(table, constants)
    known = {row["id"]: row for row in elsewhere}
    found = made_elsewhere(constants)
    assert {rule for rule, _, _ in found} == set(known), f"found elsewhere: {sorted({rule for rule, _, _ in found} ^ set(known))}"
    for rule, kind, field in found:  # `hold` is a field of a plan's request.
        assert kind == known[rule]["kind"], f"{rule} is told as {known[rule]['kind']}, and found as {kind}"
        assert field in (None, "hold", known[rule]["field"]), f"{rule} is told of {known[rule]['field']}, and found at {field}"
    return [("what the text must be", rows_of_text()), *made, ("what the plan and the coordinator find", elsewhere)]


def page():
    text = HEAD
    for title, rows in parts():
        text += f"\n## {title}\n\n| rule | what must hold | field | kind |\n|---|---|---|---|\n"
        for row in rows:
            text += f"| `{row['id']}` | {cell(row['text'])} | `{row['field']}` | {row['kind']} |\n"
    of_text = {row["id"] for _, rows in parts() for row in rows}
    text += "\n## a Megatron run, as `fsdpctl migrate` reads it\n\n| rule | what must hold | kind |\n|---|---|---|\n"
    for row in rows_of_migrate(of_text):
        text += f"| `{row['id']}` | {cell(row['text'])} | {row['kind']} |\n"
    return text
