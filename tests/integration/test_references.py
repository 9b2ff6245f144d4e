"""docs/cli.md is what the programs say with --help. The other references are made of files: tests/tidy/test_references.py."""

import subprocess
import sys

from harness.programs import BIN, ROOT, program


def test_command_reference_matches_programs():
    program("fsdp/engine/train_local")  # Or its name is in the error.
    done = subprocess.run([sys.executable, ROOT / "docs/references.py", "--check", "cli"], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, f"{done.stderr}; programs are those in {BIN}"
