"""Tests of fsdpctl's display, comparison, wait and completion commands on one cluster."""

import os
import subprocess

import pytest
import yaml

from harness.cluster import fsdpctl
from harness.programs import program
from harness.specs import ENDLESS, spec

# What each shell offers for a line, asked of it as a person's Tab does.
BASH = """
source <(fsdpctl completion bash)
COMP_LINE="$1"; COMP_POINT=${#COMP_LINE}
_fsdpctl
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = "fsdpctl completion fish | source; complete -C $argv[1]"
ZSH = """
autoload -Uz compinit; compinit -D -u
eval "$(fsdpctl completion zsh)"
words=("${(@s: :)1}"); CURRENT=${#words}
compadd() { print -rl -- "${@[3,-1]}" }
_fsdpctl
"""
OPTIONS = {"bash": ["bash", "-c", BASH, "bash"], "fish": ["fish", "-c", FISH], "zsh": ["zsh", "-f", "-c", ZSH, "zsh"]}


@pytest.fixture(scope="module")
def endless(shared):
    job_id = shared.submit(spec(steps=ENDLESS, name="endless"))
    yield job_id
    shared.cancel(job_id)


def offered(shell, line, server):
    environment = {**os.environ, "PATH": f"{os.path.dirname(program('client/fsdpctl'))}:{os.environ['PATH']}",
                   "FSDPD_SERVER": server}
    result = subprocess.run([*OPTIONS[shell], line], env=environment, capture_output=True, text=True, timeout=60,
                            check=True)
    return [word.split("\t")[0] for word in result.stdout.split("\n") if word]


def test_wait_describe_and_diff(shared, endless, tmp_path):
    shared.ctl("wait", endless, "--for", "step=2", "--timeout", 120).expect(0)
    shared.ctl("wait", endless, "--for", "ended", "--timeout", 0.2).expect(6)
    assert shared.ctl("get", endless[:-2], "-o", "jsonpath={.state}").expect(0).out == "running\n"
    assert endless in shared.ctl("get", "-o", "name").expect(0).out.split()
    assert "TOKENS/S" in shared.ctl("get", "-o", "wide").expect(0).out
    assert endless in shared.ctl("top").expect(0).out

    # What was submitted is what would be submitted again.
    written = tmp_path / "again.yaml"
    written.write_text(shared.ctl("get", endless, "-o", "spec").expect(0).out)
    shared.ctl("validate", "-f", written).expect(0)
    shared.ctl("diff", endless, "-f", written).expect(0)
    changed = yaml.safe_load(written.read_text())
    changed["train"]["steps"] = 7
    written.write_text(yaml.safe_dump(changed))
    assert "train.steps" in shared.ctl("diff", endless, "-f", written).expect(1).out

    times = [line.split("] ", 1)[1][:24] for line in shared.ctl("logs", endless).expect(0).out.splitlines()
             if "] 20" in line]
    assert times and times == sorted(times)
    assert not shared.ctl("logs", endless, "--grep", "no line has this").expect(0).out


def test_context_is_applied(shared, tmp_path):
    config = tmp_path / "contexts.yaml"
    config.write_text(f"contexts:\n  here: {{server: '{shared.address}'}}\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FSDPD_")}
    environment["FSDPD_CONFIG"] = str(config)

    def run(*arguments):
        return subprocess.run([program("client/fsdpctl"), *arguments], env=environment, capture_output=True, text=True,
                              timeout=60, check=True).stdout

    run("context", "use", "here")
    assert "node-0" in run("nodes", "-o", "name").split()


@pytest.mark.parametrize("shell", sorted(OPTIONS))
def test_shell_completion(shared, endless, shell):
    assert offered(shell, "fsdpctl expl", shared.address) == ["explain"]
    assert endless in offered(shell, "fsdpctl cancel endl", shared.address)
    assert "node-0" in offered(shell, "fsdpctl cordon ", shared.address)
    assert endless not in offered(shell, "fsdpctl delete ", shared.address), "it has not ended"


def test_explain_works_offline():
    assert "micro_batch" in fsdpctl("explain", "train").expect(0).out


def test_explains_the_id_of_an_error(shared):
    refused = shared.ctl("get", "no-such-job").expect(4)
    assert refused.err.splitlines()[0].endswith("[JOB_NOT_FOUND]"), refused
    for name in ("JOB_NOT_FOUND", "hang"):
        assert "\n  Fix: " in shared.ctl("explain", name).expect(0).out
