"""Attention masks as arguments of fused attention.

A traced model computes its mask, even one that is only causal, and fused attention is slow with a mask. A mask that
depends on neither tokens nor parameters is computed here, and replaced: a causal one by is_causal, and a sliding window by
a comparison of positions. On CUDA, causal attention takes grouped keys and values instead of repeated ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fsdpd.model.trace import Trace, arguments

aten = torch.ops.aten
MASKED = -1e4  # An additive mask has 0 for allowed keys, and at most this for masked ones.


def simplify_masks(trace: Trace) -> None:
    values = Constants(trace)
    windows: dict[fx.Node, int | None] = {}  # By mask: layers share few.
    for node in trace.graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default):
        given = arguments(node)
        mask = given["attn_mask"]
        if isinstance(mask, fx.Node):
            mask = without_aliases(mask)
            if mask not in windows:
                windows[mask] = sliding_window(values.of(mask), given["query"].meta["val"], given["key"].meta["val"])
            if (window := windows[mask]) is not None:
                replace_mask(node, given, window)
        if arguments(node)["is_causal"] and trace.device.type == "cuda":
            group_keys(node)
    trace.graph.eliminate_dead_code()


class Constants:
    """Values of nodes that depend only on buffers and constants."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._values: dict[fx.Node, Any] = {node: tensor for node, (_, tensor) in trace.buffers.items()}

    def of(self, node: fx.Node) -> torch.Tensor | None:
        needed: dict[fx.Node, None] = {}
        stack = [node]
        while stack:
            top = stack.pop()
            if top.op == "placeholder" and top not in self._values:
                return None
            if top not in self._values and top not in needed:
                needed[top] = None
                stack += top.all_input_nodes
        with torch.no_grad():
            for each in self._trace.graph.nodes:
                if each in needed:
                    args, kwargs = fx.map_arg((each.args, each.kwargs), lambda given: self._values[given])
                    self._values[each] = each.target(*args, **kwargs)
        value: torch.Tensor = self._values[node]
        for each in needed:  # Masks are large.
            del self._values[each]
        return value


def without_aliases(node: fx.Node) -> fx.Node:
    """The node with the same values that is not a view of the whole of another one."""
    while node.op == "call_function" and node.target.__name__.split(".")[0] in ("alias", "slice", "expand") and (
            node.args[0].meta["val"].shape == node.meta["val"].shape):
        node = node.args[0]
    return node


def sliding_window(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> int | None:
    """Number of keys that a causal mask allows each query, at most; None for any other mask."""
    queries, keys = query.shape[-2], key.shape[-2]
    if mask is None or queries != keys or mask.shape[-2:] != (queries, keys):
        return None
    allowed = mask
    if mask.dtype != torch.bool:
        allowed = mask == 0
        if not bool((allowed | (mask <= MASKED)).all()):
            return None
    window = int(allowed.flatten(0, -3)[0, -1].sum()) if allowed.dim() > 2 else int(allowed[-1].sum())
    return window if window and bool((allowed == window_mask(queries, window, mask.device)).all()) else None


def window_mask(size: int, window: int, device: torch.device) -> torch.Tensor:
    at = torch.arange(size, device=device)
    distance = at[:, None] - at[None, :]
    return (distance >= 0) & (distance < window)


def replace_mask(node: fx.Node, given: dict[str, Any], window: int) -> None:
    query = given["query"].meta["val"]
    size, graph = query.shape[-2], node.graph
    mask: fx.Node | None = None
    if window < size:
        with graph.inserting_before(node):
            at = graph.call_function(aten.arange.default, (size,), {"device": query.device})
            rows = graph.call_function(aten.unsqueeze.default, (at, 1))
            distance = graph.call_function(aten.sub.Tensor, (rows, at))
            causal = graph.call_function(aten.ge.Scalar, (distance, 0))
            near = graph.call_function(aten.lt.Scalar, (distance, window))
            mask = graph.call_function(aten.logical_and.default, (causal, near))
    set_arguments(node, {**given, "attn_mask": mask, "is_causal": mask is None})


def group_keys(node: fx.Node) -> None:
    given = arguments(node)
    key, value = repeated(given["key"]), repeated(given["value"])
    if key is not None and value is not None:
        set_arguments(node, {**given, "key": key, "value": value, "enable_gqa": True})


def repeated(node: fx.Node) -> fx.Node | None:
    """The keys [B, K, S, D] of which a node has copies of each head next to each other: [B, K * n, S, D]."""
    chain = []
    for want in ("_unsafe_view", "clone", "expand", "unsqueeze"):
        name = getattr(node.target, "__name__", "").split(".")[0]
        if name != want and (want, name) != ("_unsafe_view", "reshape"):
            return None
        chain.append(node)
        node = node.args[0]
    shape, full = node.meta["val"].shape, chain[0].meta["val"].shape
    dims = chain[2].meta["val"].shape
    fits = dims[:2] == shape[:2] and dims[3:] == shape[2:] and full == (shape[0], shape[1] * dims[2], *shape[2:])
    return node if chain[3].args[1] == 2 and fits else None


def set_arguments(node: fx.Node, given: dict[str, Any]) -> None:
    positional = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    node.args = tuple(given[name] for name in positional)
    node.kwargs = {name: value for name, value in given.items() if name not in positional}
