"""Inspection of a token file in one pass: ids, documents, mask, samples and errors. Any program may have written it."""

from __future__ import annotations

import bisect
import json
import math
import pathlib
from dataclasses import dataclass
from typing import Any

import numpy

from fsdpd.data.progress import Progress, of_count
from fsdpd.data.token_files import TokenFile, entry, sha256_of, spec_lines
from fsdpd.data.vocabulary import Vocabulary

CHUNK = 1 << 22
MAX_COUNTED_ID = 1 << 22  # Larger ids are not counted: no vocabulary has them, but a file read with a wrong type does.
MAX_REPORTED = 3  # Errors of one kind.
MAX_PACKED_GROUPS = 64
PACKED_GROUP = 16384  # As in fsdp/data/packed_documents.h.
PERCENTILES = (5, 50, 95, 99)


@dataclass(frozen=True)
class Request:
    end: int | None
    vocabulary_size: int | None  # Ids must be below it.
    sequence_length: int | None
    top: int
    samples: int
    offset: int
    sample_tokens: int


class Inspection:
    def __init__(self, file: TokenFile, request: Request, vocabulary: Vocabulary | None) -> None:
        self._file, self._request, self._vocabulary = file, request, vocabulary
        self.faults = list(file.faults)
        self._histogram = numpy.zeros(0, "i8")
        self._lowest, self._highest, self._counted, self._outside, self._odd = 0, 0, 0, 0, 0
        self._ends: list[Any] = []

    def run(self) -> dict[str, Any]:
        progress = Progress("inspect")
        for begin in range(0, self._file.tokens, CHUNK):
            self._take(begin, self._file.ids[begin:begin + CHUNK].astype("i8"))
            if self._file.mask is not None:
                self._take_mask(begin, self._file.mask[begin:begin + CHUNK])
            progress.show(begin, sum(map(len, self._ends)), begin / self._file.tokens)
        progress.clear()
        self._compare_with_description()
        file, lengths = self._file, self._lengths()
        report: dict[str, Any] = {
            "path": str(file.path), "type": file.type, "type_by": file.known_by, "tokens": file.tokens,
            "ids": {"lowest": self._lowest, "highest": self._highest, "different": int((self._histogram > 0).sum())},
            "most_frequent": self._most_frequent(), "document_end_token": self._request.end,
            "documents": None if lengths is None else self._documents(lengths),
            "mask": None if file.mask is None else {"path": str(file.mask_path), "counted": self._counted},
            "samples": [self._sample(number) for number in range(self._request.samples)],
            "faults": self.faults, "spec": self._spec()}
        return report

    def _take(self, begin: int, ids: Any) -> None:
        low, high = int(ids.min()), int(ids.max())
        self._lowest, self._highest = (low, high) if begin == 0 else (min(low, self._lowest), max(high, self._highest))
        limit = self._request.vocabulary_size
        outside = (ids < 0) | (ids >= limit) if limit is not None else ids < 0
        for at in numpy.flatnonzero(outside)[:max(MAX_REPORTED - self._outside, 0)]:
            token, width = int(ids[at]), self._file.ids.dtype.itemsize
            why = "negative" if token < 0 else f"not below the vocabulary size {limit}"
            self.faults.append(f"{self._file.path}: token {token} at byte {(begin + int(at)) * width} is {why}")
        self._outside += int(outside.sum())
        counted = numpy.bincount(ids[(ids >= 0) & (ids < MAX_COUNTED_ID)])
        if len(counted) > len(self._histogram):
            counted, self._histogram = self._histogram, counted
        self._histogram[:len(counted)] += counted
        if self._request.end is not None:
            self._ends.append(numpy.flatnonzero(ids == self._request.end) + begin)

    def _take_mask(self, begin: int, mask: Any) -> None:
        for at in numpy.flatnonzero(mask > 1)[:max(MAX_REPORTED - self._odd, 0)]:
            self.faults.append(f"{self._file.mask_path}: byte {begin + int(at)} is {mask[at]}, want 1 (target) or 0")
        self._odd += int((mask > 1).sum())
        self._counted += int((mask == 1).sum())

    def _compare_with_description(self) -> None:
        if self._outside > MAX_REPORTED:
            self.faults.append(f"{self._file.path}: {of_count(self._outside)} such tokens in total; check the type "
                               f"({self._file.type}, from {self._file.known_by})")
        described = self._file.description
        if not described:
            return
        if described.get("sha256") != sha256_of(self._file.ids):
            self.faults.append(f"{self._file.path}: does not match the sha256 in its .json")
        made_with = described.get("tokenizer", {}).get("sha256")
        if self._vocabulary and made_with and made_with != self._vocabulary.sha256:
            self.faults.append(f"{self._file.path}: was created with another tokenizer than {self._vocabulary.path} "
                               f"(sha256 {made_with})")

    def _lengths(self) -> Any:
        """Returns the lengths of documents with their end tokens, or None if the end token is not known."""
        if self._request.end is None:
            return None
        ends = numpy.concatenate(self._ends) + 1
        if len(ends) == 0 or ends[-1] != self._file.tokens:
            ends = numpy.append(ends, self._file.tokens)
        return numpy.diff(ends, prepend=0)

    def _documents(self, lengths: Any) -> dict[str, Any]:
        report: dict[str, Any] = {
            "count": len(lengths), "shortest": int(lengths.min()), "longest": int(lengths.max()),
            "mean": round(float(lengths.mean()), 1),
            "percentiles": {str(each): int(numpy.percentile(lengths, each, method="lower")) for each in PERCENTILES}}
        if self._request.sequence_length:
            report["cut"] = split_fraction(lengths, self._request.sequence_length)
            report["packed"] = packed_samples(lengths, self._request.sequence_length)
        if int(self._file.ids[-1]) != self._request.end:
            report["last_without_end"] = True
        return report

    def _most_frequent(self) -> list[dict[str, Any]]:
        # By count; ties by id.
        order = numpy.argsort(-self._histogram, kind="stable")[:self._request.top]
        return [{"token": int(each), "count": int(self._histogram[each]),
                 "text": self._vocabulary.tokenizer.id_to_token(int(each)) if self._vocabulary else None}
                for each in order if self._histogram[each] > 0]

    def _sample(self, number: int) -> dict[str, Any]:
        begin = self._request.offset + number * self._request.sample_tokens
        ids = self._file.ids[begin:begin + self._request.sample_tokens].astype("i8").tolist()
        sample: dict[str, Any] = {"token": begin, "ids": ids}
        if self._vocabulary:
            sample["text"] = self._vocabulary.decode(ids)
            if self._file.mask is not None:
                mask = self._file.mask[begin:begin + self._request.sample_tokens]
                sample["counted"] = [self._vocabulary.decode([ids[at] for at in range(*run)]) for run in runs(mask)]
        return sample

    def _spec(self) -> str:
        file, described = self._file, self._file.description
        size = described.get("tokenizer", {}).get("vocabulary") or \
            (self._vocabulary.size if self._vocabulary else self._highest + 1)
        name, mask = str(file.path), file.mask_path
        validation_path = pathlib.Path(f"{name.removesuffix('.' + file.type)}.validation.{file.type}")
        validation = None
        if described and validation_path.is_file():
            held_out_mask = validation_path.with_suffix(".mask")
            validation = entry(validation_path, file.type, held_out_mask if mask and held_out_mask.is_file() else None)
        return spec_lines(entry(name, file.type, mask), validation, self._request.end, size)


def split_fraction(lengths: Any, sequence_length: int) -> dict[str, Any]:
    """Fraction of documents that sample boundaries split. Samples have sequence_length + 1 tokens, and their boundaries
    have another offset in each epoch. A document of n tokens has n - 1 inner positions, so it is split with the
    probability min((n - 1) / (sequence_length + 1), 1)."""
    window = sequence_length + 1
    return {"sequence_length": sequence_length,
            "share_an_epoch": round(float(numpy.minimum((lengths - 1) / window, 1.0).mean()), 4),
            "longer_than_a_sample": int((lengths > window).sum())}


def packed_samples(lengths: Any, sequence_length: int) -> dict[str, Any]:
    """Returns the samples of data.packing documents with too_long truncate. The job shuffles documents before it divides
    them into groups, so its numbers differ slightly if the file has several groups."""
    window = sequence_length + 1
    fitting = numpy.minimum(lengths[lengths > 1], window)
    samples = 0
    # More groups take minutes, and hardly change the estimate.
    packed = fitting[:MAX_PACKED_GROUPS * PACKED_GROUP]
    for begin in range(0, len(packed), PACKED_GROUP):
        free: list[int] = []  # Free tokens of the group's samples, ascending.
        for tokens in sorted(packed[begin:begin + PACKED_GROUP].tolist(), reverse=True):
            at = bisect.bisect_left(free, tokens)
            bisect.insort(free, (free.pop(at) if at < len(free) else window) - tokens)
        samples += len(free)
    padding = 1 - int(packed.sum()) / (samples * window) if samples else None
    if len(packed) < len(fitting) and padding is not None:
        samples = math.ceil(int(fitting.sum()) / window / (1 - padding))
    return {"sequence_length": sequence_length, "samples": samples,
            "padding": None if padding is None else round(padding, 4)}


def runs(mask: Any) -> list[tuple[int, int]]:
    """Returns the ranges of ones in the mask as (begin, end)."""
    edges = numpy.flatnonzero(numpy.diff((mask == 1).astype("i1"), prepend=0, append=0))
    return [(int(begin), int(end)) for begin, end in zip(edges[::2], edges[1::2])]


def text_of(report: dict[str, Any], vocabulary: Vocabulary | None) -> str:
    """Formats the report for the terminal."""
    end, ids, documents, mask = report["document_end_token"], report["ids"], report["documents"], report["mask"]
    lines = [f"{report['path']}: {of_count(report['tokens'])} tokens of type {report['type']} (from {report['type_by']})"]
    of = f" of {of_count(vocabulary.size)}" if vocabulary else ""
    lines.append(f"  ids             {ids['lowest']} to {ids['highest']}, {of_count(ids['different'])}{of} occur")
    if documents:
        named = vocabulary.name(end) if vocabulary else str(end)
        open_end = "; the last has no end" if documents.get("last_without_end") else ""
        lines.append(f"  documents       {of_count(documents['count'])}, ended by {named}{open_end}")
        percent = ", ".join(f"{each}% {of_count(value)}" for each, value in documents["percentiles"].items())
        lines.append(f"  their tokens    {of_count(documents['shortest'])} to {of_count(documents['longest'])}, mean "
                     f"{documents['mean']:,.1f}; {percent}")
        if cut := documents.get("cut"):
            lines.append(f"  split           {cut['share_an_epoch']:.1%} of documents per epoch, at sequence_length "
                         f"{cut['sequence_length']}; {of_count(cut['longer_than_a_sample'])} are longer than a sample")
        if (packed := documents.get("packed")) and packed["samples"]:
            lines.append(f"  packed          {of_count(packed['samples'])} samples with packing: documents, "
                         f"{packed['padding']:.1%} padding")
    else:
        lines.append("  documents       unknown; set --end-of-document TOKEN")
    if mask:
        lines.append(f"  mask            {mask['path']}: {mask['counted'] / report['tokens']:.1%} of the tokens count as "
                     "targets")
    for number, each in enumerate(report["most_frequent"]):
        text = "" if each["text"] is None else f" {json.dumps(each['text'], ensure_ascii=False)}"
        lines.append(f"  {'most frequent' if number == 0 else '':<16}{each['token']}{text}: "
                     f"{each['count'] / report['tokens']:.2%}")
    for sample in report["samples"]:
        shown = json.dumps(sample["text"], ensure_ascii=False) if "text" in sample else " ".join(map(str, sample["ids"]))
        lines.append(f"  token {of_count(sample['token'])}: {shown}")
        for answer in sample.get("counted", []):
            lines.append(f"    counts: {json.dumps(answer, ensure_ascii=False)}")
    return "\n".join([*lines, "", str(report["spec"])])
