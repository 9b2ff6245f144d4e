"""The project's pages as a reader runs them: blocks of commands (```sh), files that a page shows, and who runs what the
page's own test does not.

A block runs with the others of its page, in order, in one shell. One that cannot be has its reason in the line before:
`<!-- not run: it needs GPUs -->`, or `<!-- run by: tests/integration/test_x.py -->` where a test of that file does the same. A
block of yaml or Python whose first line is `# NAME` is the file NAME.
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
    why: str   # "not run", "run by" or nothing.
    said: str  # The reason, or the test.

    @property
    def place(self):
        return f"{self.page}:{self.line}"

    @property
    def commands(self):
        return self.language == "sh"

    @property
    def file(self):
        """The name of the file that it is, or nothing."""
        named = FILE.match(self.text) if self.language in ("yaml", "py", "python") else None
        return named[1] if named else None


def pages():
    """All but measurements, which say themselves what they were made with."""
    return [str(path) for path in repository.with_suffix(".md") if not str(path).startswith("docs/bench/")]


def with_coordinators():
    """{tutorial: the directory that its coordinator keeps its state in}."""
    texts = {page: (ROOT / page).read_text() for page in pages() if page.startswith("docs/tutorials/")}
    found = {page: re.search(r"^fsdpd-coordinator .*--state-dir (\S+)", text, re.MULTILINE) for page, text in texts.items()}
    return {page: each[1] for page, each in found.items() if each}


def blocks(page):
    text = (ROOT / page).read_text()
    return [Block(page, text[:found.start("text")].count("\n"), found["language"], found["text"], found["why"] or "",
                  found["said"] or "") for found in FENCE.finditer(text)]


def mentions(page):
    """[(line, command)] of every `fsdpctl ...` in a page: in its blocks, on its screens and within its sentences."""
    text = re.sub(r" *\\\n *", " ", (ROOT / page).read_text())
    found = re.finditer(r"(?:^(?:\$ | *)|`|\$\(|[|;] )(fsdpctl [^`\n#|;)>$]*)", text, re.MULTILINE)
    return [(text[:each.start()].count("\n") + 1, each[1].strip()) for each in found]


# A time, a size, a share, a count or the end of an id: what another run has otherwise.
_OTHERWISE = re.compile(r"(?<=-)[a-z0-9]{6}\b|[\d.,]+(?:e-?\d+)?(?: ?(?:[KMG]iB|B|ms|s|k|M)\b|%)?")


def without_numbers(line):
    return " ".join(_OTHERWISE.sub("#", line).split())


def shown(page):
    """[(line, text)] of the outputs that a page shows: its blocks of no language."""
    return [(block.line + index, text) for block in blocks(page) if not block.language
            for index, text in enumerate(block.text.splitlines(), 1) if text.strip()]


def never_said(page, output):
    """The lines of shown outputs that its commands did not say, numbers aside."""
    said = {without_numbers(line) for line in output.splitlines()}
    return [f"{page}:{line}: {text}" for line, text in shown(page) if without_numbers(text) not in said]


def _free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Reader:
    """Runs one page in a directory that looks like a clone. Nothing that it starts outlives `with`. `shell`, `environment`: of a
    place of its own, where nobody but the page has the port that it names."""

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
        """The page that run() runs next, in the same directory."""
        self.page = page
        # The tests' own Python has the libraries that pages use.
        places = [*(str(BIN / name) for name in ("client", "coordinator", "agent", "fsdp")), os.path.dirname(sys.executable)]
        self.environment = {**self._given, MARK: self.mark, "FSDPD_SERVER": f"127.0.0.1:{self.port}", "HOME": str(self.directory)}
        if any("./clients/python" in block.text for block in blocks(page)):  # A page that has the reader install it.
            places.append(str(wheel.data_command(self.directory.parent / "bin")))
            self.environment["PYTHONPATH"] = str(wheel.installed())
        self.environment["PATH"] = ":".join([*places, self.environment["PATH"]])

    def _write(self, name, text):
        (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
        (self.directory / name).write_text(text)

    def run(self, timeout_s=110, chosen=lambda block: not block.why, changed=lambda text: text):
        """Runs its blocks, their text `changed`; the whole output. A command that fails ends it, with the block and what was
        said so far."""
        script = f"set -euo pipefail\ncd {self.directory}\n"
        for block in blocks(self.page):
            if block.file:
                self._write(block.file, block.text)
            elif block.commands and chosen(block):
                # A page's coordinator listens where nobody else does.
                script += f"echo '--- {block.place}'\n" + changed(block.text.replace("7777", self.port))
        with open(self.said, "wb") as output:
            done = subprocess.run([*self._shell, script], env=self.environment, stdin=subprocess.DEVNULL,
                                  stdout=output, stderr=output, timeout=timeout_s, check=False)
        text = self.said.read_text(errors="replace")
        assert done.returncode == 0, f"{self.page}: its commands ended with {done.returncode}:\n{text[-6000:]}"
        return text

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        left = marked(self.mark)
        for process in left:
            os.kill(process.pid, signal.SIGKILL)
        shutil.rmtree(self.directory)
        assert kind is not None or not left, f"{self.page} leaves running: {left}"
