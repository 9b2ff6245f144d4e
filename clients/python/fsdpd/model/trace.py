"""The forward pass of a module as a graph of ATen operations, with module paths and source lines on its nodes.

torch.export traces with fake tensors, so neither memory nor time grows with the sizes of the parameters. Decomposition
without a table makes the graph functional: an in-place operation becomes one that returns its result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import re
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fsdpd.faults import Fault
from fsdpd.model.build import Built

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
RANDOM = {"dropout", "native_dropout", "bernoulli", "rand", "randn", "rand_like", "randn_like", "randint", "normal",
          "uniform", "multinomial", "randperm", "alpha_dropout", "feature_dropout", "exponential"}
OWN = (pathlib.Path(torch.__file__).parent, pathlib.Path(__file__).parent)
PREFIX = "fsdpd_root."  # The wrapper's attribute.


@dataclasses.dataclass
class Shape:
    micro_batch: int
    sequence: int


@dataclasses.dataclass
class Parameter:
    name: str
    shape: tuple[int, ...]
    frozen: bool


@dataclasses.dataclass
class Trace:
    graph: torch.fx.Graph
    tokens: torch.fx.Node
    output: torch.fx.Node  # The logits.
    params: dict[torch.fx.Node, Parameter]  # Names of tied parameters share one entry.
    buffers: dict[torch.fx.Node, tuple[str, torch.Tensor]]
    shape: Shape
    dtype: torch.dtype
    device: torch.device


class Logits(nn.Module):
    """Takes tokens and returns logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.fsdpd_root = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out = self.fsdpd_root(tokens)
        out = getattr(out, "logits", out)
        if not isinstance(out, torch.Tensor):
            raise Fault(f"{type(self.fsdpd_root).__name__}: forward does not return logits (got {type(out).__name__})")
        return out


def where(node: torch.fx.Node) -> str:
    """Source line of a node, for errors: 'model.py:12 (x = y.sort())'."""
    lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines()]
    frames = []
    for line, code in zip(lines, [*lines[1:], ""]):
        if found := re.fullmatch(r'File "(.+)", line (\d+), in .*', line):
            frames.append((found[1], found[2], code))
    return place(frames) or f"operation {node.target}"


def place(frames: Sequence[tuple[str, Any, str | None]]) -> str:
    """The innermost frame outside PyTorch and this package."""
    for file, line, code in reversed(frames):
        if not any(pathlib.Path(file).is_relative_to(directory) for directory in OWN):
            return f"{file}:{line} ({code})"
    return ""


def trace(built: Built, shape: Shape, dtype: torch.dtype, device: torch.device) -> Trace:
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True, static_shapes=True)
    real = {name: buffer.to(device) for name, buffer in built.module.named_buffers(remove_duplicate=False)}
    replace_tensors(built.module, mode, dtype, device)
    with mode:
        tokens = torch.zeros(shape.micro_batch, shape.sequence, dtype=torch.int64, device=device)
    with warnings.catch_warnings(), no_custom_gradients(device):
        warnings.simplefilter("ignore")
        logging.getLogger("torch").setLevel(logging.ERROR)  # An error of the trace is reported once.
        try:
            program = torch.export.export(Logits(built.module), (tokens,), strict=False)
            trained = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.PARAMETER}
            check_detached(program.graph_module, {node for node in program.graph.nodes if node.name in trained})
            program = program.run_decompositions({})
        except Fault:
            raise
        except Exception as error:
            frames = [(frame.filename, frame.lineno, frame.line) for frame in traceback.extract_tb(error.__traceback__)]
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise Fault(f"{place(frames) or built.source.name}: cannot trace the forward pass: {reason}") from error
    return collect(program, built.module, real, shape, dtype, device)


def replace_tensors(module: nn.Module, mode: FakeTensorMode, dtype: torch.dtype, device: torch.device) -> None:
    """Replaces parameters by fake ones of the compute data type, and buffers by fake ones of their own type."""
    fake: dict[int, nn.Parameter] = {}
    for each in module.modules():
        for name, parameter in each._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in fake:
                kind = dtype if parameter.is_floating_point() else parameter.dtype
                with mode:
                    made = nn.Parameter(torch.empty(parameter.shape, dtype=kind, device=device), parameter.requires_grad)
                fake[id(parameter)] = made
            each._parameters[name] = fake[id(parameter)]
        for name, buffer in each._buffers.items():
            if buffer is not None:
                with mode:
                    each._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)


@contextlib.contextmanager
def no_custom_gradients(device: torch.device) -> Iterator[None]:
    """torch.export drops the backward of an autograd.Function, and torch.no_grad inside torch.autocast. So custom functions
    are not supported, and torch.autocast is skipped where it is disabled, and not supported where it is enabled."""
    apply = torch.autograd.Function.__dict__["apply"]
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.split(".")[0] == "torch":
            return apply.__func__(cls, *args, **kwargs)
        raise Fault(f"{cls.__name__}: torch.autograd.Function is not supported in an exported model; write it with "
                    "differentiable operations")

    def refuse_enabled(context: Any) -> Any:
        if context._enabled and context.device == device.type:
            frames = [(frame.filename, frame.lineno, frame.line) for frame in traceback.extract_stack()]
            raise Fault(f"{place(frames)}: torch.autocast is not supported; use --dtype")
        return context
    torch.autograd.Function.apply = classmethod(refuse)
    torch.autocast.__enter__, torch.autocast.__exit__ = refuse_enabled, lambda *error: False
    try:
        yield
    finally:
        torch.autograd.Function.apply = apply
        torch.autocast.__enter__, torch.autocast.__exit__ = enter, leave


def check_detached(module: torch.fx.GraphModule, depends: set[torch.fx.Node]) -> None:
    """Decomposition drops torch.no_grad and detach, so they may not apply to values that depend on the given nodes."""
    for node in module.graph.nodes:
        if not any(each in depends for each in node.all_input_nodes):
            continue
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.is_floating_point():
            depends.add(node)
        name = getattr(node.target, "__name__", "")
        if name.split(".")[0] in ("detach", "detach_") or name == "wrap_with_set_grad_enabled" and not node.args[0]:
            raise Fault(f"{where(node)}: stopping a gradient with detach or torch.no_grad is not supported")
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            check_nested(module, node, depends)


def check_nested(module: torch.fx.GraphModule, node: torch.fx.Node, depends: set[torch.fx.Node]) -> None:
    """The graphs that an operation runs, whose last inputs are those of the operation."""
    for argument in node.args:
        if isinstance(argument, torch.fx.Node) and argument.op == "get_attr":
            nested = getattr(module, str(argument.target), None)
            if isinstance(nested, torch.fx.GraphModule):
                inputs = nested.graph.find_nodes(op="placeholder")
                given = node.args[len(node.args) - len(inputs):]
                check_detached(nested, {each for each, outer in zip(inputs, given) if outer in depends})


def collect(program: torch.export.ExportedProgram, module: nn.Module, real: dict[str, torch.Tensor], shape: Shape,
            dtype: torch.dtype, device: torch.device) -> Trace:
    graph = program.graph
    parameters = dict(module.named_parameters(remove_duplicate=False))
    first: dict[int, tuple[torch.fx.Node, Parameter]] = {}
    names = {id(parameter): name for name, parameter in reversed(list(parameters.items()))}
    made = Trace(graph, graph.find_nodes(op="placeholder")[-1], graph.output_node().args[0][0], {}, {}, shape, dtype, device)
    nodes = {node.name: node for node in graph.find_nodes(op="placeholder")}
    for spec in program.graph_signature.input_specs:
        node = nodes[spec.arg.name]
        if spec.kind == InputKind.PARAMETER:
            parameter = parameters[spec.target.removeprefix(PREFIX)]
            if id(parameter) in first:
                node.replace_all_uses_with(first[id(parameter)][0])
                continue
            entry = Parameter(names[id(parameter)], tuple(parameter.shape), not parameter.requires_grad)
            first[id(parameter)] = (node, entry)
            made.params[node] = entry
        elif spec.kind == InputKind.BUFFER:
            name = spec.target.removeprefix(PREFIX)
            made.buffers[node] = (name, real[name])
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            value = program.constants[spec.target]
            if value.dim() == 0:
                inline(graph, node, value, device)
            else:
                made.buffers[node] = (spec.target.removeprefix(PREFIX), value.detach().to(device))
        elif spec.kind == InputKind.USER_INPUT:
            made.tokens = node
        else:
            raise Fault(f"{spec.target}: {spec.kind.name.lower()} is not supported as a constant of the model")
    check(program, made)
    return made


def inline(graph: torch.fx.Graph, node: torch.fx.Node, value: torch.Tensor, device: torch.device) -> None:
    """A constant of one element becomes an operation."""
    with graph.inserting_after(list(graph.find_nodes(op="placeholder"))[-1]):
        made = graph.call_function(torch.ops.aten.full.default, ([], value.item()), {"dtype": value.dtype, "device": device})
    made.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(made)


def check(program: torch.export.ExportedProgram, made: Trace) -> None:
    for spec in program.graph_signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            name = str(spec.target or "tokens").removeprefix(PREFIX)
            raise Fault(f"{name}: a buffer, parameter or input that forward changes is not supported")
    for node in list(made.graph.nodes):
        if node.op == "get_attr" or isinstance(node.target, torch._ops.HigherOrderOperator):
            raise Fault(f"{where(node)}: {node.target} is not supported; write the forward pass without control flow "
                        "that depends on data")
        if node.op != "call_function":
            continue
        name = getattr(node.target, "__name__", "").split(".")[0]
        if name.startswith("_assert"):
            made.graph.erase_node(node)
            continue
        probability = next((value for key, value in arguments(node).items() if key in ("p", "dropout_p", "dropout")), None)
        if probability == 0 and name in ("dropout", "native_dropout"):
            node.replace_all_uses_with(node.args[0])
            made.graph.erase_node(node)
        elif probability or name in RANDOM:
            raise Fault(f"{where(node)}: random operations such as dropout are not supported; add --dropout 0")
    logits = made.output.meta["val"]
    if logits.dim() != 3 or tuple(logits.shape[:2]) != (made.shape.micro_batch, made.shape.sequence):
        raise Fault(f"{where(made.output)}: forward returns a tensor of shape {list(logits.shape)} (want logits of shape "
                    f"[{made.shape.micro_batch}, {made.shape.sequence}, vocabulary])")
    made.graph.eliminate_dead_code()


def arguments(node: torch.fx.Node) -> dict[str, Any]:
    """Arguments of an ATen call by their names in its schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    found = {argument.name: argument.default_value for argument in schema.arguments}
    found.update({argument.name: value for argument, value in zip(schema.arguments, node.args)})
    found.update(node.kwargs)
    return found
