"""The steps of `fsdpctl model export` and `fsdpctl model check`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterator

import torch

from fsdpd import faults
from fsdpd.faults import Fault
from fsdpd.model import build, check, compile, partition, timing, trace, units
from fsdpd.model.chain import Chain
from fsdpd.model.fold import fold_tables
from fsdpd.model.initial import Recipe, Unknown
from fsdpd.model.manifest import Manifest
from fsdpd.model.masks import simplify_masks
from fsdpd.model.partition import Call, Calls


def report(text: str) -> None:
    print(f"fsdpctl model: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def reports_lack_of_memory(options: argparse.Namespace) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # On GPUs an OutOfMemoryError.
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        size = re.search(r"allocate ([\d.]+ \w+)", str(error))
        raise Fault(f"--sequence-length {options.sequence_length:,} and --micro-batch-size {options.micro_batch_size:,}: out of "
                    f"memory on {options.device} (an allocation of {size[1] if size else 'unknown size'} failed); set smaller "
                    "values") from error


class Unrecorded(Fault):
    """A parameter's initial values have no recipe."""


@dataclasses.dataclass
class Prepared:
    """A model before it is compiled."""

    built: build.Built
    traced: trace.Trace
    model_units: list[units.Unit]

    def checker(self, unit: units.Unit, tolerance: float | None) -> check.Check:
        return check.Check(unit, units.vocab_size(self.model_units[-1]), tolerance, self.traced.device)


def prepare(options: argparse.Namespace, source: build.Source, built: build.Built) -> Prepared:
    device = torch.device(options.device)
    dtype = trace.DTYPES[options.dtype or ("bf16" if device.type == "cuda" else "fp32")]
    paths = units.unit_paths(built.module, source)
    traced = trace.trace(built, trace.Shape(options.micro_batch_size, options.sequence_length, options.documents), dtype, device)
    chain = Chain(traced, options.tolerance)
    simplify_masks(traced)
    fold_tables(traced)
    model_units = units.cut_units(traced, paths)
    if not chain.compare(model_units):
        report("warning: logits of random parameters are not finite, so only single units are checked")
    if not chain.is_causal:
        report("warning: the logits of a token depend on later tokens, so a loss of the next token is meaningless; mask the "
               "attention, and do not average over tokens")
    return Prepared(built, traced, model_units)


def source_of(options: argparse.Namespace) -> build.Source:
    compile.check_version()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise Fault("--device cuda: this machine has no usable GPU; run fsdpctl model on a GPU node, or set --device cpu for ranks on "
                    "CPUs")
    return build.hugging_face_source(options.hf) if options.hf else build.file_source(options.model, options.args)


def export_model(options: argparse.Namespace) -> int:
    source = source_of(options)
    built = build.build(source, options.initial_values == "data", options.seed, options.dropout)
    values = initial_values(built)
    with tempfile.TemporaryDirectory(prefix="fsdpctl-model-") as directory:
        with reports_lack_of_memory(options):
            prepared = prepare(options, source, built)
            manifest = package(prepared, values, options, pathlib.Path(directory))
        manifest.add_config(built.config)
        manifest.write(options.output)
    report(f"{options.output}: {len(prepared.model_units)} units, {len(manifest.message.graphs)} graphs, "
           f"{options.output.stat().st_size:,} bytes")
    print(f"model:\n  package: {{path: {options.output}}}")
    return faults.OK


def check_model(options: argparse.Namespace) -> int:
    source = source_of(options)
    try:
        built = build.build(source, False, 1, options.dropout)
        initial_values(built)
    except build.NeedsValues as fault:
        report(str(fault))
        built = build.build(source, True, 1, options.dropout)
    except Unrecorded as fault:
        report(str(fault))
    with reports_lack_of_memory(options):
        prepared = prepare(options, source, built)
        first, numbers = different_graphs(prepared.model_units)
        for unit in first:
            calls = partition.partition(unit, modes_of(unit, options.recompute))
            prepared.checker(unit, options.tolerance).run(calls, check.eager)
    print(summary(prepared.model_units, numbers))
    return faults.OK


def modes_of(unit: units.Unit, modes: list[str]) -> list[str]:
    """Ranks save the activations of the first and last unit: there is no input to restart from, and the last unit's backward
    follows its forward immediately."""
    return modes if unit.hidden and not unit.head else ["none"]


def summary(model_units: list[units.Unit], numbers: list[int]) -> str:
    """The units, with equal ones in a row as one line, and the final linear layer."""
    lines = [("UNIT", "COUNT", "PARAMETERS")]
    for _, group in itertools.groupby(zip(numbers, model_units), key=lambda each: each[0]):
        equal = [unit for _, unit in group]
        name = equal[0].name if len(equal) == 1 else f"{equal[0].name} to {equal[-1].name}"
        lines.append((name, f"{len(equal)}", f"{equal[0].elements():,}"))
    width, last = max(len(name) for name, _, _ in lines), model_units[-1]
    assert last.head
    params = [each.name for each in (*last.params, *last.borrowed)]
    head = params[last.head.weight] + (f" and {params[last.head.bias]}" if last.head.bias is not None else "")
    head += f", scale {last.head.scale:g}" if last.head.scale != 1 else ""
    head += f", soft cap {last.head.soft_cap:g}" if last.head.soft_cap else ""
    return "\n".join([*(f"{name:{width}}  {count:>5}  {elements:>15}" for name, count, elements in lines), "",
                      f"parameters: {sum(unit.elements() for unit in model_units):,}",
                      f"final linear layer: {head}" + (f", tied to {last.tied_to}" if last.tied_to else "")])


def different_graphs(model_units: list[units.Unit]) -> tuple[list[units.Unit], list[int]]:
    """The first unit of each graph, and the graph of each unit."""
    graphs: dict[str, int] = {}
    numbers = [graphs.setdefault(units.signature(unit), len(graphs)) for unit in model_units]
    return [model_units[numbers.index(index)] for index in range(len(graphs))], numbers


def initial_values(built: build.Built) -> dict[str, Recipe | torch.Tensor]:
    found: dict[str, Recipe | torch.Tensor] = {}
    for name, parameter in built.module.named_parameters():
        if built.recorder is None:
            found[name] = parameter.detach()
            continue
        recipe = built.recorder.recipe(parameter)
        if isinstance(recipe, Unknown):
            raise Unrecorded(f"{name}: its initial values have no recipe ({recipe.operation}); add --initial-values data")
        found[name] = recipe
        if built.recorder.has_zero_row(parameter):
            report(f"warning: {name}: the row of padding_idx starts with the values of the other rows, not with zeros")
    return found


def package(prepared: Prepared, values: dict[str, Recipe | torch.Tensor], options: argparse.Namespace,
            directory: pathlib.Path) -> Manifest:
    first, numbers = different_graphs(prepared.model_units)
    device = prepared.traced.device
    calls = [partition.partition(unit, modes_of(unit, options.recompute)) for unit in first]
    works: list[compile.Work] = []
    libraries: dict[int, pathlib.Path] = {}
    for index, each in enumerate(calls):
        plan_compilation(first[index], each, device, directory / str(index), works, libraries)
    report(f"compiling {len(works)} libraries of {len(first)} graphs")
    compile.compile_all(works, options.jobs, lambda done: report(f"compiled {done} of {len(works)}"))
    manifest = Manifest(prepared.traced, compile.target_of(device))
    if device.type == "cuda":
        manifest.message.model.matmul_flops = timing.matmul_flops(prepared.traced.dtype, device)
    for unit, each in zip(first, calls):
        measured = prepared.checker(unit, options.tolerance).run(each, check.compiled(
            libraries, device, in_graphs=not prepared.traced.shape.documents))
        manifest.add_graph(unit, each, libraries, measured)
    for unit, graph in zip(prepared.model_units, numbers):
        manifest.add_unit(unit, graph, values)
    return manifest


def plan_compilation(unit: units.Unit, calls: Calls, device: torch.device, directory: pathlib.Path,
                     works: list[compile.Work], libraries: dict[int, pathlib.Path]) -> None:
    """Chooses the library of each call; calls with equal code share one."""
    known: dict[str, pathlib.Path] = {}

    def add(call: Call | None, name: str) -> None:
        if call is None:
            return
        code = f"{call.graph.code} {call.inputs} {call.outputs}"
        if code not in known:
            known[code] = directory / f"{name}.so"
            works.append(compile.work_of(f"{unit.name}: {name}", call, device, known[code]))
        libraries[id(call)] = known[code]
    add(calls.evaluation, "evaluation")
    for variant in calls.variants:
        add(variant.forward, f"{variant.mode}.forward")
        add(variant.backward, f"{variant.mode}.backward")
