"""The module to export: from a function of the user's file, or from the config.json of a Hugging Face directory.

With recipes for initial values, parameters move to the meta device when they are registered, so the host's memory does
not grow with the model. Buffers stay real, because the exported graphs need their values.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from fsdpd.faults import Fault
from fsdpd.model.initial import Recorder
from fsdpd.model.lines import located

# Errors of PyTorch for a tensor on the meta device that is read, or whose data are set to real ones.
WITHOUT_VALUES = ("meta tensor", "incompatible tensor type")


class NeedsValues(Fault):
    """The module cannot be built on the meta device."""


@dataclasses.dataclass
class Source:
    """How to build the module, and what its author declares to be its units."""

    build: Callable[[], nn.Module]
    name: str
    unit_modules: Sequence[Any] = ()
    file: pathlib.Path | None = None

    def unit_modules_line(self) -> str:
        lines = self.file.read_text().splitlines() if self.file else []
        found = [f"{self.file}:{number} ({line})" for number, line in enumerate(lines, 1) if "fsdp_unit_modules" in line]
        return found[0] if found else "fsdp_unit_modules"


@dataclasses.dataclass
class Built:
    module: nn.Module
    source: Source
    recorder: Recorder | None  # None: the parameters have values.
    dropout: float | None  # As set by --dropout.
    config: str = ""  # Of a model of transformers, as JSON.


def file_source(target: str, args: str) -> Source:
    path, _, function = target.rpartition(":")
    if not path.endswith(".py") or not function.isidentifier():
        raise Fault(f"{target}: is not FILE.py:FUNCTION, such as my_model.py:build")
    if not pathlib.Path(path).is_file():
        raise Fault(f"{path}: no such file")
    try:
        keywords = json.loads(args)
    except ValueError as error:
        raise Fault(f"--args: is not JSON ({error})") from None
    if not isinstance(keywords, dict):
        raise Fault(f"--args: is not a JSON object of the function's arguments (got {type(keywords).__name__}, want such as "
                    "'{\"layers\": 12}')")
    file = pathlib.Path(path).resolve()
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    code = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = code
    with on_path(file.parent):
        try:
            spec.loader.exec_module(code)
        except SystemExit as error:
            raise Fault(f"{path}: calls sys.exit({error.code})") from None
        except Exception as error:
            raise located(error, path) from error
    build = getattr(code, function, None)
    if not callable(build):
        raise Fault(f"{path}: does not define a function {function}")
    try:
        inspect.signature(build).bind(**keywords)
    except TypeError as error:
        raise Fault(f"--args: do not fit {function}: {error}") from None
    except ValueError:  # No signature.
        pass

    def call() -> nn.Module:
        try:
            with on_path(file.parent):
                module = build(**keywords)
        except SystemExit as error:
            raise Fault(f"{path}: {function} calls sys.exit({error.code})") from None
        if not isinstance(module, nn.Module):
            raise Fault(f"{path}: {function} does not return a torch.nn.Module (got {type(module).__name__})")
        return module
    return Source(call, target, getattr(code, "fsdp_unit_modules", ()), file)


@contextlib.contextmanager
def on_path(directory: pathlib.Path) -> Iterator[None]:
    """Imports of the user's file find its neighbors, as in `python FILE`."""
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))


def hugging_face_source(directory: pathlib.Path) -> Source:
    if not (directory / "config.json").is_file():
        raise Fault(f"--hf {directory}: has no config.json")
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(str(directory), local_files_only=True)
    except (ValueError, KeyError) as error:
        version = transformers.__version__
        raise Fault(f"--hf {directory}: transformers {version} does not know this model ({error})") from None
    config = config.get_text_config()

    def build() -> nn.Module:
        module = from_config()
        for each in module.modules():
            for name in {"_update_mamba_mask", "_update_linear_attn_mask"} & set(dir(each)):
                # Reads the value of a position, but without a mask the result is None.
                setattr(each, name, lambda attention_mask, cache_position: attention_mask)
        return module

    def from_config() -> nn.Module:
        # Attention of transformers drops the soft cap of scores with sdpa.
        eager = bool(getattr(config, "attn_logit_softcapping", None))
        make = functools.partial(transformers.AutoModelForCausalLM.from_config, config, dtype=torch.float32)
        if eager:
            return make(attn_implementation="eager")
        try:
            return make(attn_implementation="sdpa")
        except ValueError:  # The model has no sdpa.
            return make(attn_implementation="eager")
    return Source(build, str(directory))


def build(source: Source, values: bool, seed: int, dropout: float | None) -> Built:
    torch.manual_seed(seed)
    recorder = None if values else Recorder()
    try:
        if recorder is None:
            module = source.build()
        else:
            with recorder, meta_parameters(recorder):
                module = source.build()
    except Fault:
        raise
    except Exception as error:
        if recorder is None or not any(text in str(error) for text in WITHOUT_VALUES):
            raise located(error, source.name) from error
        raise NeedsValues(f"{source.name}: reads values of parameters while it is built ({error}); "
                          "add --initial-values data") from None
    config: Any = getattr(module, "config", None)
    text = ""
    if hasattr(config, "to_json_string"):
        config.architectures = [type(module).__name__]
        text = config.to_json_string()
    if hasattr(config, "use_cache"):
        config.use_cache = False
    module.train()
    if dropout is not None:
        set_dropout(module, dropout)
    return Built(module, source, recorder, dropout, text)


@contextlib.contextmanager
def meta_parameters(recorder: Recorder) -> Iterator[None]:
    register = nn.Module.register_parameter

    def moved(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            # A parameter that is registered twice stays one parameter.
            meta = getattr(parameter, "_fsdpd_meta", None)
            if meta is None:
                meta = nn.Parameter(torch.empty_like(parameter.data, device="meta"), parameter.requires_grad)
                meta.__dict__.update(parameter.__dict__)
                recorder.keep(meta, parameter)
                parameter._fsdpd_meta = meta
            parameter = meta
        register(module, name, parameter)
    nn.Module.register_parameter = moved
    try:
        yield
    finally:
        nn.Module.register_parameter = register


def set_dropout(module: nn.Module, probability: float) -> None:
    """Sets nn.Dropout modules, and the attributes that attention passes to functional dropout."""
    for each in module.modules():
        if isinstance(each, nn.modules.dropout._DropoutNd):
            each.p = probability
        names = [name for name, value in vars(each).items() if "drop" in name and isinstance(value, float)]
        for name in names:
            setattr(each, name, probability)
        if probability == 0 and "layerdrop" in names:
            each.training = False  # It would draw a number per layer; its own other dropouts are 0 too.
