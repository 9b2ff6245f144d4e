"""Tests that docs/cli.md matches the output of --help. tests/tidy/test_references.py tests the references made from
files."""

import subprocess
import sys

from harness.programs import BIN, ROOT, program


def test_command_reference_matches_programs():
    program("fsdp/engine/train_local")  # Or its name is in the error.
    done = subprocess.run([sys.executable, ROOT / "docs/references.py", "--check", "cli"], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, f"{done.stderr}; programs are those in {BIN}"
