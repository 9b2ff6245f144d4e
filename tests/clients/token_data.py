"""Fixtures of the tests of `fsdpctl data`: a tokenizer, texts, and runs of a command in the test's directory."""

import json
import re

import pytest
import tokenizers
from fsdpd.data import command
from tokenizers import decoders, models, pre_tokenizers, trainers

END = "<|end_of_text|>"
MARKED = ("{% for m in messages %}<|turn|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
          "<|turn_end|>\n{% endgeneration %}{% else %}{{ m.content }}<|turn_end|>\n{% endif %}{% endfor %}"
          "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}")
UNMARKED = re.sub(r"{% (end)?generation %}", "", MARKED)
TEXTS = [f"Line {number}: the quick brown fox, naïve café 🦊, jumps {'over ' * (number % 7)}the lazy dog.\n"
         for number in range(300)] + [f"a text that speaks of {END} ends no document"]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Hugging Face directory: tokenizer.json and a chat template."""
    directory = tmp_path_factory.mktemp("model")
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|turn|>", "<|turn_end|>", END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    # Neither is to cut or to fill up a document.
    made.enable_truncation(8)
    made.enable_padding(length=64)
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": MARKED, "eos_token": "<|turn_end|>"}))
    return directory


@pytest.fixture(scope="session")
def library(model):
    """The same tokenizer, loaded with the library."""
    made = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    made.no_truncation()
    made.no_padding()
    return made


@pytest.fixture
def run(capfd, tmp_path, monkeypatch):
    """Runs a command in the test's directory; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = command.run(command.arguments_parser().parse_args([str(word) for word in words]))
        return (code, *capfd.readouterr())
    return call


def jsonl(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def ids_of(library, text):
    library.encode_special_tokens = True
    return library.encode(text, add_special_tokens=False).ids
