"""Where the built programs are. FSDPD_BIN names another folder than .build/bin, for builds made elsewhere."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FSDPD_BIN", ROOT / ".build/bin"))


def program(path):
    """`path` as Bazel names it: "client/fsdpctl"."""
    found = BIN / path
    if not found.exists():
        folder, name = path.rsplit("/", 1)
        raise FileNotFoundError(f"{found} is not built: bazel build //{folder}:{name}, or tests/run integration")
    return str(found)
