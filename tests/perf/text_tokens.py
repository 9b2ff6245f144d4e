#!/usr/bin/env python3
"""Creates a token file of real text that every machine with the project's Python environment has: the sources of torch,
transformers and numpy in the versions of third_party/python.txt.

    .python/bin/python tests/perf/text_tokens.py text.u16
    .python/bin/python tests/perf/text_tokens.py --text docs --text-bytes 200000 --vocabulary 512 docs.u16

Files (.py .md .rst .txt) are sorted by a hash of their paths, so that the text is a mixture, and read until the given number of
bytes. A byte-pair vocabulary is trained on the text. The output has 16-bit ids (type u16 of data.tokens) with an end token after
each file. The same text gives the same bytes. FILE.json next to it describes its origin; text_vs_fsdp2.py reads both.
"""

import argparse
import hashlib
import importlib.util
import json
import pathlib
import sys

import numpy
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

PACKAGES = ("numpy", "torch", "transformers")
SUFFIXES = {".py", ".md", ".rst", ".txt"}
END = "<|end|>"
SMALLEST_VOCABULARY, LARGEST_VOCABULARY = 257, 65536  # Each byte and the end; what 16 bits hold.


def files_of(directory):
    """Yields (name that is equal on all machines, path) in the order of the names' hashes."""
    roots = [directory] if directory else [pathlib.Path(importlib.util.find_spec(name).origin).parent for name in PACKAGES]
    found = [(f"{root.name}/{path.relative_to(root)}", path) for root in roots for path in root.rglob("*")
             if path.suffix in SUFFIXES and path.is_file()]
    return sorted(found, key=lambda each: hashlib.sha256(each[0].encode()).digest())


def documents_of(directory, text_bytes):
    """Yields files as bytes, `text_bytes` in total: the last one is truncated."""
    documents, left = [], text_bytes
    for _, path in files_of(directory):
        documents.append(path.read_bytes()[:left])
        left -= len(documents[-1])
        if left == 0:
            return documents
    sys.exit(f"--text-bytes {text_bytes}: there are {text_bytes - left} bytes of text in "
             f"{directory or ', '.join(PACKAGES)}")


def vocabulary_of(texts, entries):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=entries, special_tokens=[END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def make(path, directory, text_bytes, entries):
    """Writes `path` and its description, and returns the description."""
    documents = documents_of(directory, text_bytes)
    texts = [each.decode(errors="ignore") for each in documents]
    tokenizer = vocabulary_of(texts, entries)
    end = [tokenizer.token_to_id(END)]
    tokens = numpy.concatenate([each.ids + end for each in tokenizer.encode_batch(texts)]).astype("<u2")
    tokens.tofile(path)
    description = {"text": str(directory) if directory else ", ".join(PACKAGES), "files": len(documents),
                   "text_bytes": text_bytes, "text_sha256": hashlib.sha256(b"".join(documents)).hexdigest(),
                   "vocabulary": tokenizer.get_vocab_size(), "tokens": len(tokens), "tokens_sha256": sha256_of(path),
                   "tokenizers": tokenizers.__version__}
    beside(path).write_text(json.dumps(description, indent=1) + "\n")
    return description


def beside(path):
    return path.with_name(path.name + ".json")


def sha256_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_description(path):
    """Reads the description of a token file; exits if the two do not match."""
    for each in (path, beside(path)):
        if not each.is_file():
            sys.exit(f"--tokens {path}: {each} is not there; text_tokens.py makes both")
    description = json.loads(beside(path).read_text())
    if description["tokens_sha256"] != sha256_of(path):
        sys.exit(f"--tokens {path}: {beside(path)} describes another file: its tokens_sha256 differs")
    return description


def add_flags(parser):
    parser.add_argument("--text", type=pathlib.Path, metavar="DIR", help="of the text; default: those packages")
    parser.add_argument("--text-bytes", type=int, default=16_000_000)
    parser.add_argument("--vocabulary", type=int, default=32768, help="entries at most")


def check_flags(parser, options):
    if options.text and not options.text.is_dir():
        parser.error(f"--text {options.text} is no directory")
    if options.text_bytes < 1:
        parser.error("--text-bytes: at least 1")
    if not SMALLEST_VOCABULARY <= options.vocabulary <= LARGEST_VOCABULARY:
        parser.error(f"--vocabulary: from {SMALLEST_VOCABULARY} to {LARGEST_VOCABULARY}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path)
    add_flags(parser)
    options = parser.parse_args()
    check_flags(parser, options)
    print(json.dumps(make(options.file, options.text, options.text_bytes, options.vocabulary)))


if __name__ == "__main__":
    main()
