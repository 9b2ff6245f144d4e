"""Fine-tuning data: prompts with completions, and conversations rendered by a chat template. Training targets are the
assistant's answers, including the template's end of turn.

If the template marks answers with {% generation %}, the marks are used. Otherwise an answer is found by prefixes: it
starts where the conversation before it ends (rendered with the generation prompt), and ends where the conversation
including it ends. If these are not prefixes of the complete conversation, as with templates that rewrite earlier turns,
the answer cannot be located, which is a Fault.
"""

from __future__ import annotations

import datetime
import json
import pathlib
import secrets
from collections.abc import Callable
from typing import Any, cast

import jinja2
import jinja2.ext
import jinja2.sandbox

from fsdpd.faults import Fault
from fsdpd.data.sources import Document, field_of, kind

Message = dict[str, Any]


class Generation(jinja2.ext.Extension):
    """Jinja extension for {% generation %}...{% endgeneration %} around the assistant's answers."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        begin, end = cast(tuple[str, str], self.environment.globals["answer_marks"])
        return begin + caller() + end


def raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


class ChatTemplate:
    """A chat template. It is rendered in a sandbox, because it comes with a model from an untrusted source."""

    def __init__(self, text: str, origin: str, special_tokens: dict[str, str]) -> None:
        nonce = secrets.token_hex(8)
        self._marks = (f"\x00begin {nonce}\x00", f"\x00end {nonce}\x00")
        self._origin, self._special_tokens = origin, special_tokens
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
        environment.filters["tojson"] = lambda value, ensure_ascii=False, indent=None, separators=None, sort_keys=False: \
            json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        environment.globals.update(
            raise_exception=raise_exception, answer_marks=self._marks,
            strftime_now=lambda form: datetime.datetime.now().strftime(form))
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise Fault(f"{origin}:{error.lineno}: invalid Jinja template: {error.message}") from None

    def document(self, messages: list[Message], tools: object, first_counted: int, place: str) -> Document:
        """Renders a conversation. Targets are the answers in messages[first_counted:]."""
        whole = self._render(messages, tools, False, place)
        if self._marks[0] in whole and first_counted == 0:
            return self._by_marks(whole, place)
        return self._by_prefixes(messages, tools, first_counted, whole, place)

    def _render(self, messages: list[Message], tools: object, generation_prompt: bool, place: str) -> str:
        try:
            return cast(str, self._template.render(messages=messages, tools=tools, add_generation_prompt=generation_prompt,
                                                   **self._special_tokens))
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise Fault(f"{place}: the chat template of {self._origin} rejects the conversation: {error}") from None

    def _by_marks(self, marked: str, place: str) -> Document:
        begin, end = self._marks
        text, counted = "", []
        head, *answers = marked.split(begin)
        text += head
        for each in answers:
            answer, found, rest = each.partition(end)
            if not found or begin in answer:
                raise Fault(f"{place}: nested generation blocks in the chat template of {self._origin}")
            counted.append((len(text), len(text) + len(answer)))
            text += answer + rest
        return Document(text, place, counted, templated=True)

    def _by_prefixes(self, messages: list[Message], tools: object, first_counted: int, whole: str,
                       place: str) -> Document:
        def plain(text: str) -> str:
            return text.replace(self._marks[0], "").replace(self._marks[1], "")

        whole, counted = plain(whole), []
        for number, message in enumerate(messages):
            if message["role"] != "assistant" or number < first_counted:
                continue
            before = plain(self._render(messages[:number], tools, True, place)) if number else ""
            until = plain(self._render(messages[:number + 1], tools, False, place))
            if not (whole.startswith(until) and until.startswith(before)):
                raise Fault(f"{place}: the tokens of message {number} cannot be located, because the chat template of "
                            f"{self._origin} renders it differently when more messages follow; set --chat-template to a "
                            "template that marks answers with {% generation %}")
            counted.append((len(before), len(until)))
        return Document(whole, place, counted, templated=True)


def messages_of(value: object, name: str, place: str) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise Fault(f"{place}: field {name!r} is {'empty' if value == [] else kind(value)}, want a list of messages "
                    'such as [{"role": "user", "content": "..."}]')
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Fault(f"{place}: message {number} of {name!r} is not an object with a role")
    return value


def load_template(tokenizer: pathlib.Path, named: pathlib.Path | None) -> ChatTemplate:
    """Loads the template from `named`, or from Hugging Face's files next to tokenizer.json."""
    config_path = tokenizer.with_name("tokenizer_config.json")
    config: dict[str, Any] = {}
    if config_path.is_file():
        try:
            config = json.loads(config_path.read_text())
        except ValueError as error:
            raise Fault(f"{config_path}: {error}") from None
    tokens = {name: value["content"] if isinstance(value, dict) else value for name, value in config.items()
              if name.endswith("_token") and isinstance(value, (str, dict))}
    path = named or tokenizer.with_name("chat_template.jinja")
    if named or path.is_file():
        return ChatTemplate(path.read_text(), str(path), tokens)
    text = config.get("chat_template")
    if isinstance(text, list):
        text = next((each["template"] for each in text if each.get("name") == "default"), None)
    if not isinstance(text, str):
        raise Fault(f"{tokenizer}: no chat template in {path} or {config_path}; set --chat-template")
    return ChatTemplate(text, str(config_path), tokens)


def reading_chats(template: ChatTemplate, name: str) -> Callable[[dict[str, Any], str], Document]:
    def read(line: dict[str, Any], place: str) -> Document:
        messages = messages_of(field_of(line, name, place, "--field"), name, place)
        return template.document(messages, line.get("tools"), 0, place)
    return read


def reading_completions(template: Callable[[], ChatTemplate], prompt: str,
                        completion: str) -> Callable[[dict[str, Any], str], Document]:
    """Reads a prompt and a completion: two strings, or two lists of messages, which need the template."""
    def read(line: dict[str, Any], place: str) -> Document:
        prompt_value = field_of(line, prompt, place, "--prompt-field")
        completion_value = field_of(line, completion, place, "--completion-field")
        if isinstance(prompt_value, str) and isinstance(completion_value, str):
            text = prompt_value + completion_value
            return Document(text, place, [(len(prompt_value), len(text))])
        if isinstance(prompt_value, list) and isinstance(completion_value, list):
            messages = messages_of(prompt_value, prompt, place) + messages_of(completion_value, completion, place)
            return template().document(messages, line.get("tools"), len(prompt_value), place)
        raise Fault(f"{place}: {prompt!r} is {kind(prompt_value)} and {completion!r} is {kind(completion_value)}, want two "
                    "strings or two lists of messages")
    return read
