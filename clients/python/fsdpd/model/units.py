"""Units: the traced graph cut at the modules that are gathered as a whole, like those with `fully_shard` in FSDP2.

Every operation that depends on parameters has a level: 0 before the first unit module, i in the i-th, and one more after
the last. Operations that depend only on tokens, positions, buffers and constants (rotary tables, masks) are repeated in each unit
that uses them. Values that live across a boundary are packed into one tensor of hidden states.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Any

import torch
from torch import fx, nn

from fsdpd.faults import Fault
from fsdpd.model.build import Source
from fsdpd.model.head import Head, find_head
from fsdpd.model.lines import where
from fsdpd.model.trace import PREFIX, Parameter, Trace

aten = torch.ops.aten


@dataclasses.dataclass
class Unit:
    name: str
    module: str
    params: list[Parameter]  # Its own.
    borrowed: list[Parameter]  # All of the unit that it is tied to.
    buffers: list[tuple[str, torch.Tensor]]
    tokens: bool
    positions: bool
    hidden: bool
    graph: fx.GraphModule  # Inputs: params, borrowed, buffers, tokens, positions, hidden states. Output: hidden states.
    head: Head | None = None
    tied_to: str = ""

    def inputs(self) -> list[tuple[str, int]]:
        """Kind and index of each input of the graph."""
        return [*(("PARAM", i) for i in range(len(self.params) + len(self.borrowed))),
                *(("BUFFER", i) for i in range(len(self.buffers))),
                *([("TOKENS", 0)] if self.tokens else []), *([("POSITIONS", 0)] if self.positions else []),
                *([("HIDDEN", 0)] if self.hidden else [])]

    def elements(self) -> int:
        return sum(math.prod(each.shape) for each in self.params)

    def frozen(self) -> list[bool]:
        return [each.frozen for each in (*self.params, *self.borrowed)]

    def local_name(self, parameter: Parameter) -> str:
        return parameter.name[len(self.module) + 1:] if self.module else parameter.name


MOST_LAYERS = 1024
MOST_PARAMETERS = 4096  # Of a unit.


def unit_paths(module: nn.Module, source: Source) -> list[str]:
    """Names of the unit modules, outermost first."""
    wanted: list[Any] = list(source.unit_modules)
    found = {name: [want for want in wanted if is_wanted(want, name, each)] for name, each in module.named_modules() if name}
    for want in wanted:
        if not any(want in each for each in found.values()):
            name = want.__name__ if isinstance(want, type) else repr(want)
            raise Fault(f"{source.unit_modules_line()}: the model has no module {name}; write the class or the name of one of "
                        "its modules, or remove it")
    if not wanted:
        wanted = list(getattr(module, "_no_split_modules", None) or ())
        found = {name: wanted for name, each in module.named_modules() if name and type(each).__name__ in wanted}
    if not any(found.values()):
        lists = [(sum(p.numel() for p in each.parameters()), name) for name, each in module.named_modules()
                 if isinstance(each, nn.ModuleList)]
        if not lists:
            raise Fault("the model has no nn.ModuleList of layers; set fsdp_unit_modules in its file, such as [Layer]")
        largest = max(lists)[1]
        found = {f"{largest}.{index}": [largest] for index in range(len(module.get_submodule(largest)))}
    names = [name for name, wants in found.items() if wants]
    if not names:
        raise Fault("the model's largest nn.ModuleList is empty; set fsdp_unit_modules in its file, such as [Layer]")
    outermost = [name for name in names if not any(name.startswith(other + ".") for other in names)]
    check_limits(module, outermost)
    return outermost


def check_limits(module: nn.Module, paths: list[str]) -> None:
    """As rules package_units and package_params."""
    if len(paths) > MOST_LAYERS:
        raise Fault(f"{paths[0]}: one of {len(paths):,} unit modules (want at most {MOST_LAYERS:,}); make modules of several layers "
                    "the unit modules, with fsdp_unit_modules")
    for path in paths:
        count = sum(1 for _ in module.get_submodule(path).parameters())
        if count > MOST_PARAMETERS:
            raise Fault(f"{path}: a unit with {count:,} parameters (want at most {MOST_PARAMETERS:,}); stack parameters of equal shape "
                        "in one tensor")


def is_wanted(want: Any, name: str, module: nn.Module) -> bool:
    """Whether an entry of fsdp_unit_modules, a class or a name, is this module."""
    return isinstance(module, want) if isinstance(want, type) else want in (name, type(module).__name__)


def path_of(node: fx.Node, paths: dict[str, int]) -> str | None:
    for path, _ in (node.meta.get("nn_module_stack") or {}).values():
        path = path.removeprefix(PREFIX).partition("@")[0]
        if path in paths:
            return str(path)
    return None


class Cut:
    """Levels of the nodes, and owners of the parameters."""

    def __init__(self, trace: Trace, paths: list[str]) -> None:
        self.trace = trace
        self.nodes = [node for node in trace.graph.nodes if node.op == "call_function"]
        self.dependent: set[fx.Node] = set(trace.params)
        for node in self.nodes:
            if any(each in self.dependent for each in node.all_input_nodes):
                self.dependent.add(node)
        self.levels = self._levels(paths)
        self._check_order()
        self._remove_units_without_parameters()

    def _levels(self, paths: list[str]) -> dict[fx.Node, int]:
        known = {path: 0 for path in paths}
        order: dict[str, int] = {}
        levels: dict[fx.Node, int] = {}
        work = [node for node in self.nodes if node in self.dependent]
        for node in work:
            path = path_of(node, known)
            if path is not None:
                levels[node] = order.setdefault(path, len(order) + 1)
        if not order:
            raise Fault("fsdp_unit_modules: forward calls none of these modules: " + ", ".join(paths[:4]))
        last = len(order) + 1
        self._paths = {level: path for path, level in order.items()}
        seen = False
        for node in work:  # Before the first unit module.
            seen = seen or node in levels
            if not seen:
                levels[node] = 0
        for node in reversed(work):  # Otherwise a node joins its first user.
            if node not in levels:
                users = [levels[user] for user in node.users if user in levels]
                levels[node] = min(users, default=last)
        for node in work:
            if getattr(node.target, "__name__", "") == "getitem":
                levels[node] = levels[node.args[0]]
        return levels

    def _check_order(self) -> None:
        for node, level in self.levels.items():
            for each in node.all_input_nodes:
                if self.levels.get(each, level) > level:
                    raise Fault(f"{where(node)}: unit modules do not run one after the other (the unit of this line uses a "
                                "value of a later one); set fsdp_unit_modules to modules that are called once, in order")

    def _remove_units_without_parameters(self) -> None:
        with_params = {self.levels[user] for param in self.trace.params for user in param.users if user in self.levels}
        kept = sorted(with_params)
        # A unit without parameters joins the one before it, or the first one after it.
        renumbered = {level: max((i for i, each in enumerate(kept) if each <= level), default=0)
                      for level in set(self.levels.values())}
        self.levels = {node: renumbered[level] for node, level in self.levels.items()}
        self.paths = {i: self._paths[level] for i, level in enumerate(kept) if level in self._paths}
        self.count = len(kept)
        if self.count < 2:
            raise Fault("the model has one unit (want at least 2); set fsdp_unit_modules to smaller modules")

    def owners(self) -> tuple[list[list[fx.Node]], fx.Node | None]:
        """Parameters of each unit in the model's order, and the parameter that the last unit borrows."""
        owned: list[list[fx.Node]] = [[] for _ in range(self.count)]
        borrowed: list[fx.Node] = []
        for param, entry in self.trace.params.items():
            users = sorted({self.levels[user] for user in param.users if user in self.levels})
            if not users:
                raise Fault(f"{entry.name}: forward does not use this parameter; remove it from the model")
            owned[users[0]].append(param)
            if users[1:] not in ([], [self.count - 1]):
                raise Fault(f"{entry.name}: only the last unit may share a parameter of an earlier one")
            borrowed += [param] * len(users[1:])
        if len({self.levels_of(param) for param in borrowed}) > 1:
            names = ", ".join(self.trace.params[param].name for param in borrowed)
            raise Fault(f"{names}: the last unit shares parameters of several units; it may share those of one")
        return owned, borrowed[0] if borrowed else None

    def levels_of(self, param: fx.Node) -> int:
        return min(self.levels[user] for user in param.users if user in self.levels)

    def crossing(self, level: int) -> list[fx.Node]:
        """Values of units up to `level` that later units use, in the order of their first use, so that equal layers take
        and return them in the same order."""
        found: dict[fx.Node, None] = {}
        for user in self.nodes:
            if self.levels.get(user, -1) > level:
                found.update({each: None for each in user.all_input_nodes if self.levels.get(each, self.count) <= level})
        for node in found:
            value = node.meta["val"]
            shape = (self.trace.shape.micro_batch, self.trace.shape.sequence)
            if not isinstance(value, torch.Tensor) or tuple(value.shape[:2]) != shape or value.dim() < 3:
                got = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
                raise Fault(f"{where(node)}: a value of shape {got} passes from one unit to a later one (want [micro-batch, "
                            "sequence, ...]); compute it in each unit from tokens or buffers")
            if not value.is_floating_point():
                raise Fault(f"{where(node)}: a value of type {value.dtype} passes from one unit to a later one (want "
                            "floating point)")
        return list(found)


class Packing:
    """Layout of several values in one tensor of hidden states."""

    def __init__(self, values: list[fx.Node]) -> None:
        self.values = [node.meta["val"] for node in values]
        self.widths = [value[0, 0].numel() for value in self.values]
        self.dtype = self.values[0].dtype
        for value in self.values[1:]:
            self.dtype = torch.promote_types(self.dtype, value.dtype)

    def example(self) -> torch.Tensor:
        return self.values[0].new_empty(sum(value.numel() for value in self.values), dtype=self.dtype)

    def pack(self, graph: fx.Graph, nodes: list[fx.Node]) -> fx.Node:
        """Flat, so that pipeline stages can exchange it without knowing its shape."""
        if len(nodes) == 1:
            return graph.call_function(aten.reshape.default, (nodes[0], [-1]))
        parts = []
        for node, value, width in zip(nodes, self.values, self.widths):
            part = graph.call_function(aten.reshape.default, (node, [*value.shape[:2], width]))
            parts.append(graph.call_function(aten.to.dtype, (part, self.dtype)))
        return graph.call_function(aten.reshape.default, (graph.call_function(aten.cat.default, (parts, -1)), [-1]))

    def unpack(self, graph: fx.Graph, packed: fx.Node) -> list[fx.Node]:
        if len(self.values) == 1:
            return [graph.call_function(aten.reshape.default, (packed, list(self.values[0].shape)))]
        rows = [*self.values[0].shape[:2], sum(self.widths)]
        packed = graph.call_function(aten.reshape.default, (packed, rows))
        nodes, at = [], 0
        for value, width in zip(self.values, self.widths):
            part = graph.call_function(aten.slice.Tensor, (packed, 2, at, at + width))
            part = graph.call_function(aten.reshape.default, (part, list(value.shape)))
            nodes.append(graph.call_function(aten.to.dtype, (part, value.dtype)))
            at += width
        return nodes


class Builder:
    """Builds the graph of one unit."""

    def __init__(self, trace: Trace, cut: Cut, level: int, params: list[fx.Node], given: list[fx.Node]) -> None:
        self.trace, self.cut, self.level = trace, cut, level
        self.graph = fx.Graph()
        self.map: dict[fx.Node, fx.Node] = {}
        self.buffers: list[fx.Node] = []
        self.tokens = self.positions = False
        for index, param in enumerate(params):
            self._input(f"param_{index}", param, param.meta["val"])
        self._params_end = self.graph.create_node("placeholder", "end_of_params")
        self.given = Packing(given) if given else None
        if self.given:
            hidden = self.graph.placeholder("hidden")
            hidden.meta["val"] = self.given.example()
            for node, copy in zip(given, self.given.unpack(self.graph, hidden)):
                self.map[node] = copy

    def _input(self, name: str, node: fx.Node, value: Any) -> None:
        self.map[node] = self.graph.placeholder(name)
        self.map[node].meta["val"] = value

    def copy(self, node: fx.Node) -> fx.Node:
        """Copies a node, and before it those that it needs."""
        stack = [node]
        while stack:
            top = stack[-1]
            if top in self.map:
                stack.pop()
                continue
            missing = [each for each in top.all_input_nodes if each not in self.map]
            if missing:
                stack += missing
                continue
            stack.pop()
            if top.op == "placeholder":
                self._free_input(top)
            else:
                self.map[top] = self.graph.node_copy(top, lambda each: self.map[each])
        return self.map[node]

    def _free_input(self, node: fx.Node) -> None:
        with self.graph.inserting_before(self._params_end):
            if node is self.trace.tokens:
                self.tokens = True
                name = "tokens"
            elif node is self.trace.positions:
                self.positions = True
                name = "positions"
            else:
                name = f"buffer_{len(self.buffers)}"
                self.buffers.append(node)
            self._input(name, node, node.meta["val"])

    def finish(self, output: fx.Node) -> fx.GraphModule:
        self.graph.output(output)
        self.graph.erase_node(self._params_end)
        # Buffers are before tokens and positions, whichever is used first.
        anchor = next(node for node in self.graph.nodes if node.op != "placeholder" or node.name == "hidden")
        for name in ("tokens", "positions"):
            for node in self.graph.find_nodes(op="placeholder"):
                if node.name == name:
                    anchor.prepend(node)
        self.graph.eliminate_dead_code()
        self.graph.lint()
        return fx.GraphModule(nn.Module(), self.graph)


def cut_units(trace: Trace, paths: list[str]) -> list[Unit]:
    cut = Cut(trace, paths)
    owned, shared = cut.owners()
    head = find_head(trace)
    units: list[Unit] = []
    given: list[fx.Node] = []
    for level in range(cut.count):
        last = level == cut.count - 1
        borrowed = owned[cut.levels_of(shared)] if last and shared is not None else []
        params = owned[level] + borrowed
        builder = Builder(trace, cut, level, params, given)
        if last:
            if head.hidden not in cut.levels or any(each not in params for each in head.params()):
                raise Fault(f"{where(trace.output)}: the final linear layer is not in the last unit")
            graph = builder.finish(builder.copy(head.hidden))
        else:
            given = cut.crossing(level)
            if not given:
                raise Fault(f"unit {level}: later units do not use its result")
            packed = Packing(given)
            graph = builder.finish(packed.pack(builder.graph, [builder.copy(node) for node in given]))
        entries = [trace.params[node] for node in owned[level]]
        name, module = unit_name(entries, trace, cut.paths.get(level, ""), level == 0, last)
        units.append(Unit(name, module, entries, [trace.params[node] for node in borrowed],
                          [trace.buffers[node] for node in builder.buffers], builder.tokens, builder.positions,
                          builder.given is not None, graph))
        if last:
            units[-1].head = head.indexed(params)
    set_unique_names(units)
    if shared is not None:
        units[-1].tied_to = units[cut.levels_of(shared)].name
    return units


def unit_name(params: list[Parameter], trace: Trace, path: str, first: bool, last: bool) -> tuple[str, str]:
    """The unit module, the common prefix of the parameters' names, or a name of the position."""
    if path and all(each.name.startswith(path + ".") for each in params):
        return path, path
    split = [each.name.split(".")[:-1] for each in params]
    common: list[str] = []
    for parts in zip(*split):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    prefix = ".".join(common)
    # A prefix of other units too, such as `model`, does not identify this unit.
    inside = [each for each in trace.params.values() if each.name.startswith(prefix + ".")]
    if prefix and len(inside) == len(params):
        return prefix, prefix
    return ("embedding" if first else "head" if last else prefix or "unit"), ""


def set_unique_names(units: list[Unit]) -> None:
    seen: set[str] = set()
    for index, unit in enumerate(units):
        while unit.name in seen:
            unit.name = f"{unit.name}.{index}"
        seen.add(unit.name)


def vocab_size(last: Unit) -> int:
    assert last.head
    return [*last.params, *last.borrowed][last.head.weight].shape[0]


def signature(unit: Unit) -> str:
    """Hash of everything that the compiled calls of a unit depend on."""
    numbers: dict[fx.Node, str] = {}
    lines = [repr([(unit.local_name(each), each.shape, each.frozen) for each in unit.params]),
             repr([(each.shape, each.frozen) for each in unit.borrowed]), repr(unit.head), repr(unit.inputs())]
    for node in unit.graph.graph.nodes:
        numbers[node] = f"%{len(numbers)}"
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: numbers[each])
        value = node.meta.get("val")
        kind = f"{tuple(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else ""
        target = node.name.split("_")[0] if node.op == "placeholder" else str(node.target)
        lines.append(f"{node.op} {target} {args} {kwargs} {kind}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
