"""Reference runner of packages that `fsdpctl model export` writes: one training step from the manifest only.

It specifies the contract between exporter and ranks (proto/fsdpd/v1/package.proto). Units run forward in order, and
backward in reverse. Inputs of a call are chosen by their kinds. The final linear layer and the loss are computed in chunks
of tokens, and their gradients are added to those of the last unit's backward.
"""

import hashlib
import pathlib
import zipfile

import torch
from fsdpd.v1 import job_pb2, package_pb2
from google.protobuf import json_format

DTYPES = {job_pb2.DTYPE_FP32: torch.float32, job_pb2.DTYPE_BF16: torch.bfloat16, job_pb2.DTYPE_FP16: torch.float16}
KIND = package_pb2.PackageValue.Kind
CHUNK = 24  # Tokens per chunk of the head; no divisor of the tests' batches.


class Package:
    def __init__(self, path, directory):
        """Unpacks a package into an empty directory and verifies it."""
        self.directory = pathlib.Path(directory)
        with zipfile.ZipFile(path) as archive:
            assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
            archive.extractall(directory)
            names = set(archive.namelist())
        self.manifest = json_format.Parse((self.directory / "manifest.json").read_text(), package_pb2.PackageManifest())
        assert names == {"manifest.json", *(file.name for file in self.manifest.files)}
        for file in self.manifest.files:
            data = (self.directory / file.name).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (file.bytes, file.sha256)
        self.model = self.manifest.model
        self.device = "cuda" if self.model.device == job_pb2.DEVICE_CUDA else "cpu"
        self.buffers = [self.load_buffer(each) for each in self.manifest.buffers]
        self.runners = {}

    def load_buffer(self, buffer):
        dtype = getattr(torch, buffer.type)
        data = bytearray((self.directory / buffer.file).read_bytes())
        return torch.frombuffer(data, dtype=dtype).reshape(list(buffer.shape)).to(self.device)

    def unit_params(self, index):
        """Full names and descriptions of the parameters that a unit binds: its own, then those of the tied unit."""
        unit = self.model.units[index]
        own = [(f"{unit.module}.{param.name}" if unit.module else param.name, param)
               for param in self.model.graphs[unit.graph].params]
        tied = next((i for i, each in enumerate(self.model.units) if unit.tied_to and each.name == unit.tied_to), None)
        return own + (self.unit_params(tied) if tied is not None else [])

    def values(self):
        """Initial values by full name."""
        found = {}
        for index, unit in enumerate(self.manifest.units):
            for (name, param), initial in zip(self.unit_params(index), unit.initial_values):
                if initial.WhichOneof("kind") == "file":
                    data = bytearray((self.directory / initial.file).read_bytes())
                    found[name] = torch.frombuffer(data, dtype=torch.float32).reshape(list(param.shape))
        return found

    def call(self, call, given):
        if call.library not in self.runners:
            runner = torch._C._aoti.AOTIModelContainerRunnerCuda if self.device == "cuda" else \
                torch._C._aoti.AOTIModelContainerRunnerCpu
            self.runners[call.library] = runner(str(self.directory / call.library), 1)
        inputs = [given[value.kind, value.index] for value in call.inputs]
        assert all(each.is_contiguous() for each in inputs)
        outputs = self.runners[call.library].run(inputs)
        return {(value.kind, value.index): each for value, each in zip(call.outputs, outputs)}

    def step(self, values, tokens, targets, mode=job_pb2.RECOMPUTE_NONE):
        """Loss and gradients by full name for one micro-batch; a target of -100 has no loss."""
        compute = DTYPES[self.model.compute]
        params = {name: value.to(self.device, compute) for name, value in values.items()}
        hidden, open_units = None, []
        for index, unit in enumerate(self.model.units):
            modes = [each.recompute for each in self.model.graphs[unit.graph].variants]
            variant = modes.index(mode if mode in modes else job_pb2.RECOMPUTE_NONE)
            graph = self.manifest.graphs[unit.graph]
            calls = graph.variants[variant]
            bound = self.unit_params(index)
            given = {(KIND.KIND_PARAM, i): params[name] for i, (name, _) in enumerate(bound)}
            given |= {(KIND.KIND_BUFFER, i): self.buffers[each] for i, each in enumerate(self.manifest.units[index].buffers)}
            given |= {(KIND.KIND_TOKENS, 0): tokens, (KIND.KIND_HIDDEN, 0): hidden}
            made = self.call(calls.forward if calls.HasField("forward") else graph.evaluation, given)
            hidden = made.pop((KIND.KIND_HIDDEN, 0))
            self.check_output(unit, hidden)
            saved = sum(each.numel() * each.element_size() for each in made.values())
            open_units.append((calls, {**given, **made}, bound, saved))
        grads = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in values.items()}
        names = [name for name, _ in bound]
        head = self.model.graphs[self.model.units[-1].graph].head
        loss, gradient = self.head(head, hidden, [params[name] for name in names], targets, grads, names)
        for calls, given, bound, _ in reversed(open_units):
            if not calls.HasField("backward"):
                continue
            for (kind, i), each in self.call(calls.backward, {**given, (KIND.KIND_GRAD_HIDDEN, 0): gradient}).items():
                if kind == KIND.KIND_GRAD_PARAM:
                    grads[bound[i][0]] += each.float().cpu()
                else:
                    gradient = each
        return loss, grads

    def check_output(self, unit, hidden):
        graph = self.model.graphs[unit.graph]
        assert hidden.is_contiguous()
        if not graph.HasField("head"):
            assert hidden.numel() * hidden.element_size() == graph.output_bytes
            assert hidden.dtype == DTYPES[graph.output_type]

    def head(self, head, hidden, params, targets, grads, names):
        weight = params[head.weight].detach().requires_grad_()
        bias = params[head.bias].detach().requires_grad_() if head.HasField("bias") else None
        scale = head.logit_scale if head.HasField("logit_scale") else 1.0
        rows, targets = hidden.flatten(0, 1), targets.flatten()
        gradient, loss = torch.empty_like(rows), 0.0
        count = int((targets != -100).sum())
        for start in range(0, len(rows), CHUNK):
            part = rows[start:start + CHUNK].detach().requires_grad_()
            logits = torch.nn.functional.linear(part, weight, bias).float() * scale
            if head.soft_cap:
                logits = head.soft_cap * torch.tanh(logits / head.soft_cap)
            piece = torch.nn.functional.cross_entropy(logits, targets[start:start + CHUNK], reduction="sum") / count
            piece.backward()
            loss += piece.item()
            gradient[start:start + CHUNK] = part.grad
        grads[names[head.weight]] += weight.grad.float().cpu()
        if bias is not None:
            grads[names[head.bias]] += bias.grad.float().cpu()
        return loss, gradient.view_as(hidden)


def relative_error(found, expected):
    return float((found - expected).norm() / expected.norm().clamp(min=1e-12))


def eager_step(module, tokens, targets):
    """Loss and gradients of plain autograd, by the names of named_parameters."""
    out = module(tokens)
    logits = getattr(out, "logits", out).float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return loss.item(), {name: param.grad.detach().float() for name, param in module.named_parameters() if param.requires_grad}
