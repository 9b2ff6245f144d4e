"""docs/cli.md: commands and flags of the built programs, as their own --help says them."""

import os
import pathlib
import re
import subprocess

import rules

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(os.environ.get("FSDPD_BIN", ROOT / ".build/bin"))
# As Bazel names them, with the commands whose help the program's own does not list.
PROGRAMS = [("client/fsdpctl", []), ("coordinator/fsdpd-coordinator", ["backup", "restore"]), ("agent/fsdpd-agent", []),
            ("fsdp/engine/train_local", [])]
HEAD = """# Commands and flags

What the programs themselves say with `--help`, made by `docs/references.py`. [fsdpctl.md](fsdpctl.md) shows fsdpctl's
screens and says what its exit codes mean; [deploy.md](deploy.md) says how the daemons are run.
"""
# In the right column alone: what the flag of the line before is, which was too long for the left one.
BELOW = re.compile(r"^ {10,}(?P<right>\S.*)$")
# What PATH=VALUE and MEASURE=NUMBER have is no default.
DEFAULT = re.compile(r"(?P<left>.*?)=(?!VALUE|NUMBER)(?P<default>.*)$")
EXCLUDES = re.compile(r" (?P<kind>Excludes|Needs): (?P<names>(?:--\S+|(?!REQUIRED)[A-Z]+)(?: (?:--\S+|(?!REQUIRED)[A-Z]+))*)")


def help_of(program, *command):
    done = subprocess.run([BIN / program, *command, "--help"], capture_output=True, text=True, timeout=60, check=False,
                          stdin=subprocess.DEVNULL, env={**os.environ, "PATH": ""})  # Of no plug-ins that are there.
    assert done.returncode == 0, f"{program} {' '.join(command)} --help ended with {done.returncode}: {done.stderr}"
    # A program that is called by a path names itself so.
    return done.stdout.replace(str(BIN / program), pathlib.PurePath(program).name)


def rows(text, column):
    """[(left, right)] of a list of flags or commands, of which the right begins at `column`."""
    found, lines = [], text.splitlines()
    for line, after in zip(lines, [*lines[1:], ""]):
        if below := BELOW.match(line):
            found[-1][1] = below["right"]
        elif BELOW.match(after):
            found.append([line.strip(), ""])
        else:
            found.append([line[:column].strip(), line[column:].strip()])
    return found


def code(text):
    return "`" + text.replace("|", "\\|") + "`"


def flag(left, right):
    """A flag's row: its names and value, its default, and what it is."""
    beside = ""
    for kind in ("Needs", "Excludes"):
        for found in EXCLUDES.finditer(left):
            if found["kind"] == kind:
                # CLI11 lists them by where they lie in memory.
                names = ", ".join(f"`{name}`" for name in sorted(found["names"].split()))
                beside += f" {'With' if kind == 'Needs' else 'Not with'} {names}."
    left = EXCLUDES.sub("", left)
    variable = re.search(r" \(Env:(\w+)\)", left)
    left = left.replace(variable[0], "") if variable else left
    required = left.endswith(" REQUIRED")
    left = left.removesuffix(" REQUIRED")
    told = DEFAULT.match(left)
    left, default = (told["left"], told["default"]) if told else (left, "")
    # "INT:INT in [1 - 5]" and "TEXT:{a,b}" are a type and what it may be.
    left = re.sub(r"\bTEXT:\{(.*)\}", r"\1", re.sub(r"INT:INT in \[(\S+) - (\S+)\]", r"\1..\2", left))
    default = "required" if required else f"`{default}`" if default else ""
    what = right.rstrip(".") + ("." if beside or variable else "")
    what += (f" Or `{variable[1]}`." if variable else "") + beside
    return f"| {code(left)} | {default} | {rules.cell(what)} |\n"


LISTS = re.compile(r"^(Positionals|Options|Subcommands):\n(.*?)(?:\n\n|\Z)", re.DOTALL | re.MULTILINE)


def section(program, command, level):
    """A command's text, and those of its own commands."""
    text = help_of(program, *command)
    name = " ".join([pathlib.PurePath(program).name, *command])
    about, rest = re.match(r"(.*?)^Usage: [^\n]*\n(.*)", text, re.DOTALL | re.MULTILINE).groups()
    column = re.search("^.*(?=Print this help message)", rest, re.MULTILINE)[0]
    lists = {title: rows(listed, len(column)) for title, listed in LISTS.findall(rest)}
    flags = [row for row in lists.get("Positionals", []) + lists["Options"] if not row[0].startswith("-h,--help")]
    commands = lists.get("Subcommands", [])
    made = f"\n{'#' * level} {name}\n\n{about.strip()}\n"
    if flags:
        made += "\n| flag | default | what it is |\n|---|---|---|\n" + "".join(flag(*row) for row in flags)
    if commands:
        made += "\n| command | what it does |\n|---|---|\n"
        made += "".join(f"| [{left}](#{name.replace(' ', '-')}-{left}) | {rules.cell(right)} |\n" for left, right in commands)
    if more := LISTS.sub("", rest).strip():
        made += f"\n```\n{more}\n```\n"
    return made + "".join(section(program, [*command, left], level + 1) for left, _ in commands)


def page():
    text = HEAD
    for program, hidden in PROGRAMS:
        assert (BIN / program).exists(), f"{program} is not built: docs/references.py says how"
        text += section(program, [], 2)
        text += "".join(section(program, [command], 3) for command in hidden)
    return text
