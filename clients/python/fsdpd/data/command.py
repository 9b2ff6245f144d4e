"""Command line of `fsdpctl data`. Results go to stdout and messages to stderr. The exit codes are those of fsdpctl."""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from fsdpd import faults
from fsdpd.faults import Fault
from fsdpd.program import Program

if TYPE_CHECKING:
    from fsdpd.data.sources import Reading
    from fsdpd.data.vocabulary import Vocabulary

PROGRAM = Program("data", ("tokenizers", "numpy", "jinja2", "pyarrow", "zstandard"), "out")
FILE_FORMATS = ("txt", "jsonl", "parquet", "arrow")
RECORD_FORMATS = ("openai", "sharegpt", "alpaca")


def whole_number(least: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)
    return read


def fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 0 and less than 1, for example 0.01 (got {text!r})")
    return value


def add_tokenize(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("tokenize", help="convert text and records to token files", formatter_class=Formatter,
                                 description=(
        "Writes PREFIX.u16 (or .u32) for data.tokens, PREFIX.u16.json with its origin, and for prompts and chats "
        "PREFIX.mask. Prints the lines for a spec."), epilog="""examples:
  fsdpctl data tokenize c4/*.jsonl.zst --tokenizer Llama-3.1-8B --out c4 --validation-share 0.001
  fsdpctl data tokenize fineweb/data/*.parquet --tokenizer Llama-3.1-8B --out fineweb
  fsdpctl data tokenize chats.jsonl --as chat --tokenizer Llama-3.1-8B-Instruct --out chats
  fsdpctl data tokenize saved/train --as chat --field messages=dialog --tokenizer Qwen3-8B --out chats""")
    parser.add_argument("inputs", nargs="+", metavar="FILE", help=".txt, .jsonl (or .gz, .zst of them), .parquet, .arrow, "
                        "a directory, or -")
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path, metavar="FILE",
                        help="Hugging Face tokenizer.json, or its directory")
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="PREFIX", help="prefix of the output files")
    parser.add_argument("--format", choices=["auto", *FILE_FORMATS, *RECORD_FORMATS], default="auto",
                        help="format of files or records; default: by file name and first record")
    parser.add_argument("--documents", choices=["file", "line"], default="file", help="one document per text file or line")
    parser.add_argument("--as", choices=["text", "completion", "chat", "preference"], default="text", dest="reading",
                        help="content of a record: text, prompt and completion, chat, or preference pair")
    parser.add_argument("--field", action="append", default=[], metavar="FIELD=NAME",
                        help="name of a field in the records, such as messages=dialog or text=body")
    parser.add_argument("--chat-template", type=pathlib.Path, metavar="FILE",
                        help="default: chat_template.jinja or tokenizer_config.json of the tokenizer's directory")
    parser.add_argument("--end-of-document", metavar="TOKEN",
                        help="name, id, or none; default: from the tokenizer's special tokens")
    parser.add_argument("--type", choices=["auto", "u8", "u16", "u32"], default="auto", help="auto: u16 if all ids fit")
    parser.add_argument("--add-special-tokens", action="store_true",
                        help="add the tokenizer's special tokens, such as a token at the start")
    parser.add_argument("--parse-special-tokens", action="store_true",
                        help="parse names of special tokens in texts; output of chat templates is always parsed")
    parser.add_argument("--validation-share", type=fraction, default=0.0, metavar="SHARE",
                        help="fraction of documents for validation, such as 0.001")
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="seed of the validation split")
    parser.add_argument("--skip-faulty", action="store_true", help="skip documents that cannot be read")
    parser.add_argument("--workers", type=whole_number(1, 1024), metavar="N", help="threads; default: one per core")
    add_output_flags(parser)
    parser.set_defaults(run=tokenize)


def add_inspect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("inspect", help="show and verify a token file", formatter_class=Formatter, description=(
        "Reads a token file of any program: u8, u16, u32 or Megatron's. The exit code is 9 if it is invalid."),
        epilog="""examples:
  fsdpctl data inspect c4.u16 --tokenizer Llama-3.1-8B --samples 3
  fsdpctl data inspect chats.u32 --mask chats.mask --end-of-document 128001 --sequence-length 8192
  fsdpctl data inspect megatron/c4_text_document -o json""")
    parser.add_argument("file", type=pathlib.Path, metavar="FILE", help="for type megatron with or without .bin")
    parser.add_argument("--type", choices=["u8", "u16", "u32", "megatron"], help="default: from FILE.json, the name, or a guess")
    parser.add_argument("--mask", type=pathlib.Path, metavar="FILE", help="default: from FILE.json")
    parser.add_argument("--tokenizer", type=pathlib.Path, metavar="FILE", help="decode and name tokens with this tokenizer")
    parser.add_argument("--end-of-document", metavar="TOKEN", help="id, name (with --tokenizer), or none")
    parser.add_argument("--vocab-size", type=whole_number(1), metavar="N", help="upper limit of ids; default: the tokenizer's")
    parser.add_argument("--sequence-length", type=whole_number(1), metavar="N",
                        help="report the documents that samples of this length split")
    parser.add_argument("--samples", type=whole_number(0, 1000), default=1, metavar="N", help="number of samples to print")
    parser.add_argument("--offset", type=whole_number(0), default=0, metavar="TOKEN", help="start of the first sample")
    parser.add_argument("--sample-tokens", type=whole_number(1, 1 << 16), default=64, metavar="N", help="tokens per sample")
    parser.add_argument("--top", type=whole_number(0, 1000), default=5, metavar="N",
                        help="number of most frequent tokens to print")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    parser.set_defaults(run=inspect)


def add_pack(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("pack", help="merge token files with shuffled documents", formatter_class=Formatter,
                                 description=("Merges token files and their masks into one, with documents in random order. "
                                              "Ranks concatenate documents when they read."),
                                 epilog="""examples:
  fsdpctl data pack c4.u16 code.u16 --out mixed --seed 1""")
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="PREFIX")
    parser.add_argument("--end-of-document", type=whole_number(0), metavar="ID", help="default: from FILE.json")
    parser.add_argument("--type", choices=["u8", "u16", "u32", "megatron"], help="type of all files; default: as for inspect")
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N")
    parser.add_argument("--no-shuffle", action="store_true", help="keep the order of documents")
    add_output_flags(parser)
    parser.set_defaults(run=pack)


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="json: the content of FILE.json")


class Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("fsdpctl data", formatter_class=Formatter, allow_abbrev=False,
                                     description="Create, inspect and merge token files for jobs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (add_tokenize, add_inspect, add_pack):
        add(commands)
    return parser


def tokenize(options: argparse.Namespace) -> int:
    from fsdpd.data import tokenizing
    from fsdpd.data.sources import Sources
    from fsdpd.data.vocabulary import Vocabulary

    check_prefix(options.out)
    vocabulary = Vocabulary(options.tokenizer, options.workers)
    reading = reading_of(options, vocabulary.path)
    masks = options.reading != "text"
    settings = tokenizing.Settings(
        prefix=options.out, type=options.type, end=vocabulary.end_of_document(options.end_of_document),
        validation_share=options.validation_share, seed=options.seed, masks=masks, pairs=options.reading == "preference",
        add_special_tokens=options.add_special_tokens, parse_special_tokens=options.parse_special_tokens,
        overwrite=options.overwrite)
    records = options.format in RECORD_FORMATS
    sources = Sources(options.inputs, "auto" if records else options.format, "jsonl" if records else None,
                      options.documents == "line", reading, options.skip_faulty)
    sources.check()
    work = tokenizing.Tokenizing(vocabulary, settings)
    described = work.run(sources)
    print_output(json.dumps(described, indent=1) + "\n" if options.output == "json" else work.spec())
    return faults.OK


def reading_of(options: argparse.Namespace, tokenizer: pathlib.Path) -> Reading:
    from fsdpd.data import chats, preferences, readings
    from fsdpd.data.fields import Fields

    fields = Fields(readings.FIELDS[options.reading], readings.MAIN[options.reading], options.field)
    format = options.format if options.format in RECORD_FORMATS else None
    # Completions that are strings need no template, so it is loaded at the first list of messages.
    template = functools.cache(lambda: chats.load_template(tokenizer, options.chat_template))
    if options.reading == "chat":
        return readings.chats(fields, format, template())
    if options.reading == "completion":
        return readings.completions(fields, format, template)
    if format:
        raise Fault(f"--format {format}: is not supported with --as {options.reading}; set --as chat")
    if options.reading == "preference":
        return preferences.preferences(fields, template)
    return readings.texts(fields)


def inspect(options: argparse.Namespace) -> int:
    from fsdpd.data import inspecting
    from fsdpd.data.token_files import open_tokens
    from fsdpd.data.vocabulary import Vocabulary

    vocabulary = Vocabulary(options.tokenizer) if options.tokenizer else None
    file = open_tokens(options.file, options.type, options.mask)
    if options.samples and options.offset >= file.tokens:
        raise Fault(f"--offset {options.offset}: {options.file} has {file.tokens} tokens")
    size = options.vocab_size or (vocabulary.size if vocabulary else None) or \
        file.description.get("tokenizer", {}).get("vocabulary")
    inspection = inspecting.Inspection(file, inspecting.Request(
        end=end_to_inspect(options.end_of_document, vocabulary, file.description.get("document_end_token")),
        vocabulary_size=size, sequence_length=options.sequence_length, top=options.top, samples=options.samples,
        offset=options.offset, sample_tokens=options.sample_tokens), vocabulary)
    report = inspection.run()
    print_output(json.dumps(report, indent=1, ensure_ascii=False) + "\n" if options.output == "json" else
        inspecting.text_of(report, vocabulary))
    for fault in inspection.faults:
        print(f"fsdpctl data: {fault}", file=sys.stderr)
    return faults.DAMAGED if inspection.faults else faults.OK


def end_to_inspect(requested: str | None, vocabulary: Vocabulary | None, described: int | None) -> int | None:
    if requested is None and (described is not None or vocabulary is None):
        return described
    if vocabulary is not None:
        try:
            return vocabulary.end_of_document(requested)
        except Fault:
            if requested is not None:
                raise
            return None
    if requested == "none":
        return None
    if requested is None or not requested.isdecimal():
        raise Fault(f"--end-of-document {requested}: is not an id; set --tokenizer to use a name")
    return int(requested)


def pack(options: argparse.Namespace) -> int:
    from fsdpd.data import packing
    from fsdpd.data.token_files import entry, open_tokens, spec_lines

    check_prefix(options.out)
    files = [open_tokens(path, options.type, None) for path in options.files]
    for file in files:
        if file.faults:
            raise Fault(file.faults[0])
    ends = {file.description.get("document_end_token") for file in files} if options.end_of_document is None else \
        {options.end_of_document}
    end = ends.pop()
    if ends or end is None:
        raise Fault("the files have no common end-of-document token; set --end-of-document ID")
    work = packing.Packing(files, options.out, end, None if options.no_shuffle else options.seed)
    described = work.run(options.overwrite)
    made = entry(f"{options.out}.{work.kind}", work.kind, f"{options.out}.mask" if work.masked else None)
    print_output(json.dumps(described, indent=1) + "\n" if options.output == "json" else
        spec_lines(made, None, end, work.vocabulary()))
    return faults.OK


def check_prefix(prefix: pathlib.Path) -> None:
    if prefix.name in ("", ".."):
        raise Fault(f"--out {prefix}: is a directory; write a prefix of file names, such as {prefix}/train")
    if not prefix.parent.is_dir():
        raise Fault(f"--out {prefix}: no directory {prefix.parent}")


def print_output(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        print(f"fsdpctl data: cannot write to stdout: {error.strerror}", file=sys.stderr)
        # Exit without flushing stdout, which would fail and be reported again.
        sys.stderr.flush()
        os._exit(faults.NOT_WRITTEN)


run = PROGRAM.run


def main() -> NoReturn:
    code = PROGRAM.run_interruptible(arguments_parser().parse_args())
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit without waiting for threads that still encode a batch.
    os._exit(code)
