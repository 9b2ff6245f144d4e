"""The manifest of a package (proto/fsdpd/v1/package.proto)."""

from __future__ import annotations

import functools
import json
import pathlib
import re
from typing import Any

import torch
from google.protobuf import json_format

from fsdpd.model import costs
from fsdpd.model.check import Measured
from fsdpd.model.initial import Constant, Normal, Recipe, Uniform
from fsdpd.model.package_file import PackageFile
from fsdpd.model.partition import Call, Calls, Value
from fsdpd.model.trace import Trace
from fsdpd.model.units import Unit
from fsdpd.v1 import job_pb2, package_pb2

DTYPES = {torch.float32: job_pb2.DTYPE_FP32, torch.bfloat16: job_pb2.DTYPE_BF16, torch.float16: job_pb2.DTYPE_FP16}


def raw(tensor: torch.Tensor) -> bytes:
    """Values of a tensor in row-major order."""
    return bytes(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())


def safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


class Manifest:
    def __init__(self, trace: Trace, target: str) -> None:
        self.trace = trace
        self.package = PackageFile()
        self.message = package_pb2.PackageManifest(schema=1)
        self._buffers: dict[int, int] = {}  # By tensor: names of tables may equal those of buffers.
        model = self.message.model
        model.sequence_length, model.micro_batch_size = trace.shape.sequence, trace.shape.micro_batch
        model.compute, model.documents = DTYPES[trace.dtype], trace.shape.documents
        model.device = job_pb2.DEVICE_CUDA if trace.device.type == "cuda" else job_pb2.DEVICE_CPU
        model.target, model.torch_version = target, torch.__version__.partition("+")[0]

    def add_graph(self, unit: Unit, calls: Calls, libraries: dict[int, pathlib.Path], measured: Measured) -> int:
        index = len(self.message.graphs)
        graph, described = self.message.graphs.add(), self.message.model.graphs.add()
        for param in unit.params:
            described.params.add(name=unit.local_name(param), shape=param.shape, decay=len(param.shape) >= 2,
                                 frozen=param.frozen)
        self._add_call(graph.evaluation, calls.evaluation, libraries)
        self._describe(described, unit, calls, measured)
        for variant in calls.variants:
            added = graph.variants.add()
            if variant.forward:
                self._add_call(added.forward, variant.forward, libraries)
            if variant.backward:
                self._add_call(added.backward, variant.backward, libraries)
        return index

    def _describe(self, described: Any, unit: Unit, calls: Calls, measured: Measured) -> None:
        output = calls.evaluation.results()[0]
        if unit.head:
            self._add_head(described.head, unit)
        else:
            described.output_bytes = costs.nbytes([output])
            described.output_type = DTYPES[output.dtype]
        forward = costs.flops_of(calls.evaluation)
        described.forward_flops, described.attention_flops = forward.total, forward.attention
        described.forward_bytes = costs.traffic(calls.evaluation)
        backwards = [variant.backward for variant in calls.variants if variant.backward]
        if backwards:
            described.backward_bytes = costs.traffic(backwards[0])
            described.backward_reads_params = any(kind == "PARAM" for each in backwards for kind, _ in each.inputs)
        described.evaluation_workspace_bytes = measured.evaluation_workspace
        first = next((variant.backward for variant in calls.variants if variant.mode == "none"), None)
        placeholders = unit.graph.graph.find_nodes(op="placeholder")
        given = costs.nbytes([node.meta["val"] for (kind, _), node in zip(unit.inputs(), placeholders) if kind == "HIDDEN"])
        for variant in calls.variants:
            added = described.variants.add(recompute=job_pb2.Recompute.Value(f"RECOMPUTE_{variant.mode.upper()}"))
            added.saved_bytes = costs.saved_bytes(given, variant)
            times = measured.variants[variant.mode]
            added.workspace_bytes = times.workspace
            added.forward_seconds, added.backward_seconds = times.forward_seconds, times.backward_seconds
            if variant.mode == "full" and variant.backward and first:
                added.recomputed_flops = max(0.0, costs.flops_of(variant.backward).total - costs.flops_of(first).total)

    def _add_head(self, described: Any, unit: Unit) -> None:
        head = unit.head
        assert head
        described.weight = head.weight
        if head.bias is not None:
            described.bias = head.bias
        if head.scale != 1.0:
            described.logit_scale = head.scale
        described.soft_cap = head.soft_cap
        self.message.model.vocab_size = [*unit.params, *unit.borrowed][head.weight].shape[0]

    def _add_call(self, message: Any, call: Call, libraries: dict[int, pathlib.Path]) -> None:
        library = libraries[id(call)]
        message.library = self.package.add(f"graphs/{library.parent.name}/{library.name}", library.read_bytes)
        for field, values in (("inputs", call.inputs), ("outputs", call.outputs)):
            for value in values:
                self._add_value(getattr(message, field), value)

    @staticmethod
    def _add_value(field: Any, value: Value) -> None:
        field.add(kind=package_pb2.PackageValue.Kind.Value(f"KIND_{value[0]}"), index=value[1])

    def add_unit(self, unit: Unit, graph: int, values: dict[str, Recipe | torch.Tensor]) -> None:
        self.message.model.units.add(name=unit.name, graph=graph, module=unit.module, tied_to=unit.tied_to)
        added = self.message.units.add()
        for param in unit.params:
            self._add_initial(added.initial_values.add(), param.name, values[param.name])
        for name, tensor in unit.buffers:
            if id(tensor) not in self._buffers:
                self._buffers[id(tensor)] = len(self.message.buffers)
                file = self.package.add(f"buffers/{len(self._buffers) - 1}-{safe(name)}", functools.partial(raw, tensor))
                self.message.model.buffer_bytes += costs.nbytes([tensor])
                self.message.buffers.add(name=name, file=file, type=str(tensor.dtype).removeprefix("torch."), shape=tensor.shape)
            added.buffers.append(self._buffers[id(tensor)])

    def _add_initial(self, message: Any, name: str, value: Recipe | torch.Tensor) -> None:
        if isinstance(value, torch.Tensor):
            message.file = self.package.add(f"values/{safe(name)}.f32", lambda: raw(value.float()))
        elif isinstance(value, Normal):
            message.normal.mean, message.normal.std, message.normal.truncated_at = value.mean, value.std, value.truncated_at
        elif isinstance(value, Uniform):
            message.uniform.low, message.uniform.high = value.low, value.high
        elif isinstance(value, Constant):
            message.constant = value.value

    def add_config(self, text: str) -> None:
        """Adds the configuration of a model of transformers, for exports of its weights."""
        if text:
            self.package.add("config.json", text.encode)

    def write(self, path: pathlib.Path) -> None:
        for name, size, digest in self.package.files():
            self.message.files.add(name=name, bytes=size, sha256=digest)
        fields = json_format.MessageToDict(self.message, preserving_proto_field_name=True)
        self.package.write(path, (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode())
