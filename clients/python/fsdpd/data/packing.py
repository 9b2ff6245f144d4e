"""Merge of token files into one with shuffled documents. Documents are not packed into samples: ranks concatenate
documents when they read, and sample boundaries have another offset in each epoch."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import numpy

from fsdpd.faults import Fault
from fsdpd.data.output_file import OutputFile, Outputs
from fsdpd.data.progress import Progress, of_count
from fsdpd.data.token_files import DTYPES, FORMAT, TokenFile, description_of

WRITE_TOKENS = 1 << 22
SCAN_TOKENS = 1 << 22
MAX_ID = (1 << 32) - 1  # The limit of u32, the widest output type.
BOUNDS_PER_CHUNK = 1 << 16  # Converted to Python integers, which take tens of bytes each.


def document_bounds(file: TokenFile, end: int) -> Any:
    """Returns (begin, end) of each document in file order."""
    found = [numpy.flatnonzero(file.ids[begin:begin + SCAN_TOKENS] == end) + begin + 1
             for begin in range(0, file.tokens, SCAN_TOKENS)]
    ends = numpy.concatenate(found)
    if len(ends) == 0:
        raise Fault(f"{file.path}: does not contain the end-of-document token {end}")
    if ends[-1] != file.tokens:
        ends = numpy.append(ends, file.tokens)
    return numpy.stack([numpy.append(0, ends[:-1]), ends], axis=1)


def check_ids(file: TokenFile) -> None:
    """Checks that ids fit into u32. Only signed types, which only Megatron files have, can violate this."""
    if file.ids.dtype.kind != "i":
        return
    width = file.ids.dtype.itemsize
    for begin in range(0, file.tokens, SCAN_TOKENS):
        ids = file.ids[begin:begin + SCAN_TOKENS].astype("i8")
        for at in numpy.flatnonzero((ids < 0) | (ids > MAX_ID))[:1]:
            raise Fault(f"{file.path}: token {ids[at]} at byte {(begin + int(at)) * width} is out of range; "
                        f"ids are from 0 to {MAX_ID}")


def order_of(documents: int, seed: int) -> Any:
    """Returns a permutation sorted by hashes of seed and index (splitmix64), which no version of numpy changes."""
    with numpy.errstate(over="ignore"):
        state = numpy.arange(1, documents + 1, dtype="u8") * numpy.uint64(0x9E3779B97F4A7C15)
        state += numpy.uint64((seed * 0xD1342543DE82EF95 + 0x632BE59BD9B4E019) % 2**64)
        state = (state ^ (state >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        state ^= state >> numpy.uint64(31)
    return numpy.argsort(state, kind="stable")


class Packing:
    def __init__(self, files: list[TokenFile], prefix: pathlib.Path, end: int, seed: int | None) -> None:
        """`seed`: None keeps the order of documents."""
        self._files, self._prefix, self._end, self._seed = files, prefix, end, seed
        masked = [file.mask is not None for file in files]
        if any(masked) and not all(masked):
            raise Fault(f"{files[masked.index(False)].path} has no mask, and {files[masked.index(True)].path} has one")
        self.masked = all(masked)
        made_with: dict[str, TokenFile] = {
            file.description["tokenizer"]["sha256"]: file for file in files
            if file.description.get("tokenizer", {}).get("sha256")}
        if len(made_with) > 1:
            first, second, *_ = made_with.values()
            raise Fault(f"{first.path} and {second.path} were created with different tokenizers")
        self.tokenizer: dict[str, Any] = next(iter(made_with.values())).description["tokenizer"] if made_with else {}
        for file in files:
            check_ids(file)
        self._highest = max(int(file.ids.max()) for file in files)
        widths = [numpy.dtype(file.ids.dtype).itemsize for file in files]
        self.kind = "u8" if max(widths) == 1 else "u16" if self._highest < 1 << 16 and end < 1 << 16 else "u32"

    def run(self, overwrite: bool) -> dict[str, Any]:
        bounds = [document_bounds(file, self._end) for file in self._files]
        of_file = numpy.repeat(numpy.arange(len(bounds)), [len(each) for each in bounds])
        all_bounds = numpy.concatenate(bounds)
        order = numpy.arange(len(all_bounds)) if self._seed is None else order_of(len(all_bounds), self._seed)
        with Outputs(overwrite) as outputs:
            path = self._prefix.with_name(f"{self._prefix.name}.{self.kind}")
            tokens = outputs.open(path)
            mask = outputs.open(self._prefix.with_name(f"{self._prefix.name}.mask")) if self.masked else None
            ended = self._write(all_bounds[order], of_file[order], tokens, mask)
            described = self._described(tokens, mask, all_bounds)
            outputs.open(description_of(path)).write((json.dumps(described, indent=1) + "\n").encode())
            outputs.finish()
        if ended:
            print(f"pack: added the end token {self._end} to {of_count(ended)} documents at the ends of files",
                  file=sys.stderr)
        return described

    def _write(self, bounds: Any, of_file: Any, tokens: OutputFile, mask: OutputFile | None) -> int:
        """Writes the documents. Returns the number of documents to which an end token was added."""
        dtype, progress = numpy.dtype(DTYPES[self.kind]), Progress("pack")
        ids: list[Any] = []
        masks: list[Any] = []
        held = ended = 0

        def flush() -> None:
            tokens.write(numpy.concatenate(ids).tobytes())
            if mask:
                mask.write(numpy.concatenate(masks).tobytes())
            ids.clear()
            masks.clear()

        rows = ((row, at) for first in range(0, len(bounds), BOUNDS_PER_CHUNK) for row, at in zip(
            bounds[first:first + BOUNDS_PER_CHUNK].tolist(), of_file[first:first + BOUNDS_PER_CHUNK].tolist()))
        for number, ((begin, end), at) in enumerate(rows):
            file = self._files[at]
            document = file.ids[begin:end].astype(dtype)
            counted: Any = file.mask[begin:end] if mask else None
            if document[-1] != self._end:
                document, ended = numpy.append(document, dtype.type(self._end)), ended + 1
                counted = numpy.append(counted, counted[-1]) if mask else None
            ids.append(document)
            masks.append(counted)
            held += len(document)
            if held >= WRITE_TOKENS:
                flush()
                held = 0
            progress.show(tokens.bytes // dtype.itemsize, number, number / len(bounds))
        if ids:
            flush()
        progress.end(tokens.bytes // dtype.itemsize, len(bounds))
        return ended

    def _described(self, tokens: OutputFile, mask: OutputFile | None, bounds: Any) -> dict[str, Any]:
        made: dict[str, Any] = {
            "fsdpd_tokens": FORMAT, "part": "packed", "type": self.kind,
            "tokens": tokens.bytes // numpy.dtype(DTYPES[self.kind]).itemsize, "documents": len(bounds),
            "sha256": tokens.sha256, "document_end_token": self._end, "seed": self._seed,
            "sources": [{"path": str(file.path), "tokens": file.tokens, "sha256": file.description.get("sha256")}
                        for file in self._files]}
        if self.tokenizer:
            made["tokenizer"] = self.tokenizer
        if mask:
            made |= {"mask": mask.path.name, "mask_sha256": mask.sha256}
        return made

    def vocabulary(self) -> int:
        return int(self.tokenizer.get("vocabulary") or max(self._highest, self._end) + 1)
