"""The chained units against the traced model: one forward of random parameters, before anything is compiled.

The values of a parameter depend only on its name. They are made when a graph first uses them and freed after the last use,
so the check needs the memory of activations and of the largest parameters, not of the model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import fx

from fsdpd.faults import Fault
from fsdpd.model.check import TOLERANCES, document_positions, is_in_first_document, random_parameter
from fsdpd.model.lines import where
from fsdpd.model.trace import Parameter, Trace
from fsdpd.model.units import Unit

ROWS = 1024  # Tokens whose logits are compared at a time.


class Chain:
    """Runs the traced model when it is created, because later steps change its graph."""

    def __init__(self, trace: Trace, tolerance: float | None) -> None:
        self.trace = trace
        self.tolerance = TOLERANCES[trace.dtype] if tolerance is None else tolerance
        shape = (trace.shape.micro_batch, trace.shape.sequence)
        vocab = trace.output.meta["val"].shape[-1]
        self.tokens = torch.randint(vocab, shape, generator=self._generator("tokens"), device=trace.device)
        self.positions = document_positions(shape, trace.device)
        self.expected = run(trace.graph, trace.output, self._of_trace)
        self.is_causal = self._is_causal(vocab)
        if trace.positions is not None:
            self._check_documents()

    def _is_causal(self, vocab: int) -> bool:
        """Whether another last token leaves the logits of the others as they are."""
        given = self.tokens
        self.tokens = torch.cat([given[:, :-1], (given[:, -1:] + 1) % vocab], 1)
        changed = run(self.trace.graph, self.trace.output, self._of_trace)
        self.tokens = given
        differ = self._differ(changed[:, :-1].flatten(0, 1), self.expected[:, :-1].flatten(0, 1))
        return not differ or not bool(self.expected.isfinite().all())

    def _differ(self, found: torch.Tensor, expected: torch.Tensor) -> bool:
        """Whether logits [tokens, vocabulary] differ; logits that are not finite do."""
        error = largest = 0.0
        for one, other in zip(found.split(ROWS), expected.split(ROWS)):
            difference = float((one.float() - other.float()).abs().max())
            error = max(error, difference if math.isfinite(difference) else math.inf)
            largest = max(largest, float(other.float().abs().max()))
        return not error <= self.tolerance * largest

    def _check_documents(self) -> None:
        """The second document of each row has the same logits at the start of the row, before other tokens."""
        first = is_in_first_document(self.tokens.shape, self.trace.device)
        length = first.sum(1, keepdim=True)
        source = (torch.arange(first.shape[1], device=first.device) + length) % first.shape[1]
        second = source >= length
        given = self.tokens, self.positions
        tokens, self.positions = (each.gather(1, source) for each in given)
        self.tokens = torch.where(second, tokens, tokens.flip(1))
        moved = run(self.trace.graph, self.trace.output, self._of_trace)
        self.tokens, self.positions = given
        if not bool(first.any()) or not bool(self.expected.isfinite().all()):
            raise Fault("--documents: cannot check that documents are separate, because the sample is too short or the logits "
                        "of random parameters are not finite")
        if self._differ(moved[second], self.expected[~first]):
            raise Fault("--documents: the logits of a document depend on the document before it or on its place in the sample; "
                        "the model must derive its attention mask and all positions from position_ids, or set --tolerance if it "
                        "is that sensitive to rounding")

    def _generator(self, name: str) -> torch.Generator:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
        return torch.Generator(self.trace.device).manual_seed(seed)

    def _parameter(self, parameter: Parameter, example: torch.Tensor) -> torch.Tensor:
        return random_parameter(example, self._generator(parameter.name), self.trace.device)

    def _of_trace(self, node: fx.Node) -> torch.Tensor:
        if node in self.trace.params:
            return self._parameter(self.trace.params[node], node.meta["val"])
        if node is self.trace.positions:
            return self.positions
        return self.tokens if node is self.trace.tokens else self.trace.buffers[node][1]

    def compare(self, units: list[Unit]) -> bool:
        """Returns False if there is nothing to compare: random parameters overflow in some models."""
        hidden = torch.empty(0)
        for unit in units:
            hidden = self._unit(unit, hidden)
        difference = total = 0.0
        head = self._head(units[-1])
        for rows, expected in zip(hidden.flatten(0, 1).split(ROWS), self.expected.flatten(0, 1).split(ROWS)):
            difference += float((head(rows) - expected.float()).pow(2).sum())
            total += float(expected.float().pow(2).sum())
        if not math.isfinite(total):
            return False
        error = math.sqrt(difference / max(total, 1e-30))
        if not error <= self.tolerance:
            raise Fault(f"units: their logits differ from those of the model by {error:.2g} (want at most {self.tolerance:.2g}); set "
                        "--tolerance if this model is that sensitive to rounding")
        return True

    def _unit(self, unit: Unit, hidden: torch.Tensor) -> torch.Tensor:
        inputs = dict(zip(unit.graph.graph.find_nodes(op="placeholder"), unit.inputs()))

        def given(node: fx.Node) -> torch.Tensor:
            kind, index = inputs[node]
            if kind == "PARAM":
                return self._parameter([*unit.params, *unit.borrowed][index], node.meta["val"])
            if kind == "BUFFER":
                return unit.buffers[index][1]
            return {"TOKENS": self.tokens, "POSITIONS": self.positions, "HIDDEN": hidden}[kind]
        return run(unit.graph.graph, unit.graph.graph.output_node().args[0], given)

    def _head(self, last: Unit) -> Callable[[torch.Tensor], torch.Tensor]:
        head = last.head
        assert head
        params = [*last.params, *last.borrowed]
        weight, bias = (None if index is None else self._parameter(params[index], torch.empty(
            params[index].shape, dtype=self.trace.dtype, device="meta")) for index in (head.weight, head.bias))

        def logits(rows: torch.Tensor) -> torch.Tensor:
            found = torch.nn.functional.linear(rows, weight, bias).float() * head.scale
            return head.soft_cap * torch.tanh(found / head.soft_cap) if head.soft_cap else found
        return logits


def run(graph: fx.Graph, result: fx.Node, given: Callable[[fx.Node], torch.Tensor]) -> torch.Tensor:
    """Value of a node. Asks for inputs when they are first used, and frees values after their last use."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        last.update(dict.fromkeys(node.all_input_nodes, node))
    values: dict[fx.Node, torch.Tensor] = {}

    def load(node: fx.Node) -> torch.Tensor:
        if node.op == "placeholder" and node not in values:
            values[node] = given(node)
        return values[node]
    with torch.no_grad():
        for node in graph.nodes:
            if node is result:
                break
            if node.op != "placeholder":
                values[node] = call(node, load)
                for each in node.all_input_nodes:
                    if last[each] is node and each is not result:
                        del values[each]
        return load(result) if result.op == "placeholder" else call(result, load)


def call(node: fx.Node, load: Callable[[fx.Node], torch.Tensor]) -> torch.Tensor:
    args, kwargs = fx.map_arg((node.args, node.kwargs), load)
    try:
        made: torch.Tensor = node.target(*args, **kwargs)
    except IndexError as error:
        raise Fault(f"{where(node)}: {error}; a table of positions must have at least --sequence-length rows") from None
    return made
