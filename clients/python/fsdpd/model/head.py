"""The final linear layer. The engine computes it in chunks together with the loss, so the last unit ends before it."""

from __future__ import annotations

import dataclasses
import math

from torch import fx

from fsdpd.faults import Fault
from fsdpd.model.lines import where
from fsdpd.model.trace import Trace

CASTS = {"_to_copy", "to", "alias", "clone", "contiguous", "detach", "lift_fresh"}


@dataclasses.dataclass
class Head:
    """logits = soft_cap * tanh(scale * (weight @ hidden + bias) / soft_cap); indices in the order of binding."""

    weight: int
    bias: int | None
    scale: float
    soft_cap: float


@dataclasses.dataclass
class FoundHead:
    hidden: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    scale: float
    soft_cap: float

    def params(self) -> list[fx.Node]:
        return [self.weight, *([self.bias] if self.bias else [])]

    def indexed(self, params: list[fx.Node]) -> Head:
        return Head(params.index(self.weight), params.index(self.bias) if self.bias else None, self.scale, self.soft_cap)


def operation(node: fx.Node) -> str:
    return getattr(node.target, "__name__", "").split(".")[0]


def factor(node: fx.Node) -> float | None:
    """The constant of a multiplication or division."""
    if operation(node) not in ("mul", "div", "mul_", "div_") or len(node.args) < 2:
        return None
    value: object = node.args[1]
    if isinstance(value, fx.Node) and operation(value) == "full" and value.args[0] == []:
        value = value.args[1]
    if not isinstance(value, (int, float)):
        return None
    return float(value) if operation(node).startswith("mul") else 1 / float(value)


def find_head(trace: Trace) -> FoundHead:
    node, after, before, capped = trace.output, 1.0, 1.0, False
    while operation(node) not in ("linear", "matmul", "mm", "addmm"):
        name, scale = operation(node), factor(node)
        if scale is not None:
            after, before = (after, before * scale) if capped else (after * scale, before)
        elif name == "tanh" and not capped:
            capped = True
        elif name not in CASTS:
            raise Fault(f"{where(node)}: {name or node.target} after the final linear layer is not supported (want linear, "
                        "then optionally a scale and a soft cap)")
        node = node.args[0]
    if operation(node) != "linear":
        raise Fault(f"{where(node)}: the final layer is not nn.Linear or F.linear (got {operation(node)})")
    hidden, weight, *bias = node.args
    for param in (weight, *bias):
        if param is not None and param not in trace.params:
            raise Fault(f"{where(node)}: the final linear layer has a computed weight (want a parameter)")
    assert isinstance(hidden, fx.Node) and isinstance(weight, fx.Node)
    found = bias[0] if bias and isinstance(bias[0], fx.Node) else None
    if capped:
        # after * tanh(before * logits) = cap * tanh(scale * logits / cap)
        return FoundHead(hidden, weight, found, rounded(before * after), after)
    return FoundHead(hidden, weight, found, rounded(after), 0.0)


def rounded(scale: float) -> float:
    return 1.0 if math.isclose(scale, 1.0, rel_tol=1e-12) else scale
