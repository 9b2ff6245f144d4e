"""Tests of the inputs of `fsdpctl data tokenize`: Parquet, Arrow, Zstandard, data sets of Hugging Face's library `datasets`, and
records of conversations."""

import json
import os
import subprocess
import sys

import numpy
import pytest
import tokenizers

from clients.token_data import END, TEXTS, ids_of, jsonl, library, model, run  # noqa: F401
from harness import datasets_package

sys.path.append(str(datasets_package.installed()))
os.environ["HF_HUB_OFFLINE"] = "1"
import datasets  # noqa: E402
import pyarrow  # noqa: E402
import pyarrow.feather  # noqa: E402
import pyarrow.parquet  # noqa: E402
import zstandard  # noqa: E402

datasets.disable_progress_bars()


def table():
    return pyarrow.table({"text": TEXTS, "number": list(range(len(TEXTS)))})


def write_stream(path, content):
    with pyarrow.ipc.new_stream(path, content.schema) as writer:
        writer.write_table(content, 100)


def write_zstd(path, data, frames=2):
    size = len(data) // frames + 1
    path.write_bytes(b"".join(zstandard.compress(data[begin:begin + size]) for begin in range(0, len(data), size)))


def expected(library):
    return [token for text in TEXTS for token in ids_of(library, text) + [library.token_to_id(END)]]


WRITERS = {
    "a.parquet": lambda path: pyarrow.parquet.write_table(table(), path, row_group_size=70),
    "a.arrow": lambda path: write_stream(path, table()),
    "a.feather": lambda path: pyarrow.feather.write_feather(table(), path, chunksize=50),
    "a.jsonl.zst": lambda path: write_zstd(path, "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()),
    "saved": lambda path: datasets.Dataset.from_list([{"text": text} for text in TEXTS]).save_to_disk(path, num_shards=3),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_has_the_tokens_of_the_texts(run, model, library, tmp_path, monkeypatch, name):
    # Several slices of a batch.
    monkeypatch.setattr("fsdpd.data.tables.BATCH_ROWS", 64)
    WRITERS[name](tmp_path / name)
    code, _, err = run("tokenize", name, "--tokenizer", model, "--out", "out")
    assert code == 0, err
    assert numpy.fromfile("out.u16", "<u2").tolist() == expected(library)


CHATS = [
    [{"role": "user", "content": f"what is {number}?"},
     {"role": "assistant", "content": None, "tool_calls": [
         {"type": "function", "function": {"name": "look_up", "arguments": {"number": number} if number % 2 else {"word": "é"}}}]},
     {"role": "tool", "content": f"{number} is a number"}, {"role": "assistant", "content": "a number 🦊"}]
    for number in range(10)]


def test_reads_what_datasets_library_reads(run, model, tmp_path):
    """`datasets` saves, loads and exports conversations. Null fields of Arrow's objects do not reach the template."""
    saved = datasets.Dataset.from_list([{"messages": messages} for messages in CHATS])
    saved.save_to_disk(tmp_path / "saved")
    saved.to_parquet(tmp_path / "a.parquet")
    jsonl(tmp_path / "a.jsonl", [{"messages": messages} for messages in CHATS])
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m | tojson }}\n{% endfor %}")
    made = {}
    for name in ("saved", "a.parquet", "a.jsonl"):
        code, _, err = run("tokenize", name, "--as", "chat", "--tokenizer", model, "--chat-template", "t.jinja", "--out", "out",
                           "--overwrite")
        assert code == 0, err
        made[name] = [(tmp_path / f"out.{suffix}").read_bytes() for suffix in ("u16", "mask")]
    assert made["saved"] == made["a.parquet"] == made["a.jsonl"]
    loaded = datasets.load_from_disk(tmp_path / "saved")
    assert [row["messages"][0]["content"] for row in loaded] == [messages[0]["content"] for messages in CHATS]


def test_reads_order_and_rows_of_saved_data_set(run, model, library, tmp_path):
    """A data set that was shuffled and filtered, in several shards."""
    saved = datasets.Dataset.from_list([{"text": text} for text in TEXTS]).shuffle(seed=1).select(range(120))
    saved.save_to_disk(tmp_path / "saved", num_shards=4)
    code, _, err = run("tokenize", "saved", "--tokenizer", model, "--out", "out")
    assert code == 0, err
    texts = datasets.load_from_disk(tmp_path / "saved")["text"]
    assert numpy.fromfile("out.u16", "<u2").tolist() == \
        [token for text in texts for token in ids_of(library, text) + [library.token_to_id(END)]]
    described = json.loads((tmp_path / "out.u16.json").read_text())
    assert [each["path"] for each in described["sources"]] == [f"saved/data-0000{number}-of-00004.arrow" for number in range(4)]


def test_splits_are_named_not_merged(run, model, tmp_path):
    two = datasets.Dataset.from_list([{"text": "one"}, {"text": "two"}])
    datasets.DatasetDict(train=two, test=two).save_to_disk(tmp_path / "all")
    code, _, err = run("tokenize", "all", "--tokenizer", model, "--out", "out")
    assert code == 2 and "all: is a DatasetDict (splits: train, test); name the directory of a split, such as all/train" in err
    assert run("tokenize", "all/train", "--tokenizer", model, "--out", "out")[0] == 0
    snapshot = tmp_path / "snapshot"
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        (snapshot / "data").mkdir(parents=True, exist_ok=True)
        two.to_parquet(snapshot / f"data/{name}.parquet")
    code, _, err = run("tokenize", "snapshot", "--tokenizer", model, "--out", "snapshot-out")
    assert code == 2 and "several splits (test, train); name the files of one, as in snapshot/data/train*.parquet" in err
    (snapshot / "data/test-00000-of-00001.parquet").unlink()
    code, _, err = run("tokenize", "snapshot", "--tokenizer", model, "--out", "snapshot-out")
    assert code == 0 and " of 4 documents" in err


def row(**fields):
    return pyarrow.Table.from_pylist([{"text": "x"}, fields])


def truncated(name):
    def write(path):
        WRITERS[name](path)
        path.write_bytes(path.read_bytes()[:-4000] if name != "a.jsonl.zst" else path.read_bytes()[:-20])
    return write


def cut_between_batches(path):
    """A stream without its end, at which pyarrow stops without an error."""
    write_stream(path, table())
    path.write_bytes(path.read_bytes()[:-8])


def damaged_page(path):
    pyarrow.parquet.write_table(table(), path)
    content = path.read_bytes()
    path.write_bytes(content[:200] + bytes(400) + content[600:])


def invalid_string(path):
    write_stream(path, pyarrow.table({"text": pyarrow.array([b"x", b"caf\xe9"]).view(pyarrow.string())}))


def invalid_offset(path):
    """The process ended with a segmentation fault."""
    offsets = numpy.array([0, 10**9, 2], "<i4").tobytes()
    broken = pyarrow.Array.from_buffers(pyarrow.string(), 2, [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(b"ab")])
    write_stream(path, pyarrow.table({"text": broken}))


@pytest.mark.parametrize("name, write, output", [
    ("a.parquet", truncated("a.parquet"), "a.parquet: invalid or truncated Parquet file"),
    ("a.parquet", damaged_page, "a.parquet: invalid or truncated Parquet file"),
    ("a.parquet", lambda path: path.write_bytes(b""), "a.parquet: invalid or truncated Parquet file"),
    ("a.parquet", lambda path: path.write_text('{"text": "x"}\n'), "a.parquet: invalid or truncated Parquet file"),
    ("a.arrow", truncated("a.arrow"), "a.arrow: is not an Arrow file, or is truncated"),
    ("a.arrow", cut_between_batches, "a.arrow: is not an Arrow file, or is truncated"),
    ("a.feather", truncated("a.feather"), "a.feather: invalid or truncated Arrow file"),
    ("a.arrow", lambda path: path.write_bytes(b""), "a.arrow: is not an Arrow file"),
    ("a.jsonl.zst", truncated("a.jsonl.zst"), "a.jsonl.zst: invalid or truncated Zstandard: the last frame is incomplete"),
    ("a.jsonl.zst", lambda path: path.write_bytes(b""), "a.jsonl.zst: invalid or truncated Zstandard: the file is empty"),
    ("a.jsonl.zst", lambda path: path.write_text("{}"), "a.jsonl.zst: invalid or truncated Zstandard"),
    ("a.parquet", lambda path: pyarrow.parquet.write_table(row(text=None), path), "a.parquet: row 1: field 'text' is null"),
    ("a.parquet", lambda path: pyarrow.parquet.write_table(pyarrow.table({"body": ["x"], "id": [1]}), path),
     "a.parquet: row 0: no field 'text' (got body, id); set --field text=NAME"),
    ("a.parquet", lambda path: pyarrow.parquet.write_table(pyarrow.table({"text": [1]}), path),
     "a.parquet: row 0: field 'text' is a number, want a string"),
    ("a.parquet", lambda path: pyarrow.parquet.write_table(pyarrow.table({"text": [b"x", b"caf\xe9"]}), path),
     "a.parquet: row 1: field 'text' cannot be read: byte 3 (0xe9) is not UTF-8"),
    ("a.arrow", invalid_offset, "a.arrow: invalid or truncated Arrow file: "),
    ("a.arrow", lambda path: write_stream(path, pyarrow.Table.from_arrays([["a"], ["b"]], ["text", "text"])),
     "a.arrow: several columns have the name 'text'"),
    ("a.arrow", invalid_string, "a.arrow: row 1: field 'text' cannot be read: byte 3 (0xe9) is not UTF-8"),
    ("a.parquet", lambda path: pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], "string")}), path),
     "the train part is empty: 0 documents were read"),
    ("empty", lambda path: path.mkdir(), "empty: is a directory without state.json and Parquet files"),
    ("saved", lambda path: (path.mkdir(), (path / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')),
     "saved/a.arrow: No such file"),
    ("saved", lambda path: (path.mkdir(), (path / "state.json").write_text("[")), "saved/state.json: invalid JSON"),
])
def test_reports_place_of_unreadable_input(run, model, tmp_path, name, write, output):
    write(tmp_path / name)
    code, out, err = run("tokenize", name, "--tokenizer", model, "--out", "out")
    assert code == 2 and output in err and not out, err
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_skips_faulty_rows_of_large_and_invalid_text(run, model, library, tmp_path, monkeypatch):
    monkeypatch.setattr("fsdpd.data.sources.MAX_BYTES", 1 << 20)
    pyarrow.parquet.write_table(pyarrow.table({"text": [b"one", b"\xff", b"x " * (1 << 20), None, b"two"]}), tmp_path / "a.parquet")
    code, _, err = run("tokenize", "a.parquet", "--tokenizer", model, "--out", "out", "--skip-faulty")
    assert code == 0 and "3 faulty documents skipped" in err, err
    assert "a.parquet: row 2: the document is larger than 1 MiB (got 2097152 bytes)" in err
    end = [library.token_to_id(END)]
    assert numpy.fromfile("out.u16", "<u2").tolist() == ids_of(library, "one") + end + ids_of(library, "two") + end


def test_missing_library_is_reported_before_work(site, model, tmp_path):
    jsonl(tmp_path / "a.jsonl", [{"text": "x"}])
    WRITERS["a.parquet"](tmp_path / "b.parquet")
    done = subprocess.run([sys.executable, "-m", "fsdpd.data", "tokenize", "a.jsonl", "b.parquet", "--tokenizer", model, "--out",
                           "out"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert done.returncode == 2 and "No module named 'pyarrow'" in done.stderr and "python[data]'" in done.stderr, done.stderr


def test_memory_does_not_grow_with_file(site, tmp_path):
    """250 MB of text in one row group and in one Arrow file take at most 128 MB more than 6 MB."""
    texts, images = pyarrow.array(["the quick brown fox " * 3000] * 100), pyarrow.array([b"\xff"] * 100)
    peaks = {}
    for count in (1, 43):
        content = pyarrow.table({"text": pyarrow.chunked_array([texts] * count), "image": pyarrow.chunked_array([images] * count)})
        pyarrow.parquet.write_table(content, tmp_path / "a.parquet", compression="none", use_dictionary=False)
        write_stream(tmp_path / "a.arrow", content)
        for format in ("parquet", "arrow"):
            script = ("import re; from fsdpd.data import tables\n"
                      f"with open('a.{format}', 'rb') as raw:\n"
                      f"  for place, row in tables.rows(raw, 'a', {format!r}, frozenset(['text'])): row()\n"
                      "print(re.search(r'VmHWM: *\t *([0-9]+)', open('/proc/self/status').read())[1])")
            done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True,
                                  env={**os.environ, "PYTHONPATH": f"{site}:{datasets_package.installed()}"})
            peaks[format, count] = int(done.stdout) / 1024
    assert all(peaks[format, 43] < peaks[format, 1] + 128 for format in ("parquet", "arrow")), peaks


TEMPLATE = """{{ tools | tojson if tools else '' }}
{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls | tojson if m.tool_calls else '' }}
{% endfor %}
{% if add_generation_prompt %}assistant: {% endif %}"""
FUNCTION = {"name": "look_up", "description": "Finds", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"word": "é"}}}
# By format: records of the same three conversations.
MESSAGES = [
    [{"role": "user", "content": "what?\nit"}, {"role": "assistant", "content": "a dog"}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": "and?"}, {"role": "assistant", "content": "yes"},
     {"role": "user", "content": "then?"}, {"role": "assistant", "content": "no"}],
    [{"role": "user", "content": "look"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
     {"role": "tool", "content": "quick"}, {"role": "assistant", "content": "it is quick"}]]
SHAREGPT = [
    {"conversations": [{"from": "human", "value": "what?\nit"}, {"from": "gpt", "value": "a dog"}]},
    {"system": "be brief", "conversations": [{"from": "user", "value": "and?"}, {"from": "assistant", "value": "yes"},
                                             {"from": "human", "value": "then?"}, {"from": "gpt", "value": "no"}]},
    {"conversations": [{"from": "human", "value": "look"},
                       {"from": "function_call", "value": '{"name": "look_up", "arguments": {"word": "é"}}'},
                       {"from": "observation", "value": "quick"}, {"from": "gpt", "value": "it is quick"}],
     "tools": json.dumps([FUNCTION])}]
ALPACA = [
    {"instruction": "what?", "input": "it", "output": "a dog"},
    {"instruction": "then?", "input": "", "output": "no", "system": "be brief", "history": [["and?", "yes"]]}]


def renamed(value, names):
    if isinstance(value, dict):
        return {names.get(key, key): renamed(each, names) for key, each in value.items()}
    return [renamed(each, names) for each in value] if isinstance(value, list) else value


def openai(count=3):
    return [{"messages": messages, "tools": TOOLS if number == 2 else None} for number, messages in enumerate(MESSAGES[:count])]


def encoded_arguments(value):
    """As OpenAI's API returns them."""
    text = json.dumps(value)
    return json.loads(text.replace(json.dumps(CALL["function"]["arguments"]), json.dumps('{"word": "\\u00e9"}')))


def in_parts(records):
    """The same messages with content as OpenAI's content parts."""
    def of(message):
        text = message["content"]
        return message if text is None else {**message, "content": [{"type": "text", "text": each} for each in (text[:3], text[3:])]}
    return [{**record, "messages": [of(message) for message in record["messages"]]} for record in records]


@pytest.mark.parametrize("records, count, flags", [
    (SHAREGPT, 3, []),
    (SHAREGPT, 3, ["--format", "sharegpt"]),
    (renamed(SHAREGPT, {"conversations": "dialog", "from": "by"}), 3, ["--field", "conversations=dialog", "--field", "from=by"]),
    (renamed(SHAREGPT, {"conversations": "messages"}), 3, []),
    (ALPACA, 2, []),
    (renamed(ALPACA, {"instruction": "question", "output": "answer"}), 2,
     ["--field", "instruction=question", "--field", "output=answer"]),
    (encoded_arguments(openai()), 3, []),
    (in_parts(openai()), 3, []),
    (renamed(openai(), {"messages": "conversations"}), 3, []),
    (renamed(openai(), {"messages": "dialog", "tools": "functions", "role": "by", "content": "text"}), 3,
     ["--field", "dialog", "--field", "tools=functions", "--field", "role=by", "--field", "content=text"]),
], ids=["sharegpt", "sharegpt-set", "sharegpt-renamed", "sharegpt-messages", "alpaca", "alpaca-renamed", "openai-encoded", "openai-parts",
        "openai-conversations", "openai-renamed"])
def test_formats_have_the_tokens_of_the_same_messages(run, model, tmp_path, records, count, flags):
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    jsonl(tmp_path / "expected.jsonl", openai(count))
    jsonl(tmp_path / "a.jsonl", records)
    common = ["--as", "chat", "--tokenizer", model, "--chat-template", "t.jinja"]
    for name, more in {"expected": [], "a": flags}.items():
        code, _, err = run("tokenize", f"{name}.jsonl", *common, "--out", name, *more)
        assert code == 0, err
    for suffix in ("u16", "mask"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"expected.{suffix}").read_bytes()
    text = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json")).decode(numpy.fromfile("a.u16", "<u2").tolist())
    assert "user: what?\nit\nassistant: a dog\n" in text and (count == 2 or '"arguments": {"word": "é"}' in text)


def test_alpaca_as_completion(run, model, library, tmp_path):
    jsonl(tmp_path / "a.jsonl", [ALPACA[0], {"instruction": "and?", "output": "yes"}])
    code, _, err = run("tokenize", "a.jsonl", "--as", "completion", "--tokenizer", model, "--out", "a")
    assert code == 0, err
    ids, mask = numpy.fromfile("a.u16", "<u2"), numpy.fromfile("a.mask", "u1")
    assert library.decode(ids.tolist(), skip_special_tokens=False) == f"what?\nit\na dog{END}and?\nyes{END}"
    assert library.decode(ids[mask == 1].tolist(), skip_special_tokens=False) == f"a dog{END}yes{END}"


HUMAN = {"from": "human", "value": "x"}


@pytest.mark.parametrize("record, flags, output", [
    ({"text": "x", "id": 1}, [], "a.jsonl:2: unknown format (got fields id, text; want messages, conversations, or instruction "
     "and output); set --field messages=NAME"),
    (ALPACA[0], [], "a.jsonl:2: format alpaca differs from openai of a.jsonl:1 (got fields input, instruction, output; want "
     "messages with role and content)"),
    (SHAREGPT[0], [], "a.jsonl:2: format sharegpt differs from openai of a.jsonl:1"),
    (SHAREGPT[0], ["--format", "openai"], "a.jsonl:2: message 0 of 'conversations': no field 'role' (got from, value)"),
    ({"messages": [{"role": "user", "content": "x"}, HUMAN]}, [], "a.jsonl:2: message 1 of 'messages': no field 'role'"),
    ({"messages": [{"role": "user", "text": "x"}]}, [], "message 0 of 'messages': no field 'content' (got role, text)"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, [],
     "message 0 of 'messages': content part of type 'image_url' is not supported (want text)"),
    ({"messages": [{"role": "user", "content": 3}]}, [], "message 0 of 'messages': field 'content' is a number, want a string"),
    ({"messages": None}, [], "a.jsonl:2: field 'messages' is null, want a list of messages"),
    ({"messages": [None]}, [], "a.jsonl:2: message 0 of 'messages' is null"),
    ({"messages": MESSAGES[0], "tools": "[{"}, [], "a.jsonl:2: field 'tools', column 3: invalid JSON"),
    ({"messages": MESSAGES[0], "tools": {"name": "f"}}, [], "a.jsonl:2: field 'tools': is an object, want a list of objects"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]}, [],
     "a.jsonl:2: message 0 of 'messages': arguments of f, column 2: invalid JSON"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, [], "message 0 of 'messages': invalid tool call"),
    (openai()[0], ["--field", "role=by"], "a.jsonl:1: message 0 of 'messages': no field 'by' (got content, role); set --field role=NAME"),
    (openai()[0], ["--field", "messages=dialog"], "a.jsonl:1: unknown format (got fields messages, tools;"),
    (openai()[0], ["--field", "speaker=x"], "--field speaker=x: unknown field 'speaker' (want messages, conversations,"),
    (openai()[0], ["--field", "role="], "--field role=: has no name; write --field FIELD=NAME"),
    (openai()[0], ["--field", "role=x", "--field", "role=y"], "--field role=y: role is set twice"),
])
def test_reports_fields_of_unknown_and_mixed_records(run, model, tmp_path, record, flags, output):
    jsonl(tmp_path / "a.jsonl", [openai()[0], record])
    code, out, err = run("tokenize", "a.jsonl", "--as", "chat", "--tokenizer", model, "--out", "out", *flags)
    assert code == 2 and output in err and not out, err
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("record, output", [
    ({"conversations": [{"from": "bot", "value": "x"}]}, "unknown from (got 'bot', want human, user, gpt, assistant, system, tool, "),
    ({"conversations": [{"from": "function_call", "value": "f(x)"}]}, "message 0 of 'conversations', column 1: invalid JSON"),
    ({"conversations": [{"from": "gpt"}]}, "message 0 of 'conversations': no field 'value' (got from); set --field value=NAME"),
    ({"instruction": "x", "output": 3}, "a.jsonl:1: field 'output' is a number, want a string"),
    ({"instruction": "x", "output": "y", "history": ["z"]}, "a.jsonl:1: invalid field 'history' (want a list of pairs"),
])
def test_reports_invalid_sharegpt_and_alpaca(run, model, tmp_path, record, output):
    jsonl(tmp_path / "a.jsonl", [record])
    code, _, err = run("tokenize", "a.jsonl", "--as", "chat", "--tokenizer", model, "--out", "out")
    assert code == 2 and output in err, err
    code, _, err = run("tokenize", "a.jsonl", "--as", "completion", "--format", "sharegpt", "--tokenizer", model, "--out", "out")
    assert code == 2 and "--format sharegpt: is not supported with --as completion; use --as chat" in err


def test_message_that_template_leaves_out_is_an_error(run, model, tmp_path):
    template = tmp_path / "users.jinja"
    template.write_text("{% for m in messages if m.role != 'judge' %}<|turn|>{{ m.role }}\n{{ m.content }}<|turn_end|>\n{% endfor %}")
    jsonl(tmp_path / "a.jsonl", [{"messages": [{"role": "user", "content": "x"}, {"role": "judge", "content": "never rendered"},
                                               {"role": "assistant", "content": "y"}]}])
    code, _, err = run("tokenize", "a.jsonl", "--as", "chat", "--tokenizer", model, "--chat-template", template, "--out", "out")
    assert code == 2 and "message 1 of role 'judge' is not in the output of the chat template" in err, err


def test_data_without_targets_is_an_error(run, model, tmp_path):
    jsonl(tmp_path / "a.jsonl", [{"messages": [{"role": "user", "content": "x"}]}])
    code, _, err = run("tokenize", "a.jsonl", "--as", "chat", "--tokenizer", model, "--out", "out")
    assert code == 2 and "the train part has no targets: no token of its 1 documents belongs to an answer" in err, err
    assert not list(tmp_path.glob("out*"))
