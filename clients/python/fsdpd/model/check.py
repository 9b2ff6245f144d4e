"""Runs calls with random inputs, eager or compiled: their results against autograd, and the memory and time that they
need."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fsdpd.faults import Fault
from fsdpd.model.partition import Call, Calls, Value, Variant
from fsdpd.model.timing import call_seconds, graph_seconds
from fsdpd.model.units import Unit

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}
# A gradient is compared with at least this part of the largest one: that of a key's bias is 0 but for rounding.
FLOOR = 0.1
# Values of a large parameter repeat, because random numbers are slow. Rows differ, because no width divides a prime.
PERIOD = 262147


@dataclasses.dataclass
class MeasuredVariant:
    workspace: int = 0
    forward_seconds: float = 0.0  # 0: not measured.
    backward_seconds: float = 0.0


@dataclasses.dataclass
class Measured:
    evaluation_workspace: int = 0
    variants: dict[str, MeasuredVariant] = dataclasses.field(default_factory=dict)  # By mode.


def not_measured() -> float:
    return 0.0


@dataclasses.dataclass
class Ran:
    """A call's results, its additional memory at the peak, and a function that measures its time."""

    results: list[torch.Tensor]
    peak: int = 0
    seconds: Callable[[], float] = not_measured

    def workspace(self) -> int:
        held: int = sum(each.untyped_storage().nbytes() for each in self.results)
        return max(0, self.peak - held)


Runner = Callable[[Call, list[torch.Tensor]], Ran]


def eager(call: Call, inputs: list[torch.Tensor]) -> Ran:
    return Ran(list(call.graph(*inputs)))


def compiled(libraries: dict[int, pathlib.Path], device: torch.device, in_graphs: bool) -> Runner:
    """`in_graphs`: ranks launch the calls in CUDA graphs."""
    def run(call: Call, inputs: list[torch.Tensor]) -> Ran:
        runner = load(libraries[id(call)], device)
        runner.run(inputs)  # The first call initializes libraries.
        results, peak = (measure_cuda if device.type == "cuda" else measure_cpu)(runner, inputs)
        for value, result in zip(call.outputs, results):
            if not result.is_contiguous():
                raise AssertionError(f"{libraries[id(call)].stem}: result {value} is not contiguous")

        def seconds() -> float:
            # The graph is measured last, because a runner cannot be used after it was captured.
            measures = (call_seconds, graph_seconds) if in_graphs else (call_seconds,)
            return min(measure(lambda: runner.run(inputs)) for measure in measures)
        return Ran(results, peak, seconds if device.type == "cuda" else not_measured)
    return run


def load(library: pathlib.Path, device: torch.device) -> Any:
    if device.type == "cpu":
        return torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
    return torch._C._aoti.AOTIModelContainerRunnerCuda(str(library), 1, str(device))


class Check:
    """Checks the calls of one graph."""

    def __init__(self, unit: Unit, vocab_size: int, tolerance: float | None, device: torch.device) -> None:
        self.unit, self.device, self.measured = unit, device, Measured()
        generator = torch.Generator(device).manual_seed(0)
        self.values: dict[Value, torch.Tensor] = {}
        frozen = unit.frozen()
        dtype = torch.float32
        for value, node in zip(unit.inputs(), unit.graph.graph.find_nodes(op="placeholder")):
            kind, index = value
            example = node.meta["val"]
            if kind == "BUFFER":
                made = unit.buffers[index][1]
            elif kind == "TOKENS":
                made = torch.randint(vocab_size, example.shape, generator=generator, device=device)
            elif kind == "POSITIONS":
                made = document_positions(example.shape, device)
            elif kind == "PARAM":
                dtype = example.dtype
                made = random_parameter(example, generator, device).requires_grad_(not frozen[index])
            else:
                made = torch.randn(example.shape, generator=generator, device=device).to(example.dtype).requires_grad_()
            self.values[value] = made
        self.tolerance = TOLERANCES[dtype] if tolerance is None else tolerance
        inputs = [self.values[value] for value in unit.inputs()]
        output = unit.graph(*inputs)
        gradient = torch.randn(output.shape, generator=generator, device=device).to(output.dtype)
        self.expected: dict[Value, torch.Tensor] = {("HIDDEN", 0): output.detach()}
        trained = {value: each for value, each in self.values.items() if each.requires_grad}
        if trained:
            grads = torch.autograd.grad(output, list(trained.values()), gradient, allow_unused=True)
            for (kind, index), each, grad in zip(trained, trained.values(), grads):
                result = ("GRAD_HIDDEN", 0) if kind == "HIDDEN" else ("GRAD_PARAM", index)
                self.expected[result] = torch.zeros_like(each) if grad is None else grad
        self.values = {value: each.detach() for value, each in self.values.items()}
        self.values[("GRAD_HIDDEN", 0)] = gradient

    def run(self, calls: Calls, runner: Runner) -> Measured:
        ran, found = self._call(calls.evaluation, runner, self.values)
        self.measured.evaluation_workspace = ran.workspace()
        self._compare(found)
        for variant in calls.variants:
            self.measured.variants[variant.mode] = self._variant(variant, calls, runner)
        return self.measured

    def _variant(self, variant: Variant, calls: Calls, runner: Runner) -> MeasuredVariant:
        forward, found = self._call(variant.forward or calls.evaluation, runner, self.values)
        self._compare(found)
        if variant.backward is None:
            return MeasuredVariant(forward.workspace(), forward.seconds())
        saved = {value: each for value, each in found.items() if value[0] == "SAVED"}
        workspace = forward.workspace()
        backward, found = self._call(variant.backward, runner, {**self.values, **saved})
        self._compare(found)
        for value, expected in self.expected.items():
            if value[0] != "HIDDEN" and value not in found and rms(expected) > 0:
                raise Fault(f"{self.unit.name}: the exported backward does not return {self._name(value)}")
        return MeasuredVariant(max(workspace, backward.workspace()), forward.seconds(), backward.seconds())

    @staticmethod
    def _call(call: Call, runner: Runner, values: dict[Value, torch.Tensor]) -> tuple[Ran, dict[Value, torch.Tensor]]:
        with torch.no_grad():
            ran = runner(call, [values[value] for value in call.inputs])
        return ran, dict(zip(call.outputs, ran.results))

    def _compare(self, found: dict[Value, torch.Tensor]) -> None:
        scale = max((rms(each) for value, each in self.expected.items() if value != ("HIDDEN", 0)), default=0.0)
        for value, result in found.items():
            if value[0] == "SAVED":
                continue
            expected = self.expected[value]
            error = rms(result.float() - expected.float()) / max(rms(expected), FLOOR * scale, 1e-30)
            if not error <= self.tolerance:
                raise Fault(f"{self.unit.name}: {self._name(value)} differs from autograd's by {error:.2g} (want at most "
                            f"{self.tolerance:.2g}); set --tolerance if this model is that sensitive to rounding")

    def _name(self, value: Value) -> str:
        params = [*self.unit.params, *self.unit.borrowed]
        return {"HIDDEN": "the output", "GRAD_HIDDEN": "the gradient of the input"}.get(value[0]) or \
            f"the gradient of {params[value[1]].name}"


def random_parameter(example: torch.Tensor, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """Random values with the shape and type of the example. A layer's results have about the size of its inputs."""
    elements = example.numel()
    made = torch.randn(min(elements, PERIOD), generator=generator, device=device)
    made = made / math.sqrt(example.shape[-1]) if example.dim() > 1 else 1 + 0.1 * made
    return made.to(example.dtype).repeat(-(-elements // PERIOD))[:elements].view(example.shape)


def is_in_first_document(shape: Sequence[int], device: torch.device) -> torch.Tensor:
    """Samples with two documents, whose lengths differ by row. The first one is short: then the first tokens of the second
    one change much if their attention includes it. Its length is odd in the first row: models may work in blocks of tokens."""
    rows, tokens = shape
    lengths = (min(tokens // 3, 7) + torch.arange(rows, device=device) % 8).clamp(max=tokens - 1)
    return torch.arange(tokens, device=device) < lengths[:, None]


def document_positions(shape: Sequence[int], device: torch.device) -> torch.Tensor:
    """Position ids of these samples."""
    first = is_in_first_document(shape, device)
    at = torch.arange(shape[1], device=device)
    return torch.where(first, at, at - first.sum(1, keepdim=True))


def rms(tensor: torch.Tensor) -> float:
    return float(tensor.float().pow(2).mean().sqrt())


def measure_cuda(runner: Any, inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], int]:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results = runner.run(inputs)
    torch.cuda.synchronize()
    return results, torch.cuda.max_memory_allocated() - before


def measure_cpu(runner: Any, inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], int]:
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # The profiler reports a missing GPU as an error.
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        results = runner.run(inputs)
    held = peak = 0
    profiler: Any = profile.profiler
    events = [each for each in profiler.kineto_results.events() if each.name() == "[memory]"]
    for event in sorted(events, key=lambda each: each.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return results, peak
