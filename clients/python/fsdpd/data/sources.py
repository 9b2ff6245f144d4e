"""Reader of documents from text, JSONL, Parquet and Arrow, from files, directories and stdin, in the order of the arguments.

A document that is invalid or too large is a Fault with file, line or row, and byte. With `skip` it is counted and
reported, and reading continues with the next document. A truncated or invalid file is always an error.
"""

from __future__ import annotations

import io
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, NoReturn

from fsdpd.data import compression
from fsdpd.data.directories import files_of
from fsdpd.data.fields import Record, kind, parsed
from fsdpd.faults import Fault

# Size of one document. A tokenizer needs about a hundred times as much memory.
MAX_BYTES = 64 << 20
MAX_REPORTED = 10
BOM = b"\xef\xbb\xbf"
FORMATS = {".txt": "txt", ".text": "txt", ".md": "txt", ".jsonl": "jsonl", ".ndjson": "jsonl"}
SIDES = ("chosen", "rejected")
TABLES = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}


@dataclass(frozen=True)
class Document:
    text: str
    place: str  # "chats.jsonl:17"
    # Training targets as ranges (begin, end) of characters; None: the whole text.
    counted: list[tuple[int, int]] | None = None
    # The text comes from a chat template: names of special tokens in it are parsed as special tokens.
    templated: bool = False
    # For one of several documents of a record: a text that they share, which decides between training and validation.
    group: str | None = None
    side: str = ""  # Of a preference pair.
    # The targets include the role header of an answer.
    header_counted: bool = False

    @property
    def expanded(self) -> bool:
        """Whether this is an example of an expanded conversation."""
        return self.group is not None and not self.side


@dataclass(frozen=True)
class Reading:
    """Conversion of a record to documents. The second argument of `read` is the place of the record."""

    read: Callable[[Record, str], list[Document]]
    columns: frozenset[str]  # The fields that it uses.
    records: bool = True  # Text files have no fields.


@dataclass
class SourceCounts:
    path: str
    documents: int = 0
    empty: int = 0
    skipped: int = 0
    expanded: int = 0  # Conversations that are several documents.


@dataclass
class Sources:
    """The input files and the position in them."""

    paths: list[str]
    format: str  # "auto", "txt", "jsonl", "parquet", "arrow"
    other_format: str | None  # Of stdin and of files whose names have no known format, for "auto".
    per_line: bool  # Each line of a text file is a document.
    reading: Reading
    skip: bool
    counts: list[SourceCounts] = field(default_factory=list)
    _formats: list[str] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _raw: IO[bytes] | None = None

    def check(self) -> None:
        """Checks that every file exists, has a known format, and that its library is installed, before hours of work.
        Replaces directories by their files."""
        paths, self.paths = self.paths, []
        for path in paths:
            if path != "-" and pathlib.Path(path).is_dir():
                self.paths += map(str, files_of(pathlib.Path(path)))
            else:
                self.paths.append(path)
        for path in self.paths:
            self._formats.append(self._format_of(path))
            if self._formats[-1] == "txt" and self.reading.records:
                raise Fault(f"{path}: a text file is not supported with this --as (want records); set "
                            "--format jsonl for an object per line")
            if self._formats[-1] in TABLES.values():
                import pyarrow.parquet  # noqa: F401
            if path.endswith(compression.ZSTD_SUFFIXES):
                import zstandard  # noqa: F401
            if path != "-":
                with open(path, "rb") as file:
                    self._sizes.append(os.fstat(file.fileno()).st_size)

    def fraction(self) -> float | None:
        """Returns the fraction of bytes that was read, or None if the size of the input is not known."""
        if "-" in self.paths or sum(self._sizes) == 0:
            return None
        done = sum(self._sizes[:max(len(self.counts) - 1, 0)])
        return min((done + (self._raw.tell() if self._raw and not self._raw.closed else 0)) / sum(self._sizes), 1.0)

    def documents(self) -> Iterator[Document]:
        for path, format in zip(self.paths, self._formats):
            self.counts.append(SourceCounts("stdin" if path == "-" else path))
            yield from self._read_file(path, format, self.counts[-1])

    def _format_of(self, path: str) -> str:
        if path == "-" and self.format in TABLES.values():
            raise Fault(f"stdin: --format {self.format} is not supported; write it to a file")
        if self.format != "auto":
            return self.format
        suffixes = [each.lower() for each in pathlib.Path(path).suffixes] or [""]
        if name := compression.UNSUPPORTED.get(suffixes[-1]):
            raise Fault(f"{path}: {name} is not supported; decompress it: {name} -dc {path} | "
                        "fsdpctl data tokenize - --format jsonl ...")
        if suffixes[-1] in compression.SUFFIXES and len(suffixes) > 1:
            suffixes.pop()
        format = {**FORMATS, **TABLES}.get(suffixes[-1]) or self.other_format
        if format:
            return format
        if path == "-":
            raise Fault("stdin: unknown format; set --format jsonl or --format txt")
        if suffixes[-1] == ".json":
            raise Fault(f"{path}: a JSON array is not supported; convert it: jq -c '.[]' {path} > "
                        f"{path.removesuffix('.json')}.jsonl; for an object per line, set --format jsonl")
        raise Fault(f"{path}: the name does not end in {', '.join(FORMATS)}, one of them with "
                    f"{', '.join(compression.SUFFIXES)}, or {', '.join(TABLES)}; set --format")

    def _read_file(self, path: str, format: str, counts: SourceCounts) -> Iterator[Document]:
        with (os.fdopen(os.dup(0), "rb") if path == "-" else open(path, "rb")) as raw:
            self._raw = raw
            if format in TABLES.values():
                yield from self._read_table(raw, format, counts)
                return
            with compression.decompressed(raw, counts.path) as file:
                yield from self._read_text(file, counts.path, counts) if format == "txt" and not self.per_line else \
                    self._read_lines(file, counts.path, format, counts)

    def _read_table(self, raw: io.BufferedReader, format: str, counts: SourceCounts) -> Iterator[Document]:
        from fsdpd.data import tables

        for place, row in tables.rows(raw, counts.path, format, self.reading.columns):
            yield from self._checked(lambda: self.reading.read(row(), place), counts)

    def _read_text(self, file: IO[bytes], name: str, counts: SourceCounts) -> Iterator[Document]:
        data = file.read(MAX_BYTES + 1)

        def make() -> list[Document]:
            if len(data) > MAX_BYTES:
                raise Fault(f"{name}: one document is larger than {MAX_BYTES >> 20} MiB; "
                            "use --documents line for one document per line")
            return [Document(decoded(data.removeprefix(BOM), name, data), name)]

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
                yield from self._checked(lambda: [Document(decoded(line, place, whole), place)], counts)
            else:
                yield from self._checked(lambda: self.reading.read(record_of(line, place, whole), place), counts)

    def _checked(self, make: Callable[[], list[Document]], counts: SourceCounts) -> Iterator[Document]:
        try:
            documents = make()
            for document in documents:
                check_text(document)
        except Fault as fault:
            if not self.skip:
                raise Fault(f"{fault}; --skip-faulty skips such documents") from None
            counts.skipped += 1
            if counts.skipped <= MAX_REPORTED:
                print(f"fsdpctl data: skipped: {fault}", file=sys.stderr)
            return
        counts.expanded += int(any(document.expanded for document in documents))
        for document in documents:
            counts.empty += int(not document.text)
            counts.documents += int(bool(document.text))
            if document.text:
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


def record_of(line: bytes, place: str, whole: bytes) -> Record:
    value = parsed(decoded(line, place, whole), place)
    if not isinstance(value, dict):
        raise Fault(f"{place}: is {kind(value)}, want an object such as {{\"text\": \"...\"}}")
    return value


def check_text(document: Document) -> None:
    """Rejects texts that are too large, and unpaired surrogates, which JSON can contain but UTF-8 cannot."""
    try:
        size = len(document.text.encode())
    except UnicodeEncodeError as error:
        raise Fault(f"{document.place}: character {error.start} of the text is an unpaired surrogate "
                    f"(\\u{ord(document.text[error.start]):04x})") from None
    if size > MAX_BYTES:
        raise Fault(f"{document.place}: the document is larger than {MAX_BYTES >> 20} MiB (got {size} bytes)")
