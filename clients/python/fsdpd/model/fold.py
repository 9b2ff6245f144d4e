"""Values that depend on neither tokens nor parameters, such as rotary tables, become buffers, so that no step computes them.

Views of a value stay operations. Large values also do: masks of long sequences take longer to read than to compute.
"""

from __future__ import annotations

import torch
from torch import fx

from fsdpd.model.partition import view_root
from fsdpd.model.trace import BUFFER_TYPES, Trace

LARGEST = 32 << 20  # Bytes of one.
LARGEST_SUM = 256 << 20


def fold_tables(trace: Trace) -> None:
    constant = dict.fromkeys(trace.buffers)  # In the order of the graph: the file lists tables in this order.
    for node in trace.graph.nodes:
        if node.op == "call_function" and all(each in constant for each in node.all_input_nodes):
            constant[node] = None
    tables = {view_root(node): None for node in constant if any(user not in constant for user in node.users)}
    known: dict[fx.Node, object] = {node: value for node, (_, value) in trace.buffers.items()}
    first = next(iter(trace.graph.nodes))
    made_before: list[torch.Tensor] = []
    for node in filter(is_table, tables):
        value = evaluate(node, known).contiguous()
        equal = next((each for each in made_before if each.dtype == value.dtype and torch.equal(each, value)), None)
        if equal is None:
            if sum(each.nbytes for each in made_before) + value.nbytes > LARGEST_SUM:
                continue
            made_before.append(value)
        with trace.graph.inserting_before(first):
            made = trace.graph.placeholder(f"table_{node.name}")
        made.meta["val"] = torch.empty_like(node.meta["val"], memory_format=torch.contiguous_format)
        trace.buffers[made] = (f"tables.{node.name}", value if equal is None else equal)
        known[made] = value  # Other tables may be computed from it.
        node.replace_all_uses_with(made)
    trace.graph.eliminate_dead_code()


def is_table(node: fx.Node) -> bool:
    value = node.meta.get("val")
    # Operations without inputs, such as arange and full, have no cost.
    return (node.op == "call_function" and bool(node.all_input_nodes) and isinstance(value, torch.Tensor)
            and value.dtype in BUFFER_TYPES and value.numel() > 1 and value.numel() * value.element_size() <= LARGEST)


def evaluate(node: fx.Node, known: dict[fx.Node, object]) -> torch.Tensor:
    stack = [node]
    with torch.no_grad():
        while stack:
            missing = [each for each in stack[-1].all_input_nodes if each not in known]
            if missing:
                stack += missing
                continue
            top = stack.pop()
            args, kwargs = fx.map_arg((top.args, top.kwargs), lambda each: known[each])
            assert callable(top.target)
            known[top] = top.target(*args, **kwargs)
    made = known[node]
    assert isinstance(made, torch.Tensor)
    return made
