"""Docs pages as executable tests: command blocks (```sh), files shown by a page, and the tests that run the other blocks.

All command blocks of a page run in order in one shell. A block that cannot run has the reason in the line before it:
`<!-- not run: it needs GPUs -->`, or `<!-- run by: tests/integration/test_x.py -->` if a test in that file runs it. A yaml
or Python block whose first line is `# NAME` is the file NAME.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from dataclasses import dataclass

from harness import wheel
from harness.processes import MARK, marked
from harness.programs import BIN, ROOT
from tidy import repository

FENCE = re.compile(r"(?:<!-- (?P<why>not run|run by): (?P<said>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
                   re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w./-]+\.\w+)\b")
PROGRAMS = ["fsdpctl", "fsdpd-agent", "fsdpd-coordinator", "fsdpd-rank", "sudo", "kubectl", "docker", "helm", "bazel", "etcdctl",
            "export", "deploy/", "tests/", "pip", "srun", "torchrun", "prometheus", "promtool"]


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    why: str  # "not run", "run by" or "".
    said: str  # The reason, or the test.

    @property
    def place(self):
        return f"{self.page}:{self.line}"

    @property
    def commands(self):
        return self.language == "sh"

    @property
    def file(self):
        """Name of the file that the block shows, or None."""
        named = FILE.match(self.text) if self.language in ("yaml", "py", "python") else None
        return named[1] if named else None


def pages():
    """All pages except measurements, which state how they were made."""
    return [str(path) for path in repository.with_suffix(".md") if not str(path).startswith("docs/bench/")]


def with_coordinators():
    """{tutorial: state directory of its coordinator}."""
    texts = {page: (ROOT / page).read_text() for page in pages() if page.startswith("docs/tutorials/")}
    found = {page: re.search(r"^fsdpd-coordinator .*--state-dir (\S+)", text, re.MULTILINE) for page, text in texts.items()}
    return {page: each[1] for page, each in found.items() if each}


def blocks(page):
    text = (ROOT / page).read_text()
    return [Block(page, text[:found.start("text")].count("\n"), found["language"], found["text"], found["why"] or "",
                  found["said"] or "") for found in FENCE.finditer(text)]


def mentions(page):
    """[(line, command)] of every `fsdpctl ...` on a page: in blocks, outputs and sentences."""
    text = re.sub(r" *\\\n *", " ", (ROOT / page).read_text())
    found = re.finditer(r"(?:^(?:\$ | *)|`|\$\(|[|;] )(fsdpctl [^`\n#|;)>$]*)", text, re.MULTILINE)
    return [(text[:each.start()].count("\n") + 1, each[1].strip()) for each in found]


# Times, sizes, percentages, counts and id suffixes, which differ between runs.
_OTHERWISE = re.compile(r"(?<=-)[a-z0-9]{6}\b|[\d.,]+(?:e-?\d+)?(?: ?(?:[KMG]iB|B|ms|s|k|M)\b|%)?")


def without_numbers(line):
    return " ".join(_OTHERWISE.sub("#", line).split())


def shown(page):
    """[(line, text)] of the outputs shown by a page: its blocks without a language."""
    return [(block.line + index, text) for block in blocks(page) if not block.language
            for index, text in enumerate(block.text.splitlines(), 1) if text.strip()]


def never_said(page, output):
    """Lines of shown outputs that the commands did not print, ignoring numbers."""
    said = {without_numbers(line) for line in output.splitlines()}
    return [f"{page}:{line}: {text}" for line, text in shown(page) if without_numbers(text) not in said]


def _free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Reader:
    """Runs one page in a directory that looks like a clone. Processes that it starts do not outlive the `with` block.
    `shell`, `environment`: of an isolated place in which the port that the page names is free."""

    def __init__(self, page, directory, shell=(), environment=None):
        self.directory, self.mark = directory, uuid.uuid4().hex
        self.said = directory.parent / f"{directory.name}.txt"
        self._shell = [*shell, "bash", "-c"]
        self.port = "7777" if shell else str(_free_port())
        directory.mkdir()
        for name in ("clients", "dashboards", "deploy", "docs", "examples", "proto"):
            (directory / name).symlink_to(ROOT / name)
        (directory / ".build").mkdir()
        (directory / ".build/bin").symlink_to(BIN)
        self._given = environment or os.environ
        self.turn_to(page)

    def turn_to(self, page):
        """Selects the page that run() runs next, in the same directory."""
        self.page = page
        # This Python has the libraries that pages use.
        places = [*(str(BIN / name) for name in ("client", "coordinator", "agent", "fsdp")), os.path.dirname(sys.executable)]
        self.environment = {**self._given, MARK: self.mark, "FSDPD_SERVER": f"127.0.0.1:{self.port}", "HOME": str(self.directory)}
        if any("./clients/python" in block.text for block in blocks(page)):  # The page installs it.
            places.append(str(wheel.commands(self.directory.parent / "bin")))
            self.environment["PYTHONPATH"] = str(wheel.installed())
        self.environment["PATH"] = ":".join([*places, self.environment["PATH"]])

    def _write(self, name, text):
        (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
        (self.directory / name).write_text(text)

    def run(self, timeout_s=110, chosen=lambda block: not block.why, changed=lambda text: text):
        """Runs the page's blocks with their text passed through `changed`, and returns the output. A failed command
        raises with the block and the output so far."""
        script = f"set -euo pipefail\ncd {self.directory}\n"
        for block in blocks(self.page):
            if block.file:
                self._write(block.file, block.text)
            elif block.commands and chosen(block):
                # Replaces the page's port with a free one.
                script += f"echo '--- {block.place}'\n" + changed(block.text.replace("7777", self.port))
        with open(self.said, "wb") as output:
            done = subprocess.run([*self._shell, script], env=self.environment, stdin=subprocess.DEVNULL,
                                  stdout=output, stderr=output, timeout=timeout_s, check=False)
        text = self.said.read_text(errors="replace")
        assert done.returncode == 0, f"{self.page}: commands failed with exit code {done.returncode}:\n{text[-6000:]}"
        return text

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        left = marked(self.mark)
        for process in left:
            os.kill(process.pid, signal.SIGKILL)
        shutil.rmtree(self.directory)
        assert kind is not None or not left, f"{self.page}: left processes running: {left}"
