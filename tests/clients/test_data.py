"""Tests of `fsdpctl data`: token files against the output of the tokenizer library, and a job that trains on them."""

import collections
import gzip
import hashlib
import itertools
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys

import fsdpd
import numpy
import pytest
import tokenizers
import transformers
import yaml
from fsdpd.data import chats, command, packing, sources
from tokenizers import models, processors

from clients.conftest import TOOLS
from clients.jobs import environment, small, written
from clients.token_data import END, MARKED, TEXTS, UNMARKED, ids_of, jsonl, library, model, run  # noqa: F401
from harness import wheel
from harness.cluster import fsdpctl
from harness.programs import ROOT
from harness.small_disk import fill, small_disk
from harness.wait import wait_until

LOAD_TEMPLATE = chats.load_template
def process(site, *words, **kwargs):
    return subprocess.Popen([sys.executable, "-m", "fsdpd.data", *map(str, words)], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(site)},
                            **kwargs)


def documents_of(path, end, dtype="<u2"):
    ids = numpy.fromfile(path, dtype).tolist()
    assert ids[-1] == end
    return [tuple(each) for ended, each in itertools.groupby(ids, lambda token: token == end) if not ended]


def test_tokens_match_library_with_document_ends(run, library, model, tmp_path):
    jsonl(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS[:200]] + [{"text": ""}])
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write("\ufeff" + "\n".join(json.dumps({"text": text, "more": 1}) for text in TEXTS[200:]))
    (tmp_path / "c.txt").write_text("two lines\r\nand one document\n")
    code, out, err = run("tokenize", "a.jsonl", "b.jsonl.gz", "c.txt", "--tokenizer", model, "--out", "all")
    assert code == 0, err
    end = library.token_to_id(END)
    texts = TEXTS + ["two lines\r\nand one document\n"]
    expected = [token for text in texts for token in ids_of(library, text) + [end]]
    assert numpy.fromfile("all.u16", "<u2").tolist() == expected
    assert yaml.safe_load(out) == {"data": {"tokens": [{"path": "all.u16", "type": "u16"}], "document_end_token": end}}
    described = json.loads((tmp_path / "all.u16.json").read_text())
    assert (described["tokens"], described["documents"]) == (len(expected), len(texts))
    assert described["sha256"] == hashlib.sha256((tmp_path / "all.u16").read_bytes()).hexdigest()
    assert described["tokenizer"]["vocabulary"] == library.get_vocab_size()
    assert [each["empty"] for each in described["sources"]] == [1, 0, 0]
    assert "tokens/s" in err and "1 empty" in err
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "b.jsonl.gz", "c.txt", "all.u16", "all.u16.json"}
    # Nothing is replaced unless it is said.
    code, _, err = run("tokenize", "c.txt", "--tokenizer", model, "--out", "all")
    assert code == 2 and "all.u16: already exists" in err
    code, _, _ = run("tokenize", "c.txt", "--tokenizer", model, "--out", "all", "--type", "u32", "--documents", "line")
    assert code == 0 and len(documents_of("all.u32", end, "<u4")) == 2


def test_output_does_not_depend_on_threads_or_source(site, model, tmp_path):
    # Enough for several batches.
    source = jsonl(tmp_path / "in.jsonl", [{"text": f"{number} {TEXTS[number % 300]}"} for number in range(5000)])
    flags = ["--tokenizer", model, "--validation-share", "0.1"]
    for name, more in {"one": ["--workers", "1"], "three": ["--workers", "3"]}.items():
        done = process(site, "tokenize", source, "--out", tmp_path / name, *flags, *more)
        assert done.wait(120) == 0, done.stderr.read()
    piped = process(site, "tokenize", "-", "--format", "jsonl", "--out", tmp_path / "piped", *flags)
    piped.communicate(source.read_bytes(), timeout=120)
    for part in ("u16", "validation.u16"):
        contents = {(tmp_path / f"{name}.{part}").read_bytes() for name in ("one", "three", "piped")}
        assert len(contents) == 1 and len(contents.pop()) > 1000


def test_validation_split_depends_only_on_text(run, library, model, tmp_path):
    end = library.token_to_id(END)
    jsonl(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    jsonl(tmp_path / "b.jsonl", [{"text": text} for text in (TEXTS + TEXTS[:50])[::-1]])
    parts = {}
    for name in ("a", "b"):
        code, out, err = run("tokenize", f"{name}.jsonl", "--tokenizer", model, "--out", name, "--validation-share", 0.2,
                             "--seed", 7)
        assert code == 0, err
        assert yaml.safe_load(out)["data"]["validation"] == [{"path": f"{name}.validation.u16", "type": "u16"}]
        parts[name] = [set(documents_of(f"{name}{part}.u16", end)) for part in ("", ".validation")]
    assert parts["a"] == parts["b"]
    train, validation = parts["a"]
    assert not train & validation and train | validation == {tuple(ids_of(library, text)) for text in TEXTS}
    assert 30 < len(validation) < 90
    run("tokenize", "a.jsonl", "--tokenizer", model, "--out", "other", "--validation-share", 0.2, "--seed", 8)
    assert set(documents_of("other.validation.u16", end)) != validation


CHATS = [[{"role": "user", "content": f"what is {number}?"}, {"role": "assistant", "content": f"it is naïve 🦊 {number}"},
          {"role": "user", "content": "and then?"}, {"role": "assistant", "content": "the lazy dog"}]
         for number in range(20)]


@pytest.mark.parametrize("template", [None, UNMARKED], ids=["marked", "unmarked"])
def test_chat_masks_match_transformers(run, model, library, tmp_path, template):
    jsonl(tmp_path / "chats.jsonl", [{"messages": messages} for messages in CHATS])
    (tmp_path / "template.jinja").write_text(template or "")
    flags = ["--chat-template", "template.jinja"] if template else []
    code, out, err = run("tokenize", "chats.jsonl", "--as", "chat", "--tokenizer", model, "--out", "chats", *flags)
    assert code == 0, err
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"), chat_template=MARKED)
    ids, mask = [], []
    for messages in CHATS:
        made = theirs.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True,
                                          padding=False, truncation=False)
        ids += made["input_ids"] + [library.token_to_id(END)]
        mask += made["assistant_masks"] + [made["assistant_masks"][-1]]
    assert numpy.fromfile("chats.u16", "<u2").tolist() == ids
    assert numpy.fromfile("chats.mask", "u1").tolist() == mask
    assert yaml.safe_load(out)["data"]["tokens"] == [{"path": "chats.u16", "mask": "chats.mask", "type": "u16"}]
    code, out, _ = run("inspect", "chats.u16", "--tokenizer", model, "--sample-tokens", 400)
    assert code == 0 and "it is naïve 🦊 0<|turn_end|>" in out and f"{sum(mask) / len(mask):.1%} of the tokens" in out


def test_completion_mask_covers_only_completion(run, model, library, tmp_path):
    jsonl(tmp_path / "in.jsonl", [{"prompt": "the quick", "completion": " brown fox"},
                                  {"prompt": CHATS[0][:3], "completion": CHATS[0][3:]}])
    code, _, err = run("tokenize", "in.jsonl", "--as", "completion", "--tokenizer", model, "--out", "out")
    assert code == 0, err
    ids, mask = numpy.fromfile("out.u16", "<u2"), numpy.fromfile("out.mask", "u1")
    library.encode_special_tokens = True
    assert library.decode(ids[mask == 1].tolist(), skip_special_tokens=False) == \
        f" brown fox{END}the lazy dog<|turn_end|>\n{END}"


def test_parses_special_tokens_only_from_template(run, model, library, tmp_path, monkeypatch):
    templates = []
    monkeypatch.setattr(chats, "load_template", lambda *given: templates.append(given) or LOAD_TEMPLATE(*given))
    text, end = "a text that speaks of <|turn_end|> and", library.token_to_id(END)
    jsonl(tmp_path / "in.jsonl", [{"prompt": text, "completion": " so on"},
                                  {"prompt": CHATS[0][:3], "completion": CHATS[0][3:]}] * 3)
    conversation = "".join(f"<|turn|>{each['role']}\n{each['content']}<|turn_end|>\n" for each in CHATS[0])
    library.encode_special_tokens = False
    parsed = {given: library.encode(given, add_special_tokens=False).ids for given in (conversation, text + " so on")}
    # Of the chat: each turn begins and ends with one token.
    turn_end = library.token_to_id("<|turn_end|>")
    assert (parsed[conversation].count(turn_end), parsed[text + " so on"].count(turn_end)) == (4, 1)
    for flags, of_text in {(): ids_of(library, text + " so on"),
                           ("--parse-special-tokens",): parsed[text + " so on"]}.items():
        code, _, err = run("tokenize", "in.jsonl", "--as", "completion", "--tokenizer", model, "--out", "out",
                           "--overwrite", *flags)
        assert code == 0, err
        assert numpy.fromfile("out.u16", "<u2").tolist() == (of_text + [end] + parsed[conversation] + [end]) * 3
    assert len(templates) == 2, "once a run"


def test_end_token_of_post_processor_has_mask_of_answer(run, model, library, tmp_path):
    end = library.token_to_id(END)
    made = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    made.post_processor = processors.TemplateProcessing(
        single=f"<|turn|> $A {END}", special_tokens=[("<|turn|>", library.token_to_id("<|turn|>")), (END, end)])
    made.save(str(tmp_path / "ending.json"))
    jsonl(tmp_path / "in.jsonl", [{"prompt": "the quick", "completion": " brown fox"}, {"prompt": "lazy", "completion": ""}])
    code, _, err = run("tokenize", "in.jsonl", "--as", "completion", "--tokenizer", "ending.json", "--out", "out",
                       "--add-special-tokens")
    assert code == 0 and "1 documents have no targets" in err, err
    ids, mask = numpy.fromfile("out.u16", "<u2"), numpy.fromfile("out.mask", "u1")
    begin = [library.token_to_id("<|turn|>")]
    assert ids.tolist() == [token for text in ("the quick brown fox", "lazy")
                            for token in begin + ids_of(library, text) + [end]]
    assert ids[mask == 1].tolist() == ids_of(library, " brown fox") + [end]


@pytest.mark.parametrize("name, content, words, output", [
    ("a.jsonl", b'{"text": "x"}\n{"text": \n', [], "a.jsonl:2:10: invalid JSON: "),
    ("a.jsonl", b'{"text": "x"}\n\n["y"]\n', [], "a.jsonl:3: is a list, want an object"),
    ("a.jsonl", b'{"body": "x"}\n', [], "a.jsonl:1: no field 'text' (got body); set --field"),
    ("a.jsonl", b'{"text": 7}\n', [], "a.jsonl:1: field 'text' is a number, want a string"),
    ("a.jsonl", b'{"text": "a\xff"}\n', [], "a.jsonl:1: byte 11 (0xff) is not UTF-8"),
    ("a.jsonl", b'{"text": "ab\\ud83e"}\n', [], "a.jsonl:1: character 2 of the text is an unpaired surrogate"),
    ("a.txt", b"caf\xe9", [], "a.txt: byte 3 (0xe9) is not UTF-8"),
    ("a.jsonl.gz", gzip.compress(b'{"text": "x"}\n' * 1000)[:-20], [], "a.jsonl.gz: invalid or truncated gzip"),
    ("a.jsonl.xz", b"", [], "xz is not supported; decompress it: xz -dc a.jsonl.xz | fsdpctl data tokenize -"),
    ("a.pdf", b"", [], "the name does not end in .txt, "),
    ("a.json", b"[]", [], "a JSON array is not supported; convert it: jq -c '.[]' a.json > a.jsonl"),
    ("a.txt", b"x", ["--as", "chat"], "a text file is not supported with this --as"),
    ("a.jsonl", b"{}", ["--format", "alpaca"], "--format alpaca: is not supported with --as text; set --as chat"),
    ("a.jsonl", b"{}", ["--field", "body=x"], "unknown field 'body' (want text); write --field FIELD=NAME"),
    ("a.jsonl", b"{}", ["--as", "completion", "--field", "x"], "several fields are read; write --field prompt=x"),
    ("a.txt", b"", [], "the train part is empty: 0 documents were read"),
    ("a.txt", b"x", ["--end-of-document", "<eot>"], "(special tokens: <|turn|>, <|turn_end|>"),
    ("a.txt", b"x", ["--end-of-document", "99999"], "is above the last id "),
    ("a.txt", b"x", ["--type", "u8"], "--type u8: is too small for the "),
    ("a.txt", b"x", ["--tokenizer", "a.txt"], "a.txt: tokenizers 0."),
    ("a.txt", b"x", ["--tokenizer", "absent.json"], "absent.json: No such file"),
    ("a.txt", b"x", ["--out", "no/where"], "no directory no"),
    ("a.jsonl", b'{"messages": []}\n', ["--as", "chat"], "a.jsonl:1: field 'messages' is empty, want a list of messages"),
    ("a.jsonl", b'{"messages": [{"content": "x"}]}\n', ["--as", "chat"], "message 0 of 'messages': no field 'role' (got content)"),
    ("a.jsonl", b'{"prompt": "x", "completion": []}\n', ["--as", "completion"], "'prompt' is a string and 'completion' is a "
     "list"),
])
def test_reports_place_of_unreadable_input_and_removes_output(run, model, tmp_path, name, content, words, output):
    (tmp_path / name).write_bytes(content)
    code, out, err = run("tokenize", name, "--tokenizer", model, "--out", "out", *words)
    assert code == 2 and output in err and not out, err
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_skip_faulty_counts_documents(run, model, library, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\n{"text": \n{"text": "\xff"}\n{"text": "two"}\n')
    code, _, err = run("tokenize", "a.jsonl", "--tokenizer", model, "--out", "out", "--skip-faulty")
    assert code == 0 and "a.jsonl:2:" in err and "a.jsonl:3:" in err and "2 faulty documents skipped" in err
    assert documents_of("out.u16", library.token_to_id(END)) == [tuple(ids_of(library, text)) for text in ("one", "two")]


def test_rejects_or_skips_large_documents(run, model, library, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_BYTES", 1 << 20)
    large = b"x " * (3 << 19)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\n{"text": "' + large + b'"}\n{"text": "two"}\n{"text": "' + large)
    (tmp_path / "b.txt").write_bytes(large)
    (tmp_path / "c.txt").write_bytes(b"three")
    for name, output in {"a.jsonl": "a.jsonl:2: the line is longer than 1 MiB",
                       "b.txt": "b.txt: one document is larger than 1 MiB"}.items():
        code, _, err = run("tokenize", name, "--tokenizer", model, "--out", "out")
        assert code == 2 and output in err and "--skip-faulty skips such documents" in err
    code, _, err = run("tokenize", "a.jsonl", "b.txt", "c.txt", "--tokenizer", model, "--out", "out", "--skip-faulty")
    assert code == 0 and "a.jsonl:4: the line" in err and "3 faulty documents skipped" in err
    assert documents_of("out.u16", library.token_to_id(END)) == \
        [tuple(ids_of(library, text)) for text in ("one", "two", "three")]


def test_interrupt_removes_output_and_concurrent_run_is_rejected(site, model, tmp_path):
    out = tmp_path / "out"
    first = process(site, "tokenize", "-", "--format", "txt", "--documents", "line", "--tokenizer", model, "--out", out)
    part = tmp_path / ".out.u16.part"
    wait_until("it has begun to write", part.exists)
    second = process(site, "tokenize", "-", "--format", "txt", "--tokenizer", model, "--out", out)
    _, err = second.communicate(b"text", timeout=60)
    assert second.returncode == 2 and b"out.u16: another run is writing this file" in err
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    assert first.stderr.read() == b"fsdpctl data: interrupted\n"
    first.stdin.close()
    assert not list(tmp_path.iterdir())


def test_full_disk_leaves_no_file(site, run, model, tmp_path):
    source = jsonl(tmp_path / "in.jsonl", [{"text": TEXTS[number % 300]} for number in range(3000)])
    directory = tmp_path / "limited"
    directory.mkdir()
    limited = process(site, "tokenize", source, "--tokenizer", model, "--out", directory / "out",
                      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)))
    _, err = limited.communicate(timeout=120)
    assert limited.returncode == 2 and b"out: File too large" in err and not list(directory.iterdir())
    with small_disk(tmp_path / "disk") as disk:
        filler = fill(disk)
        code, _, err = run("tokenize", source, "--tokenizer", model, "--out", disk / "out")
        assert code == 2 and "No space left on device" in err and list(disk.iterdir()) == [filler]


@pytest.fixture
def files(run, model, tmp_path, library):
    """Two token files; returns their end-of-document token."""
    jsonl(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS[:200]])
    jsonl(tmp_path / "b.jsonl", [{"text": text} for text in TEXTS[200:]])
    for name in ("a", "b"):
        assert run("tokenize", f"{name}.jsonl", "--tokenizer", model, "--out", name)[0] == 0
    return library.token_to_id(END)


def test_inspect_counts_tokens_and_documents(run, files, model, tmp_path):
    ids = numpy.fromfile("a.u16", "<u2")
    lengths = numpy.array([len(each) + 1 for each in documents_of("a.u16", files)])
    code, out, err = run("inspect", "a.u16", "--tokenizer", model, "-o", "json", "--sequence-length", 31, "--offset", 5,
                         "--samples", 2, "--sample-tokens", 4)
    assert code == 0, err
    reported = json.loads(out)
    assert (reported["tokens"], reported["type"], reported["document_end_token"]) == (len(ids), "u16", files)
    assert reported["ids"] == {"lowest": ids.min(), "highest": ids.max(), "different": len(set(ids.tolist()))}
    documents = reported["documents"]
    assert (documents["count"], documents["shortest"], documents["longest"]) == (200, lengths.min(), lengths.max())
    assert documents["percentiles"]["50"] == sorted(lengths)[99]
    # Over all places where cuts can begin.
    ends = numpy.cumsum(lengths)
    cut = [sum((numpy.arange(begin + 1, end) % 32 == at).any() for begin, end in zip(ends - lengths, ends))
           for at in range(32)]
    assert documents["cut"]["share_an_epoch"] == pytest.approx(numpy.mean(cut) / 200, abs=1e-4)
    (token, count), = collections.Counter(ids.tolist()).most_common(1)
    assert (reported["most_frequent"][0]["token"], reported["most_frequent"][0]["count"]) == (token, count)
    assert [sample["ids"] for sample in reported["samples"]] == [ids[5:9].tolist(), ids[9:13].tolist()]


def test_inspect_reads_files_of_other_programs(run, tmp_path):
    tokens = numpy.arange(70000) % 50000
    tokens[99::100] = 3
    for name, dtype in {"plain": "<u2", "wide": "<u4"}.items():
        tokens.astype(dtype).tofile(name)
    tokens.astype("<i4").tofile("m.bin")
    (tmp_path / "m.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 2, 3) + struct.pack("<2i", 30000, 40000)
                                     + struct.pack("<2q", 0, 120000) + struct.pack("<3q", 0, 1, 2))
    for name, kind in {"plain": "u16", "wide": "u32", "m": "megatron", "m.bin": "megatron", "m.idx": "megatron"}.items():
        code, out, err = run("inspect", name, "--end-of-document", 3, "-o", "json")
        reported = json.loads(out)
        assert code == 0 and (reported["type"], reported["tokens"], reported["documents"]["count"]) == (kind, 70000, 702), (name, err)
        assert yaml.safe_load(reported["spec"])["data"]["tokens"][0]["type"] == kind


@pytest.mark.parametrize("content, mask, words, output", [
    (b"\1\0\2", None, ["--type", "u16"], "x: size is not a multiple of the token size (got 3 bytes, 2 per token; the last token starts at byte 2)"),
    (b"\1\0\2\1\7\0", None, ["--type", "u16", "--vocab-size", "256"], "x: token 258 at byte 2 is not below the vocabulary "
     "size 256"),
    (b"\1\0\2\0", b"\1", ["--type", "u16", "--mask", "mask"], "mask: has 1 bytes, want one for each of "
     "the 2 tokens of x"),
    (b"\1\0\2\0", b"\1" + b"1", ["--type", "u16", "--mask", "mask"], "mask: byte 1 is 49, want 1 (target) or 0"),
])
def test_inspect_reports_byte_of_error(run, tmp_path, content, mask, words, output):
    (tmp_path / "x").write_bytes(content)
    (tmp_path / "mask").write_bytes(mask or b"")
    code, out, err = run("inspect", "x", *words)
    assert code == 9 and output in err and "data:" in out


def test_inspect_detects_changed_file_and_other_tokenizer(run, files, model, tmp_path):
    other = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    other.save("other.json")
    code, _, err = run("inspect", "a.u16", "--tokenizer", "other.json", "--vocab-size", 400)
    assert code == 9 and "was created with another tokenizer" in err
    with open("a.u16", "r+b") as file:
        file.write(b"\1\0")
    code, _, err = run("inspect", "a.u16")
    assert code == 9 and "does not match the sha256 in its .json" in err
    numpy.save("x.npy", numpy.arange(9))
    code, _, err = run("inspect", "x.npy")
    assert code == 2 and ".npy files are not supported" in err
    code, _, err = run("inspect", "b.u16", "--offset", 10**9)
    assert code == 2 and "--offset 1000000000" in err


def test_pack_merges_and_shuffles_documents(run, files, tmp_path, monkeypatch):
    # Several slices of documents, the last not full.
    monkeypatch.setattr(packing, "BOUNDS_PER_CHUNK", 64)
    before = documents_of("a.u16", files) + documents_of("b.u16", files)
    for name in ("a", "b"):
        # Of each token whether it is odd, so that a mask that went elsewhere is seen.
        (numpy.fromfile(f"{name}.u16", "<u2") % 2).astype("u1").tofile(f"{name}.mask")
        described = json.loads((tmp_path / f"{name}.u16.json").read_text())
        (tmp_path / f"{name}.u16.json").write_text(json.dumps({**described, "mask": f"{name}.mask"}))
    code, out, err = run("pack", "a.u16", "b.u16", "--out", "p", "--seed", 3)
    assert code == 0, err
    after = documents_of("p.u16", files)
    assert sorted(after) == sorted(before) and after != before
    # Shuffled, and not only the files' order: neighbors of before are no neighbors now.
    pairs = set(zip(before, before[1:]))
    assert sum(pair in pairs for pair in zip(after, after[1:])) < 20
    ids = numpy.fromfile("p.u16", "<u2")
    assert (numpy.fromfile("p.mask", "u1") == ids % 2).all()
    assert yaml.safe_load(out)["data"]["document_end_token"] == files
    assert run("inspect", "p.u16")[0] == 0
    for name, flags in {"again": ["--seed", 3], "other": ["--seed", 4], "plain": ["--no-shuffle"]}.items():
        assert run("pack", "a.u16", "b.u16", "--out", name, *flags)[0] == 0
    assert (tmp_path / "again.u16").read_bytes() == (tmp_path / "p.u16").read_bytes() != (tmp_path / "other.u16").read_bytes()
    assert documents_of("plain.u16", files) == before


# 2^32 + 7 became 7.
@pytest.mark.parametrize("token", [2**32 + 7, -1])
def test_pack_rejects_ids_above_32_bits(run, tmp_path, token):
    numpy.array([5, 3, token, 3], "<i8").tofile("m.bin")
    (tmp_path / "m.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 5, 1, 2) + struct.pack("<i", 4)
                                     + struct.pack("<q", 0) + struct.pack("<2q", 0, 1))
    code, _, err = run("pack", "m", "--out", "p", "--end-of-document", 3)
    assert code == 2 and f"m: token {token} at byte 16 is out of range; ids are from 0 to 4294967295" in err
    assert not list(tmp_path.glob("p.*"))


def test_pack_adds_missing_ends_and_rejects_mismatched_files(run, files, model, tmp_path):
    numpy.array([5, 6, files, 7, 8], "<u2").tofile("open.u16")
    code, _, err = run("pack", "open.u16", "a.u16", "--out", "p", "--end-of-document", files)
    assert code == 0 and "to 1 documents at the ends of files" in err
    assert {(5, 6), (7, 8)} <= set(documents_of("p.u16", files))
    described = json.loads((tmp_path / "b.u16.json").read_text())
    described["tokenizer"]["sha256"] = "0" * 64
    (tmp_path / "b.u16.json").write_text(json.dumps(described))
    code, _, err = run("pack", "a.u16", "b.u16", "--out", "q")
    assert code == 2 and "different tokenizers" in err
    code, _, err = run("pack", "a.u16", "open.u16", "--out", "q")
    assert code == 2 and "--end-of-document ID" in err
    assert not list(tmp_path.glob("*q.u16*"))


@pytest.fixture
def path(tmp_path):
    """A PATH with fsdpctl-data, as installed by `pip install`."""
    directory = wheel.commands(tmp_path / "bin")
    return f"{directory}:{os.environ['PATH']}"


def test_job_trains_on_output_of_fsdpctl_data(shared, path, model, library, tmp_path):
    jsonl(tmp_path / "chats.jsonl", [{"messages": messages} for messages in CHATS * 5 + [
        [{"role": "user", "content": text}, {"role": "assistant", "content": text[:40]}] for text in TEXTS]])
    made = fsdpctl("data", "tokenize", "chats.jsonl", "--as", "chat", "--tokenizer", model, "--out", "chats",
                   "--validation-share", "0.2", cwd=tmp_path, env={"PATH": path})
    assert made.code == 0, made.err
    data = {**yaml.safe_load(made.out)["data"], "synthetic": None, "sequence_length": 512}
    job = small(steps=8, data=data, train={"micro_batch": 2, "global_batch": 8, "evaluation": {"every_steps": 8}})
    job["model"]["llama"]["vocab_size"] = library.get_vocab_size()
    with fsdpd.Client(environ=environment(shared)) as client:
        job_id = client.submit(written(tmp_path, job)).job.id
        ended = client.wait(job_id)
    assert ended.state == fsdpd.JobState.JOB_STATE_SUCCEEDED, ended.reason
    assert data["packing"] == "documents" and not ended.warnings
    ids = numpy.fromfile(tmp_path / "chats.validation.u16", "<u2")
    mask = numpy.fromfile(tmp_path / "chats.validation.mask", "u1")
    # Each token is a target once, where it counts and does not follow a document's end.
    assert ended.last_step.evaluation.tokens == int((mask[1:] * (ids[:-1] != data["document_end_token"])).sum())
    reported = fsdpctl("data", "inspect", tmp_path / "chats.u16", env={"PATH": path})
    assert reported.code == 0 and "validation: [{path: " in reported.out
    reported = fsdpctl("data", "inspect", tmp_path / "chats.u16", "--sequence-length", "512", "-o", "json", env={"PATH": path})
    assert json.loads(reported.out)["documents"]["packed"]["samples"] == ended.epoch_samples


def test_fsdpctl_runs_program_from_path(path, tmp_path):
    code, out, err = run_fsdpctl(path, "data", "inspect", "no-such-file")
    assert (code, out) == (2, "") and "fsdpctl data: no-such-file: No such file" in err
    own = tmp_path / "bin/fsdpctl-own"
    own.write_text('#!/bin/sh\necho "$# $1 $2"; cat; test "$3" != dies || kill -USR1 $$; exit 77\n')
    own.chmod(0o755)
    assert run_fsdpctl(path, "own", "a b", "--help", stdin="words") == (77, "2 a b --help\nwords", "")
    assert run_fsdpctl(path, "own", "-", "-", "dies")[0] == -signal.SIGUSR1
    shutil.copy(own, tmp_path / "bin/fsdpctl-version")
    help_text = run_fsdpctl(path, "--help")[1]
    assert re.search(rf"\n  own +{re.escape(str(own))}\n", help_text) and "not installed" not in help_text
    assert "fsdpctl-version" not in help_text
    assert run_fsdpctl(path, "version")[0] != 77, "fsdpctl's own commands stay its own"
    assert run_fsdpctl(path, "__complete", "da")[1] == "data\n"
    assert run_fsdpctl(path, "__complete", "data", "")[1] == ":files\n"
    code, _, err = run_fsdpctl(path, "--timeout", "3", "own")
    assert code == 2 and "write `fsdpctl own ...`, with flags after it" in err
    code, _, err = run_fsdpctl("/nowhere-at-all", "data")
    assert code == 2 and "unknown command 'data'; it is a plugin that is not installed" in err and "pip install" in err


def run_fsdpctl(path, *words, stdin=None):
    done = fsdpctl(*words, stdin=stdin, env={"PATH": path, "FSDPD_SERVER": "127.0.0.1:1"})
    return done.code, done.out, done.err


def test_missing_libraries_name_install_command(site, model, tmp_path):
    (tmp_path / "a.txt").write_text("x")
    # The Python of the tools has none of them.
    done = subprocess.run([TOOLS / "python", "-m", "fsdpd.data", "tokenize", "a.txt", "--tokenizer", model, "--out", "a"],
                          cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert done.returncode == 2 and "pip install 'CLONE/clients/python[data]'" in done.stderr, done.stderr
    assert "fsdpctl-data = fsdpd.data.command:main" in next(site.glob("*.dist-info/entry_points.txt")).read_text()


def test_accepts_documented_commands():
    """Parses the commands of docs and help."""
    pages = (ROOT / "docs/data.md").read_text().replace("\\\n", " ")
    parser = command.arguments_parser()
    helps = [sub.epilog for action in parser._subparsers._group_actions for sub in action.choices.values()]
    lines = re.findall(r"^(?:.*\| )?(?:\$ | +)?fsdpctl data (.+)$", pages + "\n" + "\n".join(helps), re.MULTILINE)
    assert len(lines) >= 8
    for line in lines:
        parser.parse_args(re.split(r"\s+#\s", line)[0].split())
