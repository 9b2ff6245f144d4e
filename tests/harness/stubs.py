"""Python gRPC stubs, generated from proto/ at the start of the tests as described in docs/clients.md: an independent
client of the same protos."""

import atexit
import importlib
import shutil
import sys
import tempfile

from grpc_tools import protoc

from harness.programs import ROOT


def _generate():
    out = tempfile.mkdtemp(prefix="fsdpd-stubs-")
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    root = ROOT / "proto"
    protos = sorted(str(path.relative_to(root)) for path in root.rglob("*.proto"))
    code = protoc.main(["protoc", f"-I{root}", f"--python_out={out}", f"--grpc_python_out={out}", *protos])
    if code != 0:
        raise RuntimeError(f"protoc failed with {code} on {protos}")
    sys.path.insert(0, out)


_MODULES = {"job": "job_pb2", "plan": "plan_pb2", "agent": "agent_pb2", "agent_grpc": "agent_pb2_grpc",
            "rank": "rank_pb2", "event": "event_pb2", "steps": "steps_pb2", "timeline": "timeline_pb2", "trace": "trace_pb2",
            "preflight": "preflight_pb2", "coordinator": "coordinator_pb2", "coordinator_grpc": "coordinator_pb2_grpc"}
_generate()


# Imported on first use: tests of the Python client use the stubs of its package, which have only the public API.
def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(name)
    return importlib.import_module(f"fsdpd.v1.{_MODULES[name]}")
