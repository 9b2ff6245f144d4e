"""Command line of `fsdpctl data`. Results go to stdout and messages to stderr. The exit codes are those of fsdpctl."""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import signal
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from fsdpd.data import faults
from fsdpd.data.faults import Fault

if TYPE_CHECKING:
    from fsdpd.data.vocabulary import Vocabulary

INSTALL = "pip install 'CLONE/clients/python[data]'"


class Interrupted(BaseException):
    pass


def interrupt(number: int, frame: types.FrameType | None) -> NoReturn:
    # Ignore further signals while incomplete files are removed.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted


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
        raise argparse.ArgumentTypeError(f"{text!r} is no share: a number from 0 to less than 1, as in 0.01")
    return value


def add_tokenize(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("tokenize", help="text and JSONL to token files", formatter_class=Formatter, description=(
        "Writes PREFIX.u16 (or .u32), which data.tokens takes, and PREFIX.u16.json, which says how it was made; of prompts "
        "and chats PREFIX.mask too. Prints the lines of a spec that take them."), epilog="""examples:
  fsdpctl data tokenize c4/*.jsonl.gz --tokenizer Llama-3.1-8B --out c4 --validation-share 0.001
  fsdpctl data tokenize chats.jsonl --as chat --tokenizer Llama-3.1-8B-Instruct --out chats
  zstd -dc pile.jsonl.zst | fsdpctl data tokenize - --format jsonl --tokenizer tokenizer.json --out pile""")
    parser.add_argument("inputs", nargs="+", metavar="FILE", help=".txt, .jsonl, these with .gz, or - for stdin")
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path, metavar="FILE",
                        help="a Hugging Face tokenizer.json, or the directory with it")
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="PREFIX", help="what the files' names begin with")
    parser.add_argument("--format", choices=["auto", "txt", "jsonl"], default="auto", help="default: by the names")
    parser.add_argument("--documents", choices=["file", "line"], default="file", help="of a text: what one document is")
    parser.add_argument("--as", choices=["text", "completion", "chat"], default="text", dest="reading",
                        help="what a line of JSONL is: a text, a prompt with its completion, or a conversation")
    parser.add_argument("--field", metavar="NAME", help="with text or messages; default: text, or messages of a chat")
    parser.add_argument("--prompt-field", default="prompt", metavar="NAME")
    parser.add_argument("--completion-field", default="completion", metavar="NAME")
    parser.add_argument("--chat-template", type=pathlib.Path, metavar="FILE",
                        help="default: chat_template.jinja or tokenizer_config.json beside the tokenizer")
    parser.add_argument("--end-of-document", metavar="TOKEN",
                        help="name or id, or none; default: by the tokenizer's special tokens")
    parser.add_argument("--type", choices=["auto", "u8", "u16", "u32"], default="auto", help="auto: u16 where it holds all")
    parser.add_argument("--add-special-tokens", action="store_true",
                        help="what the tokenizer puts around a text, as a token of its begin")
    parser.add_argument("--parse-special-tokens", action="store_true",
                        help="names of special tokens in a text are these tokens; in what a chat template made always")
    parser.add_argument("--validation-share", type=fraction, default=0.0, metavar="SHARE", help="of documents, as in 0.001")
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="of which documents are held out")
    parser.add_argument("--skip-faulty", action="store_true", help="leave out documents that cannot be read")
    parser.add_argument("--workers", type=whole_number(1, 1024), metavar="N", help="threads; default: one a core")
    add_output_flags(parser)
    parser.set_defaults(run=tokenize)


def add_inspect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("inspect", help="what is in a token file", formatter_class=Formatter, description=(
        "Reads a token file of anybody's: u8, u16, u32 or Megatron's. The exit code is 9 where it has faults."),
        epilog="""examples:
  fsdpctl data inspect c4.u16 --tokenizer Llama-3.1-8B --samples 3
  fsdpctl data inspect chats.u32 --mask chats.mask --end-of-document 128001 --sequence-length 8192
  fsdpctl data inspect megatron/c4_text_document -o json""")
    parser.add_argument("file", type=pathlib.Path, metavar="FILE", help="of type megatron with or without .bin")
    parser.add_argument("--type", choices=["u8", "u16", "u32", "megatron"], help="default: by FILE.json, the name, or a guess")
    parser.add_argument("--mask", type=pathlib.Path, metavar="FILE", help="default: the one that FILE.json names")
    parser.add_argument("--tokenizer", type=pathlib.Path, metavar="FILE", help="to decode and name tokens")
    parser.add_argument("--end-of-document", metavar="TOKEN", help="id, or a name with --tokenizer, or none")
    parser.add_argument("--vocab-size", type=whole_number(1), metavar="N", help="ids are to be below it; default: the tokenizer's")
    parser.add_argument("--sequence-length", type=whole_number(1), metavar="N", help="how many documents samples cut")
    parser.add_argument("--samples", type=whole_number(0, 1000), default=1, metavar="N")
    parser.add_argument("--offset", type=whole_number(0), default=0, metavar="TOKEN", help="where samples begin")
    parser.add_argument("--sample-tokens", type=whole_number(1, 1 << 16), default=64, metavar="N", help="of a sample")
    parser.add_argument("--top", type=whole_number(0, 1000), default=5, metavar="N", help="most frequent tokens")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    parser.set_defaults(run=inspect)


def add_pack(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("pack", help="merge token files, their documents shuffled", formatter_class=Formatter,
                                 description=("Writes one token file of the documents of several, in an order of the seed, "
                                              "with their masks. Ranks string documents together as they read."),
                                 epilog="""examples:
  fsdpctl data pack c4.u16 code.u16 --out mixed --seed 1""")
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="PREFIX")
    parser.add_argument("--end-of-document", type=whole_number(0), metavar="ID", help="default: what each FILE.json says")
    parser.add_argument("--type", choices=["u8", "u16", "u32", "megatron"], help="of all files; default: as inspect's")
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N")
    parser.add_argument("--no-shuffle", action="store_true", help="documents in the order of the files")
    add_output_flags(parser)
    parser.set_defaults(run=pack)


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="json: what FILE.json has")


class Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("fsdpctl data", formatter_class=Formatter, allow_abbrev=False,
                                     description="Token files for jobs: made from text, looked into, merged.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (add_tokenize, add_inspect, add_pack):
        add(commands)
    return parser


def tokenize(options: argparse.Namespace) -> int:
    from fsdpd.data import chats, tokenizing
    from fsdpd.data.sources import Document, Sources, text_of
    from fsdpd.data.vocabulary import Vocabulary

    check_prefix(options.out)
    vocabulary = Vocabulary(options.tokenizer, options.workers)
    masks = options.reading != "text"
    # Completions that are strings need no template, so it is loaded at the first list of messages.
    template = functools.cache(lambda: chats.load_template(vocabulary.path, options.chat_template))
    if options.reading == "chat":
        read = chats.reading_chats(template(), options.field or "messages")
    elif options.reading == "completion":
        read = chats.reading_completions(template, options.prompt_field, options.completion_field)
    else:
        name = options.field or "text"

        def read(line: dict[str, object], place: str) -> Document:
            return Document(text_of(line, name, place, "--field"), place)
    settings = tokenizing.Settings(
        prefix=options.out, type=options.type, end=vocabulary.end_of_document(options.end_of_document),
        validation_share=options.validation_share, seed=options.seed, masks=masks,
        add_special_tokens=options.add_special_tokens, parse_special_tokens=options.parse_special_tokens,
        overwrite=options.overwrite)
    sources = Sources(options.inputs, options.format, options.documents == "line", read, options.skip_faulty)
    sources.check()
    work = tokenizing.Tokenizing(vocabulary, settings)
    described = work.run(sources)
    print_output(json.dumps(described, indent=1) + "\n" if options.output == "json" else work.spec())
    return faults.OK


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
        raise Fault(f"--end-of-document {requested}: is no id, and without --tokenizer no names are known")
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
        raise Fault("which token ends a document? The files do not all say the same; say --end-of-document ID")
    work = packing.Packing(files, options.out, end, None if options.no_shuffle else options.seed)
    described = work.run(options.overwrite)
    made = entry(f"{options.out}.{work.kind}", work.kind, f"{options.out}.mask" if work.masked else None)
    print_output(json.dumps(described, indent=1) + "\n" if options.output == "json" else
        spec_lines(made, None, end, work.vocabulary()))
    return faults.OK


def check_prefix(prefix: pathlib.Path) -> None:
    if prefix.name in ("", ".."):
        raise Fault(f"--out {prefix}: is a directory; say with what the files' names begin, as in {prefix}/train")
    if not prefix.parent.is_dir():
        raise Fault(f"--out {prefix}: there is no directory {prefix.parent}")


def print_output(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        print(f"fsdpctl data: cannot write to stdout: {error.strerror}", file=sys.stderr)
        # Exit without flushing stdout, which would fail and be reported again.
        sys.stderr.flush()
        os._exit(faults.NOT_WRITTEN)


def run(options: argparse.Namespace) -> int:
    try:
        return int(options.run(options))
    except ImportError as error:
        # An import error of another module is a bug of this package, not a missing extra.
        if (error.name or "").split(".")[0] not in ("tokenizers", "numpy", "jinja2"):
            raise
        print(f"fsdpctl data: needs the libraries of the extra `data`: {INSTALL} ({error})", file=sys.stderr)
    except Fault as fault:
        print(f"fsdpctl data: {fault}", file=sys.stderr)
    except OSError as error:
        print(f"fsdpctl data: {error.filename or options_out(options)}: {error.strerror}", file=sys.stderr)
    return faults.WRONG_USAGE


def options_out(options: argparse.Namespace) -> str:
    """Name of the output, for an OSError of a write, which has no file name."""
    return str(getattr(options, "out", ""))


def main() -> NoReturn:
    options = arguments_parser().parse_args()
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, interrupt)
    try:
        code = run(options)
    except Interrupted:
        print("fsdpctl data: interrupted", file=sys.stderr)
        sys.stderr.flush()
        # Exit without waiting for threads that still encode a batch.
        os._exit(faults.INTERRUPTED)
    # The same after an error.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
