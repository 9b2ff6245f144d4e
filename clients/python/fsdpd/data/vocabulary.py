"""Vocabulary of a Hugging Face tokenizer.json, loaded with the library `tokenizers`."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from fsdpd.faults import Fault

# End-of-document tokens of common tokenizers that have several special tokens. End-of-turn tokens are not included.
KNOWN_ENDS = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<|eos|>", "[EOS]")


class Vocabulary:
    def __init__(self, path: pathlib.Path, threads: int | None = None) -> None:
        """`threads` applies to all vocabularies of the process; None: one per core."""
        self.path = path / "tokenizer.json" if path.is_dir() else path
        data = self.path.read_bytes()
        self.sha256 = hashlib.sha256(data).hexdigest()
        # The library reads these variables when it is imported and when it first encodes a batch.
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        if threads is not None:
            os.environ["RAYON_NUM_THREADS"] = str(threads)
        import tokenizers
        self.library = f"tokenizers {tokenizers.__version__}"
        try:
            self.tokenizer = tokenizers.Tokenizer.from_buffer(data)
        except Exception as error:  # The library raises plain Exception.
            raise Fault(f"{self.path}: {self.library} cannot read it as a tokenizer.json: {error}") from None
        # Both would change the length of documents.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.size = max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if self.size == 0:
            raise Fault(f"{self.path}: has no tokens")

    def end_of_document(self, requested: str | None) -> int | None:
        """Returns the end-of-document token for a name, an id or "none". None: derives it from the special tokens."""
        if requested == "none":
            return None
        if requested is not None and requested.isdecimal():
            if int(requested) >= self.size:
                raise Fault(f"--end-of-document {requested}: is above the last id {self.size - 1} of {self.path}")
            return int(requested)
        special = {token.content: number for number, token in self.tokenizer.get_added_tokens_decoder().items()
                   if token.special}
        if requested is not None:
            found: int | None = self.tokenizer.token_to_id(requested)
            if found is None:
                raise Fault(f"--end-of-document {requested}: unknown token of {self.path} (special tokens: {listed(special)})")
            return found
        candidates = [name for name in special if name in KNOWN_ENDS] or (list(special) if len(special) == 1 else [])
        if len(candidates) != 1:
            raise Fault(f"{self.path}: no unique end-of-document token (special tokens: {listed(special)}); set "
                        "--end-of-document to a token or none")
        return int(special[candidates[0]])

    def name(self, token: int) -> str:
        name: str | None = self.tokenizer.id_to_token(token)
        return f"{token}" if name is None else f"{token} {json.dumps(name, ensure_ascii=False)}"

    def decode(self, tokens: Sequence[int]) -> str:
        known = [each for each in tokens if 0 <= each < self.size]
        text: str = self.tokenizer.decode(known, skip_special_tokens=False)
        return text

    def description(self) -> dict[str, Any]:
        return {"path": str(self.path), "sha256": self.sha256, "vocabulary": self.size, "library": self.library}


def listed(names: dict[str, int]) -> str:
    shown = ", ".join(sorted(names, key=lambda name: names[name])[:12])
    return (shown + (", ..." if len(names) > 12 else "")) or "(none)"
