"""Commands in the pages: each block is run by a test or has a reason, and each mentioned fsdpctl command exists.
tests/integration/test_pages.py runs the blocks."""

import re
import shlex

from harness import pages
from harness.programs import ROOT

# Number of blocks without a test, by page. Add new ones here, so that they are noticed.
NOT_RUN = {"README.md": 2, "docs/data.md": 2, "docs/deploy.md": 3, "docs/fsdpctl.md": 1, "docs/library.md": 2, "docs/migrate.md": 1, "docs/pytorch_models.md": 1, "docs/slurm.md": 1, "docs/transformers_models.md": 1,
           "docs/tutorials/chats.md": 1, "docs/tutorials/huggingface.md": 2, "docs/tutorials/kubernetes.md": 2, "docs/tutorials/laptop.md": 1, "docs/tutorials/python.md": 1,
           "tests/sim/README.md": 1}
# Plug-in programs of fsdpctl, and the placeholder for any of them. Their own tests check their arguments.
PLUGINS = ("data", "model", "NAME")


def test_code_blocks_without_a_test_are_listed_with_a_reason():
    counted, faults = {}, []
    for page in pages.pages():
        for block in pages.blocks(page):
            if block.why == "not run":
                counted[page] = counted.get(page, 0) + 1
                print(f"{block.place} is not run: {block.said}")
            elif block.why == "run by" and not (ROOT / block.said).exists():
                faults.append(f"{block.place}: file not found: {block.said}")
            if block.why and not block.commands:
                faults.append(f"{block.place}: has no commands (```sh) that could be run")
    assert not faults, "\n".join(faults)
    assert counted == NOT_RUN


def test_commands_are_marked_as_such():
    faults = []
    for page in pages.pages():
        for block in pages.blocks(page):
            begins = block.text.lstrip().split("\n")[0]
            if not block.language and begins.startswith(tuple(pages.PROGRAMS)) and page != "docs/cli.md":
                faults.append(f"{block.place}: commands without a language; start the block with ```sh, so that they are run")
    assert not faults, "\n".join(faults)


def known():
    """{command: its flags} from docs/cli.md; "" has the flags of every command."""
    found, text = {}, (ROOT / "docs/cli.md").read_text()
    for name, body in re.findall(r"^##+ fsdpctl ?([\w -]*)\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL):
        flags = re.findall(r"^\| `(-[^`]*)`", body, re.MULTILINE)
        found[name] = {name for flag in flags for name in flag.split()[0].split(",")} | {"-h", "--help"}
    return found


def fault_of(command, commands):
    """Violation in a command line, or nothing."""
    words = shlex.split(command.replace("'", ""))[1:]
    words = words[:words.index("&&")] if "&&" in words else words
    if words and words[0] in PLUGINS:
        return ""
    named = [word for word in words if not word.startswith("-") and word != "COMMAND"]
    path = next((" ".join(named[:depth]) for depth in (2, 1) if " ".join(named[:depth]) in commands and named), None)
    if path is None:
        # A server's address or another value may precede it.
        path = next((word for word in named if word in commands), None)
    if path is None:
        return f"unknown command: {command}" if named else ""
    allowed = commands[path] | commands[""] | {flag for name, flags in commands.items() if name.startswith(f"{path} ")
                                               for flag in flags}
    flags = [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    wrong = [flag for flag in flags if flag not in allowed and flag[:2] not in allowed]
    return f"{path} has no flag {wrong[0]}: {command}" if wrong else ""


def test_pages_use_existing_commands():
    commands, faults, seen = known(), [], 0
    assert "--search" in commands["plan"] and "ckpt diff" in commands
    for page in pages.pages():
        if page in ("docs/cli.md", "docs/spec.md"):  # Made of what the programs and the protos say.
            continue
        for line, command in pages.mentions(page):
            seen += 1
            fault = fault_of(command, commands)
            faults += [f"{page}:{line}: {fault}"] if fault else []
    assert not faults, "\n".join(faults)
    assert seen > 150


def test_a_misspelt_command_or_flag_is_found():
    commands = known()
    assert "no flag --folow" in fault_of("fsdpctl submit -f job.yaml --folow", commands)
    assert "unknown command" in fault_of("fsdpctl sumbit -f job.yaml", commands)
    assert not fault_of("fsdpctl --context lab get -l team=vision -o json", commands)


def test_each_tutorial_has_its_own_directory():
    """The nightly tests run them all in one clone (integration/test_pages.py)."""
    directories = pages.with_coordinators()
    assert len(directories) == 4 and len(set(directories.values())) == 4, directories
    for page, state in directories.items():
        directory = state.split("/")[0]
        others = [block.file for block in pages.blocks(page) if block.file and block.file.split("/")[0] != directory]
        assert not others and f"\nrm -r {directory}\n" in (ROOT / page).read_text(), (page, others)
