"""Reader of documents from text and JSONL, plain or gzipped, from files and stdin, in the order of the arguments.

A document that is invalid or too large is a Fault with file, line and byte. With `skip` it is counted and reported, and
reading continues with the next document. A truncated or invalid gzip file is always an error.
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, NoReturn, cast

from fsdpd.faults import Fault

# Size of one document. A tokenizer needs about a hundred times as much memory.
MAX_BYTES = 64 << 20
MAX_REPORTED = 10
BOM = b"\xef\xbb\xbf"
FORMATS = {".txt": "txt", ".text": "txt", ".md": "txt", ".jsonl": "jsonl", ".ndjson": "jsonl"}
OTHER_COMPRESSIONS = {".zst": "zstd", ".zstd": "zstd", ".bz2": "bzip2", ".xz": "xz"}


@dataclass(frozen=True)
class Document:
    text: str
    place: str  # "chats.jsonl:17"
    # Training targets as ranges (begin, end) of characters; None: the whole text.
    counted: list[tuple[int, int]] | None = None
    # The text comes from a chat template: names of special tokens in it are parsed as special tokens.
    templated: bool = False


# Converts the object of a JSONL line; the second argument is its place.
Reading = Callable[[dict[str, Any], str], Document]


@dataclass
class SourceCounts:
    path: str
    documents: int = 0
    empty: int = 0
    skipped: int = 0


@dataclass
class Sources:
    """The input files and the position in them."""

    paths: list[str]
    format: str  # "auto", "txt", "jsonl"
    per_line: bool  # Each line of a text file is a document.
    read: Reading
    skip: bool
    counts: list[SourceCounts] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _raw: IO[bytes] | None = None

    def check(self) -> None:
        """Checks that every file exists and has a known format, before hours of work."""
        for path in self.paths:
            self._format_of(path)
            if path == "-":
                continue
            if pathlib.Path(path).is_dir():
                raise Fault(f"{path}: is a directory; name its files, as in {path}/*.jsonl")
            with open(path, "rb") as file:
                self._sizes.append(os.fstat(file.fileno()).st_size)

    def fraction(self) -> float | None:
        """Returns the fraction of bytes that was read, or None if the size of the input is not known."""
        if "-" in self.paths or sum(self._sizes) == 0:
            return None
        done = sum(self._sizes[:max(len(self.counts) - 1, 0)])
        return min((done + (self._raw.tell() if self._raw and not self._raw.closed else 0)) / sum(self._sizes), 1.0)

    def documents(self) -> Iterator[Document]:
        for path in self.paths:
            self.counts.append(SourceCounts("stdin" if path == "-" else path))
            yield from self._read_file(path, self.counts[-1])

    def _format_of(self, path: str) -> str:
        if self.format != "auto":
            return self.format
        if path == "-":
            raise Fault("stdin: unknown format; set --format jsonl or --format txt")
        suffixes = [each.lower() for each in pathlib.Path(path).suffixes]
        if suffixes and suffixes[-1] in OTHER_COMPRESSIONS:
            raise Fault(f"{path}: {OTHER_COMPRESSIONS[suffixes[-1]]} is not supported; decompress it: "
                        f"{OTHER_COMPRESSIONS[suffixes[-1]]} -dc {path} | fsdpctl data tokenize - --format jsonl ...")
        if suffixes and suffixes[-1] == ".gz":
            suffixes.pop()
        format = FORMATS.get(suffixes[-1]) if suffixes else None
        if format is None:
            raise Fault(f"{path}: the name does not end in {', '.join(FORMATS)} or one of them with .gz; set "
                        "--format jsonl or --format txt")
        return format

    def _read_file(self, path: str, counts: SourceCounts) -> Iterator[Document]:
        name, format = counts.path, self._format_of(path)
        with (os.fdopen(os.dup(0), "rb") if path == "-" else open(path, "rb")) as raw:
            self._raw = raw
            file: IO[bytes] = raw
            if path.endswith(".gz") or raw.peek(2)[:2] == b"\x1f\x8b":
                file = cast(IO[bytes], gzip.GzipFile(fileobj=raw, mode="rb"))
            try:
                yield from self._read_text(file, name, counts) if format == "txt" and not self.per_line else \
                    self._read_lines(file, name, format, counts)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise Fault(f"{name}: damaged or truncated gzip: {error}") from None

    def _read_text(self, file: IO[bytes], name: str, counts: SourceCounts) -> Iterator[Document]:
        data = file.read(MAX_BYTES + 1)

        def make() -> Document:
            if len(data) > MAX_BYTES:
                raise Fault(f"{name}: one document is larger than {MAX_BYTES >> 20} MiB; "
                            "use --documents line for one document per line")
            return Document(decoded(data.removeprefix(BOM), name, data), name)

        yield from self._checked(make, counts)

    def _read_lines(self, file: IO[bytes], name: str, format: str, counts: SourceCounts) -> Iterator[Document]:
        number = 0
        while line := file.readline(MAX_BYTES + 1):
            number += 1
            place = f"{name}:{number}"
            if len(line) > MAX_BYTES:
                yield from self._checked(lambda: too_long(place), counts)
                # If the line is skipped, skip its remainder too.
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_BYTES)
                continue
            whole = line
            if number == 1:
                line = line.removeprefix(BOM)
            line = line.rstrip(b"\r\n")
            if not line.strip():
                counts.empty += 1
            elif format == "txt":
                yield from self._checked(lambda: Document(decoded(line, place, whole), place), counts)
            else:
                yield from self._checked(lambda: self.read(parsed(line, place, whole), place), counts)

    def _checked(self, make: Callable[[], Document], counts: SourceCounts) -> Iterator[Document]:
        try:
            document = make()
            check_text(document)
        except Fault as fault:
            if not self.skip:
                raise Fault(f"{fault}; --skip-faulty skips such documents") from None
            counts.skipped += 1
            if counts.skipped <= MAX_REPORTED:
                print(f"fsdpctl data: skipped: {fault}", file=sys.stderr)
            return
        if not document.text:
            counts.empty += 1
            return
        counts.documents += 1
        yield document


def too_long(place: str) -> NoReturn:
    raise Fault(f"{place}: the line is longer than {MAX_BYTES >> 20} MiB")


def decoded(data: bytes, place: str, whole: bytes) -> str:
    """Decodes `data`, a part of `whole`. The byte in an error is an offset into `whole`."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        byte = whole.find(data) + error.start
        raise Fault(f"{place}: byte {byte} (0x{data[error.start]:02x}) is not UTF-8") from None


def parsed(line: bytes, place: str, whole: bytes) -> dict[str, Any]:
    text = decoded(line, place, whole)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise Fault(f"{place}:{error.colno}: invalid JSON: {error.msg}") from None
    except RecursionError:
        raise Fault(f"{place}: JSON is nested too deeply") from None
    except ValueError as error:  # An integer with thousands of digits.
        raise Fault(f"{place}: invalid JSON: {error}") from None
    if not isinstance(value, dict):
        raise Fault(f"{place}: is {kind(value)}, want an object such as {{\"text\": \"...\"}}")
    return value


def check_text(document: Document) -> None:
    """Rejects unpaired surrogates, which JSON can contain but UTF-8 cannot."""
    try:
        document.text.encode()
    except UnicodeEncodeError as error:
        raise Fault(f"{document.place}: character {error.start} of the text is an unpaired surrogate "
                    f"(\\u{ord(document.text[error.start]):04x})") from None


def kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number",
             type(None): "null"}
    return names.get(type(value), type(value).__name__)


def field_of(line: dict[str, Any], name: str, place: str, flag: str) -> object:
    if name not in line:
        there = ", ".join(sorted(line)[:8]) or "none"
        raise Fault(f"{place}: no field {name!r} (got {there}); set {flag}")
    return line[name]


def text_of(line: dict[str, Any], name: str, place: str, flag: str) -> str:
    value = field_of(line, name, place, flag)
    if not isinstance(value, str):
        raise Fault(f"{place}: field {name!r} is {kind(value)}, want a string")
    return value
