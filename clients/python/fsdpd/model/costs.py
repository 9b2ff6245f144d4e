"""FLOPs and bytes of a graph, which the planner predicts times and memory with."""

from __future__ import annotations

import dataclasses

import torch
from torch import fx
from torch.utils import flop_counter

from fsdpd.model.partition import Call, Variant
from fsdpd.model.trace import arguments

aten = torch.ops.aten


@dataclasses.dataclass
class Flops:
    total: float = 0.0
    attention: float = 0.0


def flops_of(call: Call) -> Flops:
    found = Flops()
    for node in call.graph.graph.nodes:
        packet = getattr(node.target, "overloadpacket", None)
        if node.op != "call_function" or packet is None:
            continue
        name = node.target.__name__.split(".")[0]
        attention = "scaled_dot_product" in name
        count = attention_flops(node, name) if attention else matrix_flops(node, packet)
        found.total += count
        found.attention += count if attention else 0.0
    return found


def matrix_flops(node: fx.Node, packet: object) -> float:
    count = flop_counter.flop_registry.get(packet)
    if count is None:
        return 0.0
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    return float(count(*args, **kwargs, out_val=node.meta["val"]))


def attention_flops(node: fx.Node, name: str) -> float:
    """Forward has two products of [S, S, D], backward five."""
    given = arguments(node)
    query, key = given["query"].meta["val"], given["key"].meta["val"]
    product = 2.0 * query.numel() * key.shape[-2]
    return float(product) * (5 if "backward" in name else 2) * (0.5 if given.get("is_causal") else 1.0)


def nbytes(tensors: list[torch.Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def saved_bytes(unit_input: int, variant: Variant) -> int:
    if variant.forward is None:
        return unit_input
    kinds = zip(variant.forward.outputs, variant.forward.results())
    return unit_input + nbytes([result for (kind, _), result in kinds if kind == "SAVED"])


def traffic(call: Call) -> int:
    """A lower bound of the traffic next to the matrices: what the call takes and returns without parameters."""
    kinds = zip([*call.inputs, *call.outputs], [*call.examples(), *call.results()])
    return nbytes([each for (kind, _), each in kinds if kind not in ("PARAM", "GRAD_PARAM")])
