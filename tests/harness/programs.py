"""Paths of the built programs. FSDPD_BIN overrides .build/bin, for builds made elsewhere."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FSDPD_BIN", ROOT / ".build/bin"))


def program(path):
    """`path`: as in Bazel, "client/fsdpctl"."""
    found = BIN / path
    if not found.exists():
        directory, name = path.rsplit("/", 1)
        if "TEST_SRCDIR" in os.environ:
            raise FileNotFoundError(f"//{directory}:{name}: not an input of this test; add it, or //tests:cluster, to `data` of "
                                    f"{os.environ['TEST_TARGET']} in its BUILD file")
        raise FileNotFoundError(f"{found}: not built; run bazel build //{directory}:{name}, or tests/run integration")
    return str(found)
