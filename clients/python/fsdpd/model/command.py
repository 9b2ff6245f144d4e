"""Command line of `fsdpctl model`. Results go to stdout and messages to stderr. The exit codes are those of fsdpctl."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Callable
from typing import NoReturn

from fsdpd.faults import Fault
from fsdpd.program import Program

PROGRAM = Program("model", ("torch", "transformers", "numpy"), "output")
MODES = ("none", "selective", "full")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def at_most(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if positive(text) > most:
            raise argparse.ArgumentTypeError(f"must be at most {most:,} (got {text})")
        return int(text)
    return read


def number(least: float, below: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = least - 1
        if not least <= value < below:
            raise argparse.ArgumentTypeError(f"must be at least {least:g} and less than {below:g} (got {text!r})")
        return value
    return read


def modes(text: str) -> list[str]:
    found = text.split(",")
    if found != [each for each in MODES if each in found] or "none" not in found:
        raise argparse.ArgumentTypeError(f"must be none, optionally followed by selective and full, as in none,full (got {text!r})")
    return found


MOST_TOKENS = 1 << 24  # Of a micro-batch, as in rule package_shape.


class Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("fsdpctl model", formatter_class=Formatter, allow_abbrev=False,
                                     description="Export PyTorch models for training without Python.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_export(commands)
    add_check(commands)
    return parser


def add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("check", help="check that a PyTorch model can be exported", formatter_class=Formatter,
                                 description=(
        "Does what export does, without compiling: traces the model, cuts it into units, and compares their forward and "
        "backward with autograd. Prints the units. It needs no GPU; a short sequence is enough for most models."),
        epilog="""examples:
  fsdpctl model check my_model.py:build --args '{"layers": 12}' --sequence-length 128
  fsdpctl model check --hf ./gemma-2-2b --sequence-length 128""")
    add_model(parser, "cpu")
    parser.set_defaults(run=check)


def add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("export", help="compile a PyTorch model into a package", formatter_class=Formatter,
                                 description=(
        "Traces a causal language model, compiles its forward and backward with AOTInductor, checks the result against "
        "autograd, and writes a package for model.package.path of a spec."), epilog="""examples:
  fsdpctl model export my_model.py:build --args '{"layers": 12}' --sequence-length 4096 -o my_model.fsdpd
  fsdpctl model export --hf ./gemma-2-2b --sequence-length 8192 --device cuda -o gemma.fsdpd""")
    add_model(parser, "cuda")
    parser.add_argument("-o", "--output", required=True, type=pathlib.Path, metavar="FILE", help="package to write")
    parser.add_argument("--initial-values", choices=["recipe", "data"], default="recipe",
                        help="recipe: their random distributions; data: the values, in the package")
    parser.add_argument("--seed", type=positive, default=1, metavar="N", help="seed of --initial-values data; default 1")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N",
                        help="graphs to compile at a time; default: one per core")
    parser.set_defaults(run=export)


def add_model(parser: argparse.ArgumentParser, device: str) -> None:
    parser.add_argument("model", nargs="?", metavar="FILE.py:FUNCTION",
                        help="function that returns a torch.nn.Module; its forward takes tokens and returns logits")
    parser.add_argument("--hf", type=pathlib.Path, metavar="DIR", help="Hugging Face directory with config.json, instead")
    parser.add_argument("--args", default="{}", metavar="JSON", help="arguments of the function")
    parser.add_argument("--sequence-length", required=True, type=at_most(1 << 20), metavar="N", help="tokens per sample")
    parser.add_argument("--micro-batch-size", type=positive, default=1, metavar="N", help="samples per micro-batch; default 1")
    parser.add_argument("--documents", action="store_true",
                        help="support packed documents (data.document_end_token)")
    parser.add_argument("--dtype", choices=["fp32", "bf16", "fp16"],
                        help="data type of compute; default: bf16 on cuda, fp32 on cpu")
    parser.add_argument("--device", choices=["cpu", "cuda"], default=device, help=f"device of the ranks; default {device}")
    parser.add_argument("--recompute", type=modes, default=list(MODES), metavar="MODES",
                        help="activation checkpointing modes: none, selective, full; default all")
    parser.add_argument("--dropout", type=number(0, 1), metavar="P",
                        help="set the probability of every dropout; only 0 is supported")
    parser.add_argument("--tolerance", type=number(0, 1), metavar="E",
                        help="largest relative error against autograd; default 2e-5 (fp32), 3e-2 (bf16), 5e-3 (fp16)")


def check_model_options(options: argparse.Namespace) -> None:
    if options.model is None and options.hf is None:
        raise Fault("model: is missing; set FILE.py:FUNCTION or --hf DIR")
    if options.model is not None and options.hf is not None:
        raise Fault("model: set FILE.py:FUNCTION or --hf DIR, not both")
    if options.sequence_length * options.micro_batch_size > MOST_TOKENS:
        raise Fault(f"--micro-batch-size {options.micro_batch_size:,}: a micro-batch has at most {MOST_TOKENS:,} tokens (got "
                    f"{options.sequence_length * options.micro_batch_size:,}); set a smaller one")
    if options.dropout:
        raise Fault(f"--dropout {options.dropout:g}: random operations are not supported in an exported model; set it to 0")


def check(options: argparse.Namespace) -> int:
    check_model_options(options)
    from fsdpd.model.export import check_model

    return check_model(options)


def export(options: argparse.Namespace) -> int:
    check_model_options(options)
    check_output(options.output)
    from fsdpd.model.export import export_model

    return export_model(options)


def check_output(path: pathlib.Path) -> None:
    """Before minutes of compiling."""
    if not path.name:
        raise Fault(f"--output {path}: is not a file name; set one, such as my_model.fsdpd")
    if not path.parent.is_dir():
        raise Fault(f"--output {path}: no directory {path.parent}")
    if path.exists() and not path.is_file():
        raise Fault(f"--output {path}: exists and is not a regular file; set another name")
    if not os.access(path.parent, os.W_OK):
        raise Fault(f"--output {path}: cannot write to directory {path.parent}")


run = PROGRAM.run


def main() -> NoReturn:
    sys.exit(PROGRAM.run_interruptible(arguments_parser().parse_args()))
