"""Build steps that pyproject.toml cannot express: gRPC stubs from the clone's protos, the blocking client from the
asyncio client, and the version of the daemons.

The build writes nothing into the clone: stubs go into the build directory of the wheel, which is temporary.
"""

import atexit
import pathlib
import re
import shutil
import tempfile

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).resolve().parents[2]
if not (ROOT / "proto/fsdpd/v1").is_dir():
    raise SystemExit("fsdpd: no protos in ../../proto; build it from a clone: pip install CLONE/clients/python")

# The blocking client is the asyncio client without these parts of its text.
BLOCKING = (
    (r'^""".*"""', '"""Blocking client, derived from aio.py. Thread-safe: all threads share the connections."""'),
    (r"\b(async|await) ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"__a(?=enter|exit)", "__"),
    (r"\baclosing\b", "closing"),
    (r"\bGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
)


def blocking(text):
    for pattern, replacement in BLOCKING:
        text = re.sub(pattern, replacement, text)
    return text


class BuildWithStubs(build_py):
    def run(self):
        super().run()
        # From [build-system].requires, which is not installed yet when setuptools only reads the metadata.
        from grpc_tools import protoc

        out = pathlib.Path(self.build_lib)
        protos = [f"fsdpd/v1/{name}.proto" for name in ("train", "job", "plan", "preflight", "telemetry", "event", "node_health",
                                                         "compute_times", "steps", "timeline", "trace", "coordinator", "reason",
                                                         "package")]
        command = ["protoc", f"-I{ROOT / 'proto'}", f"--python_out={out}", f"--pyi_out={out}", *protos]
        if protoc.main(command) != 0 or protoc.main([
                "protoc", f"-I{ROOT / 'proto'}", f"--grpc_python_out={out}", "fsdpd/v1/coordinator.proto"]) != 0:
            raise SystemExit("protoc failed; its output is above")
        shutil.copy(ROOT / "clients/calls.json", out / "fsdpd")
        (out / "fsdpd/client.py").write_text(blocking((out / "fsdpd/aio.py").read_text()))


scratch = tempfile.mkdtemp(prefix="fsdpd-wheel-")
atexit.register(shutil.rmtree, scratch, ignore_errors=True)
setup(
    version=re.search(r'kVersion\[\] = "(.*)"', (ROOT / "base/version.h").read_text()).group(1),
    cmdclass={"build_py": BuildWithStubs},
    options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}},
)
