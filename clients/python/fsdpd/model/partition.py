"""Forward and backward graphs of a unit, in each activation checkpointing mode.

The joint graph has the decompositions of torch.compile, and its min-cut partitioner chooses the saved tensors. Backward
takes parameters, inputs and buffers themselves, and repeats views, casts, and everything that depends only on tokens,
positions and buffers. Saved tensors are contiguous: a transposed one is saved in the order of its memory.
"""

from __future__ import annotations

import dataclasses

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx, nn
from torch._functorch import config
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import flop_registry

from fsdpd.model.trace import operation
from fsdpd.model.units import Unit

aten = torch.ops.aten
Value = tuple[str, int]

# Views with all elements, views with some of them, and casts. Each has one tensor as its first argument.
WHOLE_VIEWS = {"view", "permute", "transpose", "t", "unsqueeze", "squeeze", "alias", "_unsafe_view", "reshape", "detach"}
PART_VIEWS = {"slice", "select", "expand", "split", "split_with_sizes", "chunk", "getitem"}
CASTS = {"_to_copy", "convert_element_type"}


def is_product(node: fx.Node) -> bool:
    """A matrix product, convolution or attention."""
    return "scaled_dot_product" in operation(node) or getattr(node.target, "overloadpacket", None) in flop_registry


@dataclasses.dataclass
class Call:
    graph: fx.GraphModule
    inputs: list[Value]
    outputs: list[Value]

    def examples(self) -> list[torch.Tensor]:
        return [node.meta["val"] for node in self.graph.graph.find_nodes(op="placeholder")]

    def results(self) -> list[torch.Tensor]:
        return [node.meta["val"] for node in self.graph.graph.output_node().args[0]]


@dataclasses.dataclass
class Variant:
    mode: str
    forward: Call | None  # None: evaluation.
    backward: Call | None  # None: nothing is trained.


@dataclasses.dataclass
class Calls:
    evaluation: Call
    variants: list[Variant]


class Joint:
    """The joint graph of a unit."""

    def __init__(self, unit: Unit) -> None:
        inputs = unit.inputs()
        frozen = unit.frozen()
        examples = [node.meta["val"] for node in unit.graph.graph.find_nodes(op="placeholder")]
        mode = next(each.fake_mode for each in examples)
        self.values = inputs
        args = []
        with mode:
            for (kind, index), example in zip(inputs, examples):
                grad = example.is_floating_point() and (kind == "HIDDEN" or kind == "PARAM" and not frozen[index])
                args.append(torch.empty(example.shape, dtype=example.dtype, device=example.device, requires_grad=grad))
        self.trained = [value for value, arg in zip(inputs, args) if arg.requires_grad]

        def run(*values: torch.Tensor) -> tuple[torch.Tensor]:
            # The exporter rejects a result that is a view; the clone is removed below.
            return (unit.graph(*values).clone(),)
        graph = aot_export_joint_simple(run, tuple(args), trace_joint=bool(self.trained), decompositions=select_decomp_table())
        assert isinstance(graph, fx.GraphModule)
        output = graph.graph.output_node()
        result, *rest = output.args[0]
        if operation(result) == "clone":
            output.args = ((result.args[0], *rest),)
            graph.graph.eliminate_dead_code()
        self.graph = graph
        self.mode: FakeTensorMode = mode
        names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
        self.names = dict(zip(names, [*inputs, ("GRAD_HIDDEN", 0)]))

    def gradients(self, results: list[fx.Node | None]) -> dict[Value, fx.Node]:
        """Gradients by their kinds. The unit does not use the parameters of the final linear layer."""
        assert len(results) == len(self.values)
        return {("GRAD_HIDDEN", 0) if kind == "HIDDEN" else ("GRAD_PARAM", index): result
                for (kind, index), result in zip(self.values, results) if result is not None}


def partition(unit: Unit, modes: list[str]) -> Calls:
    joint = Joint(unit)
    outputs = list(joint.graph.graph.output_node().args[0])
    evaluation = part(joint, joint.graph.graph, [outputs[0]], [("HIDDEN", 0)], {})
    variants = []
    for mode in modes:
        if not joint.trained:
            variants.append(Variant(mode, None, None))
        elif mode == "full":
            variants.append(Variant(mode, None, backward_call(joint, joint.graph.graph, outputs[1:], {})))
        else:
            variants.append(save_activations(joint, mode))
    return Calls(evaluation, variants)


def backward_call(joint: Joint, graph: fx.Graph, results: list[fx.Node | None], saved: dict[str, Value]) -> Call | None:
    gradients = joint.gradients(results)
    return part(joint, graph, list(gradients.values()), list(gradients), saved) if gradients else None


def save_activations(joint: Joint, mode: str) -> Variant:
    """`selective` repeats everything but matrix products and attention, also what backward then reads as a whole."""
    copied = fx.GraphModule(nn.Module(), joint.graph.graph.__class__())
    copied.graph = fx.Graph()
    copied.graph.output(copied.graph.graph_copy(joint.graph.graph, {}))
    for node in copied.graph.nodes:
        if is_product(node):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    with torch.no_grad(), config.patch(aggressive_recomputation=mode == "selective"):
        forward, backward = min_cut_rematerialization_partition(
            copied, None, num_fwd_outputs=1, static_lifetime_input_indices=list(range(len(joint.values))))
    saving = Saving(joint, forward.graph, backward.graph)
    saved: list[Value] = [("SAVED", index) for index in range(len(saving.saved))]
    back = backward_call(joint, backward.graph, list(backward.graph.output_node().args[0]), saving.names)
    if not saved:
        return Variant(mode, None, back)
    return Variant(mode, part(joint, forward.graph, [saving.output, *saving.saved], [("HIDDEN", 0), *saved], {}), back)


class Saving:
    """Rewrites the partitioner's graphs so that they save only what is neither an input nor a view of something saved."""

    def __init__(self, joint: Joint, forward: fx.Graph, backward: fx.Graph) -> None:
        self.joint, self.forward, self.backward = joint, forward, backward
        self.free = self._nodes_without_hidden()
        self.output, *values = forward.output_node().args[0]
        self.saved: list[fx.Node] = []
        self.names: dict[str, Value] = {}
        self._map: dict[fx.Node, fx.Node] = {}
        holders = {node.name: node for node in backward.find_nodes(op="placeholder")}
        self._first = next(node for node in backward.nodes if node.op != "placeholder")
        for node in forward.find_nodes(op="placeholder"):
            if node.name in holders:
                self._map[node] = holders[node.name]
        roots = self._roots([node for node in values if node.op != "placeholder"])
        for node in values:
            if node.op != "placeholder":
                self._replace(holders[node.name], self._restore(node, roots))

    def _replace(self, holder: fx.Node, by: fx.Node) -> None:
        holder.replace_all_uses_with(by)
        self.backward.erase_node(holder)

    def _nodes_without_hidden(self) -> set[fx.Node]:
        """Nodes that depend only on tokens, positions and buffers."""
        found: set[fx.Node] = set()
        for node in self.forward.nodes:
            if node.op == "placeholder":
                if self.joint.names[node.name][0] in ("TOKENS", "POSITIONS", "BUFFER"):
                    found.add(node)
            elif node.op == "call_function" and all(each in found for each in node.all_input_nodes):
                found.add(node)
        return found

    def _root(self, node: fx.Node, casts: bool) -> fx.Node:
        """The node that a value is a view of."""
        steps = WHOLE_VIEWS | PART_VIEWS | (CASTS if casts else set())
        while operation(node) in steps and node.op == "call_function" and isinstance(node.args[0], fx.Node) and isinstance(
                node.args[0].meta.get("val"), torch.Tensor):
            node = node.args[0]
        return node

    def _given(self, node: fx.Node) -> bool:
        return node in self.free or self._root(node, True).op == "placeholder"

    def _roots(self, nodes: list[fx.Node]) -> set[fx.Node]:
        """Nodes to save: the common root of views, unless the views have fewer elements."""
        views: dict[fx.Node, list[fx.Node]] = {}
        for node in nodes:
            if not self._given(node):
                views.setdefault(self._root(node, False), []).append(node)
        chosen: set[fx.Node] = set()
        for root, group in views.items():
            if sum(each.meta["val"].numel() for each in group) >= root.meta["val"].numel():
                chosen.add(root)
            else:
                chosen.update(group)
        return chosen

    def _restore(self, node: fx.Node, roots: set[fx.Node]) -> fx.Node:
        """The value of a forward node in backward."""
        if node in self._map:
            return self._map[node]
        if node in roots:
            self._map[node] = self._save(node)
            return self._map[node]
        if node.op == "placeholder":
            with self.backward.inserting_before(next(iter(self.backward.nodes))):
                made = self.backward.placeholder(node.name)
            made.meta.update(node.meta)
        else:
            for each in node.all_input_nodes:
                self._restore(each, roots)
            with self.backward.inserting_before(self._first):
                made = self.backward.node_copy(node, lambda each: self._map[each])
        self._map[node] = made
        return made

    def _save(self, node: fx.Node) -> fx.Node:
        """Saves a node in the order of its memory, and returns its value in backward."""
        value = node.meta["val"]
        order = sorted(range(value.dim()), key=lambda dim: (-value.stride(dim), dim))
        name = f"saved_{len(self.saved)}"
        self.names[name] = ("SAVED", len(self.saved))
        dense = value.permute(order).is_contiguous() and order != list(range(value.dim()))
        source = node
        if dense:
            with self.forward.inserting_before(self.forward.output_node()):
                source = self.forward.call_function(aten.permute.default, (node, order))
            source.meta["val"] = value.permute(order)
        elif not value.is_contiguous():
            with self.forward.inserting_before(self.forward.output_node()):
                source = contiguous(self.forward, node)
        self.saved.append(source)
        with self.backward.inserting_before(next(iter(self.backward.nodes))):
            holder = self.backward.placeholder(name)
        holder.meta["val"] = source.meta["val"]
        if not dense:
            return holder
        with self.backward.inserting_before(self._first):
            back = self.backward.call_function(aten.permute.default, (holder, [order.index(d) for d in range(len(order))]))
        back.meta["val"] = value
        return back


def contiguous(graph: fx.Graph, node: fx.Node) -> fx.Node:
    made = graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    made.meta["val"] = torch.empty_like(node.meta["val"], memory_format=torch.contiguous_format)
    return made


def part(joint: Joint, source: fx.Graph, outputs: list[fx.Node], kinds: list[Value], saved: dict[str, Value]) -> Call:
    """The part of a graph that computes `outputs`, with only the inputs that it uses. All outputs are contiguous, and no
    two share memory."""
    named = {**joint.names, **saved}
    order = ["PARAM", "BUFFER", "TOKENS", "POSITIONS", "HIDDEN", "SAVED", "GRAD_HIDDEN"]
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    needed = ancestors(outputs)
    holders = [node for node in source.find_nodes(op="placeholder") if node in needed]
    holders.sort(key=lambda node: (order.index(named[node.name][0]), named[node.name][1]))
    for node in holders:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta["val"] = node.meta["val"]
    for node in source.nodes:
        if node.op == "call_function" and node in needed:
            copies[node] = graph.node_copy(node, lambda each: copies[each])
    results: list[fx.Node] = []
    roots: set[fx.Node] = set()
    for node in outputs:
        made, root = copies[node], view_root(copies[node])
        if not node.meta["val"].is_contiguous() or root.op == "placeholder" or root in roots:
            made = contiguous(graph, made)
        roots.add(root)
        results.append(made)
    graph.output(tuple(results))
    graph.lint()
    with joint.mode:
        return Call(fx.GraphModule(nn.Module(), graph), [named[node.name] for node in holders], kinds)


def view_root(node: fx.Node) -> fx.Node:
    while operation(node) in WHOLE_VIEWS | PART_VIEWS and isinstance(node.args[0], fx.Node) and isinstance(
            node.args[0].meta.get("val"), torch.Tensor):
        node = node.args[0]
    return node


def ancestors(nodes: list[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found
