"""Tokenization of documents into token files. Threads of the library encode a batch while the next is read and the last
is written. Batches are written in input order, so the output does not depend on the number of threads."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import pathlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy

from fsdpd.data.output_file import OutputFile, Outputs
from fsdpd.data.progress import Progress, of_count
from fsdpd.data.sources import SIDES, Document, Sources
from fsdpd.data.token_files import DTYPES, FORMAT, description_of, entry, spec_lines
from fsdpd.data.vocabulary import Vocabulary
from fsdpd.faults import Fault

# Limits of a batch: enough work for every thread, and some tens of MiB of encodings.
BATCH_DOCUMENTS, BATCH_CHARACTERS = 2048, 2 << 20
BATCHES_AHEAD = 2


@dataclass(frozen=True)
class Settings:
    prefix: pathlib.Path
    type: str  # "auto" or a key of DTYPES
    end: int | None
    validation_share: float
    seed: int
    masks: bool
    pairs: bool  # Preference pairs: the chosen and the rejected documents are separate files.
    add_special_tokens: bool
    parse_special_tokens: bool
    overwrite: bool


class Part:
    """The training or validation part, or a side of it: a token file, an optional mask, and counters."""

    def __init__(self, name: str, side: str, kind: str, settings: Settings, outputs: Outputs) -> None:
        base = base_of(settings.prefix, name, side)
        self.name, self.side, self._dtype = name, side, numpy.dtype(DTYPES[kind])
        self.file = outputs.open(base.with_name(f"{base.name}.{kind}"))
        self.mask: OutputFile | None = outputs.open(base.with_name(f"{base.name}.mask")) if settings.masks else None
        self.documents = self.counted = self.longest = 0

    @property
    def tokens(self) -> int:
        return self.file.bytes // int(self._dtype.itemsize)

    def write(self, documents: list[tuple[Any, Any]]) -> None:
        if not documents:
            return
        self.documents += len(documents)
        self.longest = max(self.longest, *(len(ids) for ids, _ in documents))
        self.file.write(numpy.concatenate([ids for ids, _ in documents]).astype(self._dtype).tobytes())
        if self.mask:
            mask = numpy.concatenate([mask for _, mask in documents])
            self.counted += int(mask.sum())
            self.mask.write(mask.tobytes())


def base_of(prefix: pathlib.Path, part: str, side: str) -> pathlib.Path:
    return prefix.with_name(prefix.name + (side and f".{side}") + ("" if part == "train" else f".{part}"))


class Tokenizing:
    def __init__(self, vocabulary: Vocabulary, settings: Settings) -> None:
        self._vocabulary, self._settings = vocabulary, settings
        self.kind = settings.type if settings.type != "auto" else "u16" if vocabulary.size <= 1 << 16 else "u32"
        if vocabulary.size > 1 << (8 * numpy.dtype(DTYPES[self.kind]).itemsize):
            raise Fault(f"--type {self.kind}: is too small for the {vocabulary.size} ids of {vocabulary.path}")
        self._inner_ends = self._split_starts = self._without_targets = 0
        self._headers = self._examples = 0
        self._sides = SIDES if settings.pairs else ("",)
        if settings.pairs and settings.end is None:
            raise Fault("--as preference: pairs need an end-of-document token; set --end-of-document")

    def run(self, sources: Sources) -> list[dict[str, Any]]:
        """Writes all files. Returns the descriptions of the training files and of the optional validation files."""
        with Outputs(self._settings.overwrite) as outputs:
            names = ["train", "validation"] if self._settings.validation_share > 0 else ["train"]
            parts = [Part(name, side, self.kind, self._settings, outputs) for name in names for side in self._sides]
            progress = Progress("tokenize")
            for batch, encoded in self._encoded(sources.documents()):
                self._write(batch, encoded, parts)
                progress.show(sum(part.tokens for part in parts), sum(part.documents for part in parts), sources.fraction())
            for part in parts:
                if part.documents == 0:
                    fix = "use another --validation-share or --seed" if len(names) > 1 else "check the inputs"
                    raise Fault(f"the {part.name} part is empty: {sum(each.documents for each in parts)} documents were read; "
                                f"{fix}")
                if part.mask and part.counted == 0:
                    raise Fault(f"the {part.name} part has no targets: no token of its {part.documents} documents belongs to "
                                "an answer; check the inputs and the chat template")
            described = [self._described(part, sources) for part in parts]
            for part, description in zip(parts, described):
                outputs.open(description_of(part.file.path)).write((json.dumps(description, indent=1) + "\n").encode())
            outputs.finish()
        progress.end(sum(part.tokens for part in parts), sum(part.documents for part in parts))
        self._print_summary(sources, parts)
        return described

    def spec(self) -> str:
        prefix, mask = self._settings.prefix, self._settings.masks
        if self._settings.pairs:
            files = [f"{base_of(prefix, 'train', side)}.{self.kind}" for side in SIDES]
            return f"# document i of {files[0]} and of {files[1]} is a preference pair; jobs do not train on pairs yet\n"
        names = [f"{prefix}{part}" for part in ("", ".validation")]
        entries = [entry(f"{name}.{self.kind}", self.kind, f"{name}.mask" if mask else None) for name in names]
        return spec_lines(entries[0], entries[1] if self._settings.validation_share > 0 else None, self._settings.end,
                          self._vocabulary.size)

    def _encoded(self, documents: Iterator[Document]) -> Iterator[tuple[list[Document], list[tuple[Any, Any]]]]:
        executor = concurrent.futures.ThreadPoolExecutor(1)
        try:
            waiting: list[tuple[list[Document], concurrent.futures.Future[list[tuple[Any, Any]]]]] = []
            for batch in batches(documents):
                waiting.append((batch, executor.submit(self._encode, batch)))
                if len(waiting) > BATCHES_AHEAD:
                    first, future = waiting.pop(0)
                    yield first, future.result()
            for first, future in waiting:
                yield first, future.result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def _encode(self, batch: list[Document]) -> list[tuple[Any, Any]]:
        encoded: list[tuple[Any, Any]] = [(None, None)] * len(batch)
        for templated in (False, True):
            numbers = [number for number, document in enumerate(batch) if document.templated == templated]
            if not numbers:
                continue
            # A text that happens to have a special token's name is not to end a document or a turn.
            self._vocabulary.tokenizer.encode_special_tokens = not (templated or self._settings.parse_special_tokens)
            for number, made in zip(numbers, self._encode_texts([batch[number].text for number in numbers])):
                encoded[number] = made
        return encoded

    def _encode_texts(self, texts: list[str]) -> list[tuple[Any, Any]]:
        tokenizer, special = self._vocabulary.tokenizer, self._settings.add_special_tokens
        if not self._settings.masks:
            fast = tokenizer.encode_batch_fast(texts, add_special_tokens=special)
            return [(numpy.array(each.ids, "<u4"), None) for each in fast]
        # encode_batch_fast does not return character offsets.
        encodings = tokenizer.encode_batch(texts, add_special_tokens=special)
        return [(numpy.array(each.ids, "<u4"), numpy.array(each.offsets, "<i8").reshape(-1, 2)) for each in encodings]

    def _write(self, batch: list[Document], encoded: list[tuple[Any, Any]], parts: list[Part]) -> None:
        written: list[list[tuple[Any, Any]]] = [[] for _ in parts]
        for document, (ids, offsets) in zip(batch, encoded):
            mask = None if offsets is None else self._mask(document, ids, offsets)
            number = self._part_of(document) * len(self._sides) + self._sides.index(document.side)
            written[number].append(self._ended(document, ids, mask))
        for part, documents in zip(parts, written):
            part.write(documents)

    def _mask(self, document: Document, ids: Any, offsets: Any) -> Any:
        """Returns the mask of targets. A token is a target if it ends inside a target range, because the first token of
        an answer may include the space before it."""
        if document.counted is None:
            return numpy.ones(len(offsets), "u1")
        mask = numpy.zeros(len(offsets), "u1")
        for begin, end in document.counted:
            mask[(offsets[:, 1] > begin) & (offsets[:, 1] <= end)] = 1
            self._split_starts += int(((offsets[:, 0] < begin) & (offsets[:, 1] > begin)).any())
        self._without_targets += int(not mask.any())
        self._headers += int(document.header_counted)
        self._examples += int(document.expanded)
        # An end token added by --add-special-tokens has no characters. It is a target if the token before it is.
        if len(ids) > 1 and self._settings.end is not None and ids[-1] == self._settings.end and not offsets[-1].any():
            mask[-1] = mask[-2]
        return mask

    def _ended(self, document: Document, ids: Any, mask: Any) -> tuple[Any, Any]:
        end = self._settings.end
        if end is None:
            return ids, mask
        # --add-special-tokens may have added the end token already.
        ended = len(ids) > 0 and ids[-1] == end
        inner = bool((ids[:-1] == end).any() if ended else (ids == end).any())
        if inner and self._settings.pairs:
            raise Fault(f"{document.place}: a preference pair contains the end-of-document token {end}; set "
                        "--end-of-document to a token that is not in the texts")
        self._inner_ends += int(inner)
        if ended:
            return ids, mask
        if mask is not None:
            mask = numpy.append(mask, mask[-1:] if len(mask) else numpy.ones(1, "u1"))
        return numpy.append(ids, numpy.uint32(end)), mask

    def _part_of(self, document: Document) -> int:
        """Chooses the part by a hash of text and seed only, so that equal texts are always in the same part, and so are the
        documents of one record."""
        if self._settings.validation_share <= 0:
            return 0
        key = self._settings.seed.to_bytes(8, "little")
        digest = hashlib.blake2b((document.group or document.text).encode(), digest_size=8, key=key).digest()
        return int(int.from_bytes(digest, "big") / 2**64 < self._settings.validation_share)

    def _described(self, part: Part, sources: Sources) -> dict[str, Any]:
        end, vocabulary = self._settings.end, self._vocabulary
        made: dict[str, Any] = {
            "fsdpd_tokens": FORMAT, "part": part.name, "type": self.kind, "tokens": part.tokens,
            "documents": part.documents, "longest_document": part.longest, "sha256": part.file.sha256,
            "document_end_token": end, "document_end": None if end is None else vocabulary.tokenizer.id_to_token(end),
            "tokenizer": vocabulary.description(), "validation_share": self._settings.validation_share,
            "seed": self._settings.seed,
            "sources": [{"path": each.path, "documents": each.documents, "empty": each.empty, "skipped": each.skipped,
                         "expanded": each.expanded}
                        for each in sources.counts]}
        if part.side:
            other = SIDES[1 - SIDES.index(part.side)]
            made |= {"side": part.side, "pair": f"{base_of(self._settings.prefix, part.name, other).name}.{self.kind}"}
        if part.mask:
            made |= {"mask": part.mask.path.name, "mask_sha256": part.mask.sha256, "counted": part.counted}
        return made

    def _print_summary(self, sources: Sources, parts: list[Part]) -> None:
        def print_count(count: int, words: str) -> None:
            if count:
                print(f"tokenize: {of_count(count)} {words}", file=sys.stderr)

        print_count(sum(each.empty for each in sources.counts), "empty documents skipped")
        print_count(sum(each.skipped for each in sources.counts), "faulty documents skipped")
        print_count(sum(each.expanded for each in sources.counts), "conversations expanded into "
                    f"{of_count(self._examples)} examples, because the chat template rewrites earlier turns")
        print_count(self._headers, "documents count the role header of an answer as a target: the chat template does not render "
                    "add_generation_prompt as the beginning of the answer; set --chat-template to one that does")
        print_count(self._inner_ends, "documents contain the end-of-document token: each is trained as several documents")
        print_count(self._split_starts, "answers start inside a token, which is a target")
        print_count(self._without_targets, "documents have no targets")
        for part in parts:
            if part.mask:
                name = f"{part.name} ({part.side})" if part.side else part.name
                print_count(part.counted, f"tokens of {name} are targets, {part.counted / part.tokens:.1%}")


def batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if len(batch) >= BATCH_DOCUMENTS or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
