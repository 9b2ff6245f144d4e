"""Tests every command of fsdpctl against the table of exit codes in docs/fsdpctl.md, by provoking each code."""

import concurrent.futures
import re

import pytest

from harness.cluster import fsdpctl
from harness.programs import ROOT
from harness.specs import ENDLESS, spec

ANY = {0, 2, 8, 130}
NOBODY = "127.0.0.1:1"  # Port 1 is reserved and nothing listens there.
# A job or node of that name, where the command is about one. SPEC is a good one.
ABOUT = {
    "get": ["x-000000"], "describe": ["x-000000"], "logs": ["x-000000"], "trace": ["x-000000"], "cancel": ["x-000000"],
    "pause": ["x-000000"], "resume": ["x-000000"], "retry": ["x-000000"], "delete": ["x-000000"], "watch": ["x-000000"],
    "wait": ["x-000000", "--for", "ended"], "cordon": ["x"], "uncordon": ["x"], "preflight": ["x"], "drain": ["x"],
    "node": ["delete", "x"],
    "top": ["--once"], "nodes": [], "events": [], "version": [], "diff": ["x-000000", "-f", "SPEC"],
    "export": ["x-000000", "--as", "wandb", "--out", "OUT"],
    "submit": ["-f", "SPEC", "--after", "x-000000"], "validate": ["-f", "SPEC"], "plan": ["-f", "SPEC"],
}


def documented():
    """Returns {command: exit codes in addition to ANY}."""
    text = (ROOT / "docs/fsdpctl.md").read_text()
    table = text[text.index("Any command can end with"):]
    assert {int(code) for code in re.findall(r"\d+", table[:table.index("|")])} == ANY
    rows = re.findall(r"^\| (`.*`) \| ([^|;]*)[|;]", table, re.MULTILINE)
    return {command: {int(code) for code in re.findall(r"\d+", codes)}
            for commands, codes in rows for command in re.findall(r"`([\w-]+)`", commands)}


CODES = documented()


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Values for SPEC, BAD, and the invalid checkpoints EMPTY and BROKEN."""
    directory = tmp_path_factory.mktemp("specs")
    made = {"SPEC": directory / "good.json", "BAD": directory / "bad.json", "EMPTY": directory / "empty", "BROKEN": directory / "broken", "OUT": directory / "out"}
    made["EMPTY"].mkdir()
    made["BROKEN"].mkdir()
    (made["BROKEN"] / ".metadata").write_bytes(b"no pickle")
    made["SPEC"].write_text(str(spec(steps=ENDLESS)).replace("'", '"'))
    made["BAD"].write_text(str(spec(train={"global_batch": 3})).replace("'", '"'))
    return made


def run(paths, command, arguments, server):
    return fsdpctl("--timeout", 60, command, *(paths.get(each, each) for each in arguments), server=server)


def test_exit_code_table_has_all_commands():
    text = fsdpctl("--help").expect(0).out
    commands = re.findall(r"^  ([a-z-]+)  ", text[text.index("Subcommands:"):text.index("Plugins in PATH")], re.MULTILINE)
    assert sorted(commands) == sorted(CODES)
    asks = {command for command, codes in CODES.items() if 5 in codes}
    assert asks == set(ABOUT), "what asks a coordinator is called below"


@pytest.mark.parametrize("command", CODES)
def test_unknown_flag_exits_2(command):
    fsdpctl(command, "--no-such-flag", server=NOBODY).expect(2)


def test_unreachable_coordinator_exits_5(paths):
    # Each tries for some seconds: together.
    with concurrent.futures.ThreadPoolExecutor(len(ABOUT)) as pool:
        ended = pool.map(lambda command: run(paths, command, ABOUT[command], NOBODY), ABOUT)
    for result in ended:
        result.expect(5)


@pytest.mark.parametrize("command", ABOUT)
def test_missing_object_exits_4_and_empty_list_0(shared, paths, command):
    run(paths, command, ABOUT[command], shared.address).expect(4 if 4 in CODES[command] else 0)


@pytest.mark.parametrize("command, arguments, code", [
    ("submit", ["-f", "BAD"], 3), ("validate", ["-f", "BAD"], 3), ("validate", ["-f", "BAD", "--offline"], 3),
    ("plan", ["-f", "BAD", "--offline"], 3), ("diff", ["SPEC", "BAD"], 1), ("diff", ["SPEC", "SPEC"], 0),
    ("ckpt", ["inspect", "EMPTY"], 2), ("ckpt", ["inspect", "BROKEN"], 9), ("explain", ["nothing"], 2), ("context", ["use", "nothing"], 2),
    ("completion", ["bash"], 0), ("completion", ["nosh"], 2), ("token", ["new", "ada"], 2), ("migrate", ["-f", "SPEC"], 3),
    ("profile-device", ["--rank-binary", "/bin/false", "--ranks", "1"], 7),
], ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_commands_without_job_have_documented_exit_codes(shared, paths, command, arguments, code):
    assert code in ANY | CODES[command]
    run(paths, command, arguments, shared.address).expect(code)


def test_cancelled_job_exits_1_for_wait_and_7_for_pause(shared):
    job_id = shared.submit(spec(steps=ENDLESS, resources={"nodes": 9}, train={"global_batch": 18}))
    shared.ctl("wait", job_id, "--for", "state=running", "--timeout", 0.3).expect(6)
    shared.ctl("cancel", job_id).expect(0)
    shared.ctl("watch", job_id).expect(1)
    shared.ctl("wait", job_id, "--for", "state=running").expect(1)
    shared.ctl("pause", job_id).expect(7)
    shared.ctl("resume", job_id).expect(7)
    shared.ctl("delete", job_id).expect(0)
