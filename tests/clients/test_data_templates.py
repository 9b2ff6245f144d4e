"""Tests of `fsdpctl data tokenize --as chat` with chat templates of the structures of public models, each token and each target
compared with apply_chat_template of transformers. The templates are written for these tests."""

import copy
import json

import numpy
import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from clients.token_data import END, TEXTS, jsonl, run  # noqa: F401

# Header and end of turn around each message; tool calls replace the content, and tools are in the first user turn.
LLAMA3 = """{{- bos_token }}
{%- for m in messages %}
{%- set role = 'ipython' if m.role == 'tool' else m.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}
{%- if tools and m.role == 'user' and loop.index0 == (1 if messages[0].role == 'system' else 0) %}
{{- 'Functions:' }}{% for tool in tools %}{{ '\n' + tool | tojson(indent=4) }}{% endfor %}{{ '\n\n' }}
{%- endif %}
{%- if m.tool_calls %}
{%- set call = m.tool_calls[0].function %}
{{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
{%- elif m.role == 'tool' %}{{ m.content | tojson }}{% else %}{{ m.content | trim }}{% endif %}
{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

# ChatML, with tools in the system turn, and consecutive results of tools in one user turn.
QWEN25 = """{%- set first = messages[0].content if messages[0].role == 'system' else 'Default.' %}
{{- '<|im_start|>system\n' + first }}
{%- for tool in tools or [] %}{{ '\n' + tool | tojson }}{% endfor %}
{{- '<|im_end|>\n' }}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- elif m.role != 'system' or not loop.first %}
{{- '<|im_start|>' + m.role }}
{%- if m.content %}{{ '\n' + m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# ChatML with reasoning, which only turns after the last question have.
QWEN3 = """{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{{- '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\n' }}
{%- if m.role == 'assistant' %}
{%- set thought = m.reasoning_content or '' %}
{%- if not thought and '</think>' in (m.content or '') %}
{%- set thought = m.content.split('</think>')[0].split('<think>')[-1] %}
{%- endif %}
{%- if loop.index0 > ns.last and (loop.last or thought) %}
{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}
{%- endif %}
{{- (m.content or '').split('</think>')[-1].lstrip('\n') }}
{%- for call in m.tool_calls or [] %}{{ '\n<tool_call>\n' + call.function | tojson + '\n</tool_call>' }}{% endfor %}
{%- else %}{{ m.content }}{% endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# No role headers and no generation prompt; the functions are before the last question.
MISTRAL = """{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and m == users[-1] %}{{ '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST] ' + m.content + '[/INST]' }}
{%- elif m.tool_calls %}{{ '[TOOL_CALLS] ' + m.tool_calls[0].function | tojson + eos_token }}
{%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS] ' + m.content + '[/TOOL_RESULTS]' }}
{%- elif m.role == 'assistant' %}{{ ' ' + m.content | trim + eos_token }}
{%- else %}{{ raise_exception('only user, assistant and tool') }}
{%- endif %}
{%- endfor %}"""

# The role is `model`, turns alternate, and the system message begins the first turn.
GEMMA = """{{- bos_token }}
{%- set system = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}
{%- for m in (messages[1:] if system else messages) %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (system if loop.first else '') }}
{{- m.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

# A conversation without a generation prompt ends with eos_token.
PHI = """{%- for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"""

# Reasoning is removed from every answer, but begins the generation prompt.
DEEPSEEK = """{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{ '<|assistant|>' + m.content.split('</think>')[-1] + eos_token }}
{%- else %}{{ '<|user|>' + m.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"""

SPECIAL = ["<s>", "</s>", END, "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "<think>",
           "</think>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>",
           "<|end|>"]


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "be brief"}
ONE = [user("what is it?"), assistant("the lazy dog")]
TWO = [*ONE, user("and then? 🦊"), assistant("it jumps")]
THREE = [*TWO, user("naïve café"), assistant("over")]
REASONED = [user("what is it?"), assistant("<think>\na fox or a dog\n</think>\n\nthe dog"), user("and then?"),
            assistant("it jumps", reasoning_content="dogs jump")]
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"word": "fox", "most": 3}}}
CALLS = [user("look it up"), assistant(None, tool_calls=[CALL]), {"role": "tool", "content": "quick"},
         {"role": "tool", "content": "brown"}, assistant("quick and brown")]
TOOLS = [{"type": "function", "function": {"name": "look_up", "description": "Finds a word", "parameters": {
    "type": "object", "properties": {"word": {"type": "string"}, "most": {"type": "integer"}}}}}]
CASES = {
    # name: template, and conversations with their tools and whether they are expanded.
    "llama3": (LLAMA3, [([SYSTEM, *THREE], None, False), (CALLS, TOOLS, False), ([*CALLS, *ONE], TOOLS, False)]),
    "qwen2.5": (QWEN25, [(THREE, None, False), ([SYSTEM, *TWO], None, False), ([*CALLS, *ONE], TOOLS, False)]),
    "qwen3": (QWEN3, [(ONE, None, False), (TWO, None, True), (REASONED, None, True), (REASONED[:2], None, False),
                      ([SYSTEM, *THREE], None, True), ([*CALLS, *TWO], None, True)]),
    "mistral": (MISTRAL, [(THREE, None, False), (CALLS, TOOLS, False), ([*ONE, *CALLS], TOOLS, True)]),
    "gemma": (GEMMA, [(THREE, None, False), ([SYSTEM, *TWO], None, False)]),
    "phi": (PHI, [([SYSTEM, *THREE], None, False), (ONE, None, False)]),
}


@pytest.fixture(scope="session")
def special(tmp_path_factory):
    """Directory of a tokenizer with the special tokens of all templates."""
    directory = tmp_path_factory.mktemp("special")
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return directory


class Theirs:
    """Tokens and targets by apply_chat_template."""

    def __init__(self, directory, template):
        self._tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(directory / "tokenizer.json"), chat_template=template, bos_token="<s>", eos_token="</s>")
        self._end, self._eos = (self._tokenizer.convert_tokens_to_ids(name) for name in (END, "</s>"))

    def ids(self, messages, tools, prompt=False):
        return self._tokenizer.apply_chat_template(copy.deepcopy(messages), tools=tools, add_generation_prompt=prompt)

    def example(self, messages, tools, answers):
        """Tokens with the end of the document, and the mask with the tokens of messages[each] for each of `answers`."""
        ids = self.ids(messages, tools)
        mask = numpy.zeros(len(ids) + 1, "u1")
        for number in answers:
            until = self.ids(messages[:number + 1], tools)
            # Phi's end of a conversation.
            end = len(until) - (until != ids[:len(until)] and until[-1] == self._eos)
            assert until[:end] == ids[:end]
            mask[len(self.ids(messages[:number], tools, prompt=True)):end] = 1
        mask[-1] = mask[-2]
        return [*ids, self._end], mask.tolist()

    def examples(self, messages, tools, expanded):
        answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        return [self.example(messages[:number + 1], tools, [number]) for number in answers] if expanded else \
            [self.example(messages, tools, answers)]


@pytest.mark.parametrize("name", CASES)
def test_tokens_and_targets_match_transformers(run, special, tmp_path, name):
    template, cases = CASES[name]
    (tmp_path / "t.jinja").write_text(template)
    theirs = Theirs(special, template)
    jsonl(tmp_path / "a.jsonl", [{"messages": messages, "tools": tools} for messages, tools, _ in cases])
    code, _, err = run("tokenize", "a.jsonl", "--as", "chat", "--tokenizer", special, "--chat-template", "t.jinja", "--out", "out",
                       "--end-of-document", END)
    assert code == 0 and "role header" not in err, err
    examples = [example for case in cases for example in theirs.examples(*case)]
    assert numpy.fromfile("out.u16", "<u2").tolist() == [token for ids, _ in examples for token in ids]
    assert numpy.fromfile("out.mask", "u1").tolist() == [each for _, mask in examples for each in mask]
    expanded = [messages for messages, _, expanded in cases if expanded]
    count = sum(message["role"] == "assistant" for messages in expanded for message in messages)
    report = f"{len(expanded)} conversations expanded into {count} examples, because the chat template rewrites earlier turns"
    assert (report in err) == bool(expanded), err
    described = json.loads((tmp_path / "out.u16.json").read_text())
    assert (described["documents"], described["sources"][0]["expanded"]) == (len(examples), len(expanded))


def test_examples_of_a_conversation_are_in_the_same_part(run, special, tmp_path):
    """Otherwise validation would contain texts of training."""
    (tmp_path / "t.jinja").write_text(QWEN3)
    jsonl(tmp_path / "a.jsonl", [{"messages": [user(f"start {number}"), *THREE[1:]]} for number in range(200)])
    code, _, err = run("tokenize", "a.jsonl", "--as", "chat", "--tokenizer", special, "--chat-template", "t.jinja", "--out", "out",
                       "--end-of-document", END, "--validation-share", "0.3")
    assert code == 0 and "200 conversations expanded into 600 examples" in err, err
    tokenizer = tokenizers.Tokenizer.from_file(str(special / "tokenizer.json"))
    parts = []
    for suffix in ("u16", "validation.u16"):
        texts = tokenizer.decode(numpy.fromfile(f"out.{suffix}", "<u2").tolist(), skip_special_tokens=False).split(END)[:-1]
        starts = [text.split("start ")[1].split("<")[0] for text in texts]
        assert all(starts.count(each) == 3 for each in set(starts))
        parts.append(set(starts))
    assert not parts[0] & parts[1] and 30 < len(parts[1]) < 90


@pytest.mark.parametrize("template, answer, target", [
    # The generation prompt is ignored.
    (QWEN25.replace("if add_generation_prompt", "if false"), "the lazy dog", "<|im_start|>assistant\nthe lazy dog<|im_end|>\n"),
    # The generation prompt is not the beginning of the answer.
    (DEEPSEEK, "<think>\na dog\n</think>\n\nthe lazy dog", "<|assistant|>\n\nthe lazy dog</s>"),
])
def test_warns_of_role_headers_that_count(run, special, tmp_path, template, answer, target):
    (tmp_path / "t.jinja").write_text(template)
    jsonl(tmp_path / "a.jsonl", [{"messages": [user("what is it?"), assistant(answer)]}])
    code, _, err = run("tokenize", "a.jsonl", "--as", "chat", "--tokenizer", special, "--chat-template", "t.jinja", "--out", "out",
                       "--end-of-document", "none")
    assert code == 0 and "1 documents count the role header of an answer as a target" in err and "add_generation_prompt" in err
    ids, mask = numpy.fromfile("out.u16", "<u2"), numpy.fromfile("out.mask", "u1")
    tokenizer = tokenizers.Tokenizer.from_file(str(special / "tokenizer.json"))
    assert tokenizer.decode(ids[mask == 1].tolist(), skip_special_tokens=False) == target


def test_rejects_answer_that_changes_earlier_messages(run, special, tmp_path):
    """As templates that move the system message to the last question do: no part of the text is only the answer."""
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}{{ '[' + m.role + (' last' if loop.last else '') + '] ' + m.content }}\n{% endfor %}")
    jsonl(tmp_path / "a.jsonl", [{"messages": TWO}])
    code, _, err = run("tokenize", "a.jsonl", "--as", "chat", "--tokenizer", special, "--chat-template", "t.jinja", "--out", "out",
                       "--end-of-document", END)
    assert code == 2 and "a.jsonl:1: the tokens of message 1 cannot be located" in err and "generation" in err


MESSAGES = [user("what?"), assistant("first"), user("and?")]
ANSWERS = {"chosen": "lazy dogs", "rejected": "quick foxes"}
TEXT_PAIRS = {
    "explicit": {"prompt": "what is", **{side: f" {answer}" for side, answer in ANSWERS.items()}},
    "implicit": {side: f"what is {answer}" for side, answer in ANSWERS.items()},
}
CHAT_PAIRS = {
    "explicit": {"prompt": MESSAGES, **{side: [assistant(answer)] for side, answer in ANSWERS.items()}},
    "implicit": {side: [*MESSAGES, assistant(answer)] for side, answer in ANSWERS.items()},
    "implicit with text": {"prompt": "what?", **{side: [*MESSAGES, assistant(answer)] for side, answer in ANSWERS.items()}},
}


@pytest.mark.parametrize("records, prompt, ends", [
    (TEXT_PAIRS.values(), "what is", {side: f" {answer}" for side, answer in ANSWERS.items()}),
    (CHAT_PAIRS.values(), None, {side: f"{answer}<|im_end|>\n" for side, answer in ANSWERS.items()}),
], ids=["texts", "chats"])
def test_preference_pairs_have_the_tokens_of_prompt_and_answer(run, special, tmp_path, records, prompt, ends):
    (tmp_path / "t.jinja").write_text(QWEN25)
    jsonl(tmp_path / "a.jsonl", list(records))
    code, out, err = run("tokenize", "a.jsonl", "--as", "preference", "--tokenizer", special, "--chat-template", "t.jinja",
                         "--out", "out", "--end-of-document", END)
    assert code == 0 and "is a preference pair" in out, err
    tokenizer = tokenizers.Tokenizer.from_file(str(special / "tokenizer.json"))
    for side, other in (("chosen", "rejected"), ("rejected", "chosen")):
        if prompt is None:
            theirs = Theirs(special, QWEN25).example([*MESSAGES, assistant(ANSWERS[side])], None, [3])
            assert numpy.fromfile(f"out.{side}.u16", "<u2").tolist() == theirs[0] * len(records)
            assert numpy.fromfile(f"out.{side}.mask", "u1").tolist() == theirs[1] * len(records)
        ids, mask = numpy.fromfile(f"out.{side}.u16", "<u2"), numpy.fromfile(f"out.{side}.mask", "u1")
        assert tokenizer.decode(ids[mask == 1].tolist(), skip_special_tokens=False) == (ends[side] + END) * len(records)
        described = json.loads((tmp_path / f"out.{side}.u16.json").read_text())
        assert (described["side"], described["pair"], described["documents"]) == (side, f"out.{other}.u16", len(records))
        assert run("inspect", f"out.{side}.u16")[0] == 0


def test_preference_pairs_stay_together(run, special, tmp_path):
    jsonl(tmp_path / "a.jsonl", [{"prompt": f"what {number}", "chosen": " dog", "rejected": f" fox {number}"}
                                 for number in range(200)])
    code, _, err = run("tokenize", "a.jsonl", "--as", "preference", "--tokenizer", special, "--out", "out",
                       "--end-of-document", END, "--validation-share", "0.3")
    assert code == 0, err
    tokenizer = tokenizers.Tokenizer.from_file(str(special / "tokenizer.json"))
    counts = []
    for part in ("", ".validation"):
        chosen, rejected = (tokenizer.decode(numpy.fromfile(f"out.{side}{part}.u16", "<u2").tolist(), skip_special_tokens=False)
                            .split(END) for side in ("chosen", "rejected"))
        assert [text.replace(" dog", "") for text in chosen] == [text.split(" fox")[0] for text in rejected]
        counts.append(len(chosen) - 1)
    assert sum(counts) == 200 and 30 < counts[1] < 90


@pytest.mark.parametrize("record, output", [
    ({"chosen": "a"}, "a.jsonl:1: no field 'rejected' (got chosen); set --field rejected=NAME"),
    ({"chosen": "a", "rejected": [user("b")]}, "a.jsonl:1: 'prompt' is null, 'chosen' is a string, 'rejected' is a list; want strings "
     "or lists of messages"),
    ({"chosen": "a", "rejected": "a"}, "a.jsonl:1: chosen and rejected are equal"),
    ({"prompt": [user("a")], "chosen": [assistant("b"), user("c"), assistant("d")], "rejected": [assistant("e")]},
     "a.jsonl:1: several answers in 'chosen' are not supported with a chat template that rewrites earlier turns"),
    ({"prompt": f"a{END}", "chosen": "b", "rejected": "c"}, "a.jsonl:1: a preference pair contains the end-of-document token"),
    ({"prompt": "", "chosen": "", "rejected": "c"}, "a.jsonl:1: the chosen text is empty"),
])
def test_reports_invalid_preference_pairs(run, special, tmp_path, record, output):
    (tmp_path / "t.jinja").write_text(QWEN3)
    jsonl(tmp_path / "a.jsonl", [record])
    code, _, err = run("tokenize", "a.jsonl", "--as", "preference", "--tokenizer", special, "--chat-template", "t.jinja", "--out",
                       "out", "--end-of-document", END, "--parse-special-tokens")
    assert code == 2 and output in err, err
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "t.jinja"}


@pytest.mark.parametrize("expression, text", [
    ("m.content ~ m.tool_calls[0].function.arguments", "None{'word': 'fox', 'most': 3}"),
    # Qwen3's template fails for a content of null, and DeepSeek's for arguments that are not JSON.
    ("'' + m.content + '!'", "!"),
    ("'' + m.tool_calls[0].function.arguments", '{"word": "fox", "most": 3}'),
])
def test_tool_calls_have_the_form_that_the_template_accepts(run, special, tmp_path, expression, text):
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ " + expression + " if m.tool_calls else m.content }}\n"
                                      "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}")
    jsonl(tmp_path / "a.jsonl", [{"messages": CALLS[:2]}])
    code, _, err = run("tokenize", "a.jsonl", "--as", "chat", "--tokenizer", special, "--chat-template", "t.jinja", "--out", "out",
                       "--end-of-document", "none")
    assert code == 0, err
    tokenizer = tokenizers.Tokenizer.from_file(str(special / "tokenizer.json"))
    ids, mask = numpy.fromfile("out.u16", "<u2"), numpy.fromfile("out.mask", "u1")
    assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == f"user: look it up\nassistant: {text}\n"
    assert tokenizer.decode(ids[mask == 1].tolist(), skip_special_tokens=False) == f"{text}\n"
