"""The steps of `fsdpctl model export`."""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

import torch

from fsdpd import faults
from fsdpd.faults import Fault
from fsdpd.model import build, check, compile, partition, trace, units
from fsdpd.model.initial import Recipe, Unknown
from fsdpd.model.manifest import Manifest
from fsdpd.model.masks import simplify_masks
from fsdpd.model.partition import Call, Calls


def report(text: str) -> None:
    print(f"fsdpctl model: {text}", file=sys.stderr, flush=True)


def export_model(options: argparse.Namespace) -> int:
    compile.check_version()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Fault("--device cuda: this machine has no usable GPU, which compiling for one needs; run it on a GPU node")
    dtype = trace.DTYPES[options.dtype or ("bf16" if device.type == "cuda" else "fp32")]
    source = build.hugging_face_source(options.hf) if options.hf else build.file_source(options.model, options.args)
    built = build.build(source, options.initial_values == "data", options.seed, options.dropout)
    paths = units.unit_paths(built.module, source.unit_modules)
    values = initial_values(built)
    traced = trace.trace(built, trace.Shape(options.micro_batch_size, options.sequence_length), dtype, device)
    simplify_masks(traced)
    model_units = units.cut_units(traced, paths)
    with tempfile.TemporaryDirectory(prefix="fsdpctl-model-") as directory:
        manifest = package(model_units, traced, values, options, pathlib.Path(directory))
        manifest.write(options.output)
    report(f"{options.output}: {len(model_units)} units, {len(manifest.message.graphs)} graphs, "
           f"{options.output.stat().st_size:,} bytes")
    print(f"model:\n  package: {{path: {options.output}}}")
    return faults.OK


def initial_values(built: build.Built) -> dict[str, Recipe | torch.Tensor]:
    found: dict[str, Recipe | torch.Tensor] = {}
    for name, parameter in built.module.named_parameters():
        if built.recorder is None:
            found[name] = parameter.detach()
            continue
        recipe = built.recorder.recipe(parameter)
        if isinstance(recipe, Unknown):
            raise Fault(f"{name}: its initial values have no recipe ({recipe.operation}); add --initial-values data")
        found[name] = recipe
        if built.recorder.has_zero_row(parameter):
            report(f"{name}: the row of padding_idx starts with the values of the other rows, not with zeros")
    return found


def package(model_units: list[units.Unit], traced: trace.Trace, values: dict[str, Recipe | torch.Tensor],
            options: argparse.Namespace, directory: pathlib.Path) -> Manifest:
    graphs: dict[str, int] = {}
    first: list[units.Unit] = []
    for unit in model_units:
        key = units.signature(unit)
        if key not in graphs:
            graphs[key] = len(first)
            first.append(unit)
    calls = [partition.partition(unit, options.recompute) for unit in first]
    works: list[compile.Work] = []
    libraries: dict[int, pathlib.Path] = {}
    for index, each in enumerate(calls):
        plan_compilation(first[index], each, traced.device, directory / str(index), works, libraries)
    report(f"compiling {len(works)} libraries of {len(first)} graphs")
    compile.compile_all(works, options.jobs, lambda done: report(f"compiled {done} of {len(works)}"))
    manifest = Manifest(traced, compile.target_of(traced.device))
    for unit, each in zip(first, calls):
        measured = check.Check(unit, units.vocab_size(model_units[-1]), options.tolerance, traced.device).run(each, libraries)
        manifest.add_graph(unit, each, libraries, measured)
    for unit in model_units:
        manifest.add_unit(unit, graphs[units.signature(unit)], values)
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
