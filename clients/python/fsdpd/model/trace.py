"""The forward pass of a module as a graph of ATen operations, with module paths and source lines on its nodes.

torch.export traces with fake tensors, so neither memory nor time grows with the sizes of the parameters. Decomposition
without a table makes the graph functional: an in-place operation becomes one that returns its result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fsdpd.faults import Fault
from fsdpd.model.build import Built
from fsdpd.model.lines import frames_of, place, where

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Types of the buffers that ranks load (fsdp/model/package/package_model.cc).
BUFFER_TYPES = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.uint8}
PREFIX = "fsdpd_root."  # The wrapper's attribute.


@dataclasses.dataclass
class Shape:
    micro_batch: int
    sequence: int
    documents: bool = False  # Samples consist of documents: forward takes position ids too.


@dataclasses.dataclass
class Parameter:
    name: str
    shape: tuple[int, ...]
    frozen: bool


@dataclasses.dataclass
class Trace:
    graph: torch.fx.Graph
    tokens: torch.fx.Node
    positions: torch.fx.Node | None  # Position of each token in its document, if samples consist of documents.
    output: torch.fx.Node  # The logits.
    params: dict[torch.fx.Node, Parameter]  # Names of tied parameters share one entry.
    buffers: dict[torch.fx.Node, tuple[str, torch.Tensor]]
    shape: Shape
    dtype: torch.dtype
    device: torch.device


class Logits(nn.Module):
    """Takes tokens, and position ids if samples consist of documents; returns logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.fsdpd_root = model

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        out = self.fsdpd_root(tokens) if positions is None else self.fsdpd_root(tokens, position_ids=positions)
        out = getattr(out, "logits", out)
        if not isinstance(out, torch.Tensor):
            raise Fault(f"{type(self.fsdpd_root).__name__}: forward does not return logits (got {type(out).__name__})")
        return out


def trace(built: Built, shape: Shape, dtype: torch.dtype, device: torch.device) -> Trace:
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True, static_shapes=True)
    real = {name: buffer.to(device) for name, buffer in built.module.named_buffers(remove_duplicate=False)}
    replace_tensors(built.module, mode, dtype, device)
    with mode:
        inputs = tuple(torch.zeros(shape.micro_batch, shape.sequence, dtype=torch.int64, device=device)
                       for _ in range(1 + shape.documents))
    check_signature(built.module, shape.documents)
    with warnings.catch_warnings(), no_custom_gradients(device), contextlib.redirect_stderr(io.StringIO()):
        # Errors are reported once, without the graph up to them, which torch.export prints.
        warnings.simplefilter("ignore")
        logging.getLogger("torch").setLevel(logging.ERROR)
        try:
            program = torch.export.export(Logits(built.module), inputs, strict=False)
            parameters = dict(built.module.named_parameters(remove_duplicate=False))
            trained = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.PARAMETER
                       and parameters[spec.target.removeprefix(PREFIX)].requires_grad}
            check_detached(program.graph_module, {node for node in program.graph.nodes if node.name in trained})
            program = program.run_decompositions({})
        except Fault:
            raise
        except Exception as error:
            raise untraceable(error, built.source.name) from error
    return collect(program, built, real, shape, dtype, device)


def check_signature(module: nn.Module, documents: bool) -> None:
    want = "token ids and position_ids" if documents else "token ids only"
    try:
        inspect.signature(module.forward).bind(None, **({"position_ids": None} if documents else {}))
    except TypeError as error:
        code = type(module).forward.__code__
        raise Fault(f"{code.co_filename}:{code.co_firstlineno} ({type(module).__name__}.forward): {error} (want a forward of "
                    f"{want}); give the other arguments default values") from None
    except ValueError:  # No signature.
        pass


def untraceable(error: Exception, name: str) -> Fault:
    found = place(frames_of(error)) or name
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "data-dependent" in reason:
        return Fault(f"{found}: control flow that depends on values of tensors is not supported; compute both results and "
                     "choose with torch.where")
    return Fault(f"{found}: cannot trace the forward pass: {reason}")


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
    """torch.export drops the backward of an autograd.Function, and torch.no_grad inside torch.autocast, and crashes on some
    uses of .data. So these are not supported, and torch.autocast is skipped where it is disabled."""
    apply = torch.autograd.Function.__dict__["apply"]
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__
    infer = torch.inference_mode.__enter__

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.split(".")[0] == "torch":
            return apply.__func__(cls, *args, **kwargs)
        raise Fault(f"{cls.__name__}: torch.autograd.Function is not supported in an exported model; write it with "
                    "differentiable operations")

    def refuse_enabled(context: Any) -> Any:
        if context._enabled and context.device == device.type:
            raise Fault(f"{place_here()}: torch.autocast is not supported; use --dtype")
        return context

    def refuse_inference(context: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").split(".")[0] == "torch":
            return infer(context)
        raise Fault(f"{place_here()}: torch.inference_mode is not supported; it stops gradients")

    def refuse_data(tensor: torch.Tensor) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").split(".")[0] == "torch":
            return data.__get__(tensor)
        raise Fault(f"{place_here()}: .data is not supported in forward; use the tensor itself")
    data = torch.Tensor.data
    torch.Tensor.data = property(refuse_data, lambda tensor, value: data.__set__(tensor, value))
    torch.inference_mode.__enter__ = refuse_inference
    torch.autograd.Function.apply = classmethod(refuse)
    torch.autocast.__enter__, torch.autocast.__exit__ = refuse_enabled, lambda *error: False
    try:
        yield
    finally:
        torch.autograd.Function.apply = apply
        torch.autocast.__enter__, torch.autocast.__exit__ = enter, leave
        torch.inference_mode.__enter__ = infer
        del torch.Tensor.data  # It inherits the attribute.


def place_here() -> str:
    return place([(frame.filename, frame.lineno, frame.line) for frame in traceback.extract_stack()])


def check_detached(module: torch.fx.GraphModule, depends: set[torch.fx.Node]) -> None:
    """Decomposition drops torch.no_grad and detach, so they may not apply to values that depend on the given nodes."""
    for node in module.graph.nodes:
        if not any(each in depends for each in node.all_input_nodes):
            continue
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex():
            depends.add(node)
        name = getattr(node.target, "__name__", "")
        if name.split(".")[0] in ("detach", "detach_") or name == "wrap_with_set_grad_enabled" and not node.args[0]:
            raise Fault(f"{where_in(module, node)}: stopping a gradient with detach or torch.no_grad is not supported")
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            check_nested(module, node, depends)


def where_in(module: torch.fx.GraphModule, node: torch.fx.Node) -> str:
    """An operation with a graph of its own has no line, but the operations of that graph have."""
    for argument in node.args:
        nested = getattr(module, str(argument.target), None) if isinstance(argument, torch.fx.Node) else None
        if isinstance(nested, torch.fx.GraphModule):
            return next((where(each) for each in nested.graph.nodes if each.meta.get("stack_trace")), where(node))
    return where(node)


def check_nested(module: torch.fx.GraphModule, node: torch.fx.Node, depends: set[torch.fx.Node]) -> None:
    """The graphs that an operation runs, whose last inputs are those of the operation."""
    for argument in node.args:
        if isinstance(argument, torch.fx.Node) and argument.op == "get_attr":
            nested = getattr(module, str(argument.target), None)
            if isinstance(nested, torch.fx.GraphModule):
                inputs = nested.graph.find_nodes(op="placeholder")
                given = node.args[len(node.args) - len(inputs):]
                check_detached(nested, {each for each, outer in zip(inputs, given) if outer in depends})


def collect(program: torch.export.ExportedProgram, built: Built, real: dict[str, torch.Tensor], shape: Shape,
            dtype: torch.dtype, device: torch.device) -> Trace:
    graph = program.graph
    parameters = dict(built.module.named_parameters(remove_duplicate=False))
    first: dict[int, tuple[torch.fx.Node, Parameter]] = {}
    names = {id(parameter): name for name, parameter in reversed(list(parameters.items()))}
    given = graph.find_nodes(op="placeholder")[-1 - shape.documents:]
    made = Trace(graph, given[0], given[1] if shape.documents else None, graph.output_node().args[0][0], {}, {}, shape, dtype,
                 device)
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
        elif spec.kind != InputKind.USER_INPUT:
            raise Fault(f"{spec.target}: {spec.kind.name.lower()} is not supported as a constant of the model")
    check(program, made, built.dropout == 0)
    return made


def inline(graph: torch.fx.Graph, node: torch.fx.Node, value: torch.Tensor, device: torch.device) -> None:
    """A constant of one element becomes an operation."""
    with graph.inserting_after(list(graph.find_nodes(op="placeholder"))[-1]):
        made = graph.call_function(torch.ops.aten.full.default, ([], value.item()), {"dtype": value.dtype, "device": device})
    made.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(made)


def check(program: torch.export.ExportedProgram, made: Trace, without_dropout: bool) -> None:
    results = {node.name: node for node in made.graph.nodes}
    for spec in program.graph_signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            name = str(spec.target or "tokens").removeprefix(PREFIX)
            raise Fault(f"{where(results[spec.arg.name])}: forward changes {name}, but a buffer, parameter or input that "
                        "changes is not supported; use a layer without running statistics, such as nn.LayerNorm, or compute "
                        "the value from tokens")
    for node in list(made.graph.nodes):
        if operation(node).startswith(("_assert", "sym_constrain_range")):
            made.graph.erase_node(node)
    made.graph.eliminate_dead_code()
    for node in list(made.graph.nodes):
        if node.op == "get_attr" or isinstance(node.target, torch._ops.HigherOrderOperator):
            raise Fault(f"{where(node)}: {node.target} is not supported; write the forward pass without control flow "
                        "that depends on data")
        if isinstance(node.meta.get("val"), (torch.SymFloat, torch.SymInt, torch.SymBool)):
            raise Fault(f"{where(node)}: a number that is read from a tensor, as with item(), is not supported; keep it a tensor")
        if node.op == "call_function":
            check_operation(made, node, without_dropout)
    logits = made.output.meta["val"]
    if logits.dim() != 3 or tuple(logits.shape[:2]) != (made.shape.micro_batch, made.shape.sequence):
        raise Fault(f"{where(made.output)}: forward returns a tensor of shape {list(logits.shape)} (want logits of shape "
                    f"[{made.shape.micro_batch}, {made.shape.sequence}, vocabulary])")
    made.graph.eliminate_dead_code()
    if made.positions is not None and not made.positions.users:
        raise Fault("--documents: forward does not use position_ids, so documents of a sample would not be separate")
    for node, (name, value) in made.buffers.items():
        if node.users and value.dtype not in BUFFER_TYPES:
            fix = "store torch.view_as_real of it" if value.is_complex() else "convert it to float32 or int64"
            raise Fault(f"{where(next(iter(node.users)))}: {name} is a buffer of type {value.dtype}, which is not supported; "
                        f"{fix}")


def operation(node: torch.fx.Node) -> str:
    return getattr(node.target, "__name__", "").split(".")[0]


def check_operation(made: Trace, node: torch.fx.Node, without_dropout: bool) -> None:
    name = operation(node)
    if node.target is torch.ops.aten.view.default:
        # With gradients, a kernel may return another order of memory than in this trace.
        node.target = torch.ops.aten.reshape.default
    if node.target is torch.ops.aten.copy.default:
        replace_copy(made.graph, node)
        return
    sizes = getattr(node.meta.get("val"), "shape", [node.meta.get("val")])
    if any(isinstance(each, torch.SymInt) for each in sizes):
        raise Fault(f"{where(node)}: a size that depends on values of tensors is not supported; compute all elements and choose "
                    "with torch.where")
    given = arguments(node)
    probability = next((given[key] for key in ("p", "dropout_p", "dropout") if key in given), None)
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and probability != 0:
        if probability is None or name == "bernoulli":
            fix = "remove them from forward, or from its training mode"
        else:
            fix = "set this probability to 0 in the model" if without_dropout else "add --dropout 0"
        raise Fault(f"{where(node)}: random operations ({name} here) are not supported; {fix}")


def replace_copy(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """An assignment to a part of a tensor, `x[:, 0] = y`, becomes `copy`, which has no gradient."""
    value = node.meta["val"]
    with graph.inserting_before(node):
        cast = graph.call_function(torch.ops.aten.to.dtype, (node.args[1], value.dtype))
        made = graph.call_function(torch.ops.aten.expand.default, (cast, list(value.shape)))
    for each in (cast, made):
        each.meta = {**node.meta, "val": value if each is made else value.new_empty(node.args[1].meta["val"].shape)}
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def arguments(node: torch.fx.Node) -> dict[str, Any]:
    """Arguments of an ATen call by their names in its schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    found = {argument.name: argument.default_value for argument in schema.arguments}
    found.update({argument.name: value for argument, value in zip(schema.arguments, node.args)})
    found.update(node.kwargs)
    return found
