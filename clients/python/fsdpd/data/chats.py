"""Fine-tuning data: prompts with completions, and conversations by a chat template. What counts as a target is what the
assistant says, with whatever the template ends its turns with.

A template that marks answers itself ({% generation %}) is believed. Of another one an answer is what the conversation up to
its end has more than the conversation before it with the words that have the assistant begin. Where these are not
beginnings of the whole, as in templates that rewrite earlier turns, nobody can tell, and that is a Fault.
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

from fsdpd.data.faults import Fault
from fsdpd.data.sources import Document, field_of, kind

Message = dict[str, Any]


class Generation(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %} around what the assistant says."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        begin, end = cast(tuple[str, str], self.environment.globals["answer_marks"])
        return begin + caller() + end


def refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


class ChatTemplate:
    """Rendered in a sandbox: a template comes with a model, from anywhere."""

    def __init__(self, text: str, origin: str, special_tokens: dict[str, str]) -> None:
        nonce = secrets.token_hex(8)
        self._marks = (f"\x00begin {nonce}\x00", f"\x00end {nonce}\x00")
        self._origin, self._special_tokens = origin, special_tokens
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
        environment.filters["tojson"] = lambda value, ensure_ascii=False, indent=None, separators=None, sort_keys=False: \
            json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        environment.globals.update(
            raise_exception=refuse, answer_marks=self._marks,
            strftime_now=lambda form: datetime.datetime.now().strftime(form))
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise Fault(f"{origin}:{error.lineno}: no Jinja template: {error.message}") from None

    def document(self, messages: list[Message], tools: object, first_counted: int, place: str) -> Document:
        """Of the answers among messages[first_counted:]."""
        whole = self._render(messages, tools, False, place)
        if self._marks[0] in whole and first_counted == 0:
            return self._by_marks(whole, place)
        return self._by_beginnings(messages, tools, first_counted, whole, place)

    def _render(self, messages: list[Message], tools: object, asks: bool, place: str) -> str:
        try:
            return cast(str, self._template.render(messages=messages, tools=tools, add_generation_prompt=asks,
                                                   **self._special_tokens))
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise Fault(f"{place}: the chat template of {self._origin} refuses the conversation: {error}") from None

    def _by_marks(self, marked: str, place: str) -> Document:
        begin, end = self._marks
        text, counted = "", []
        head, *answers = marked.split(begin)
        text += head
        for each in answers:
            answer, found, rest = each.partition(end)
            if not found or begin in answer:
                raise Fault(f"{place}: generation blocks within each other in the chat template of {self._origin}")
            counted.append((len(text), len(text) + len(answer)))
            text += answer + rest
        return Document(text, place, counted, templated=True)

    def _by_beginnings(self, messages: list[Message], tools: object, first_counted: int, whole: str,
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
                raise Fault(f"{place}: message {number} cannot be found in the conversation: the chat template of "
                            f"{self._origin} writes it otherwise when more follows; give one that marks answers with "
                            "{% generation %}, by --chat-template")
            counted.append((len(before), len(until)))
        return Document(whole, place, counted, templated=True)


def messages_of(value: object, name: str, place: str) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise Fault(f"{place}: field {name!r} is {'empty' if value == [] else kind(value)}, and a list of messages is "
                    'needed, as in [{"role": "user", "content": "..."}]')
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Fault(f"{place}: message {number} of {name!r} is no object with a role")
    return value


def template_beside(tokenizer: pathlib.Path, named: pathlib.Path | None) -> ChatTemplate:
    """`named`, or what lies beside tokenizer.json as Hugging Face keeps it."""
    config_path = tokenizer.with_name("tokenizer_config.json")
    config: dict[str, Any] = {}
    if config_path.is_file():
        try:
            config = json.loads(config_path.read_text())
        except ValueError as error:
            raise Fault(f"{config_path}: {error}") from None
    tokens = {name: value["content"] if isinstance(value, dict) else value for name, value in config.items()
              if name.endswith("_token") and isinstance(value, (str, dict))}
    beside = named or tokenizer.with_name("chat_template.jinja")
    if named or beside.is_file():
        return ChatTemplate(beside.read_text(), str(beside), tokens)
    text = config.get("chat_template")
    if isinstance(text, list):
        text = next((each["template"] for each in text if each.get("name") == "default"), None)
    if not isinstance(text, str):
        raise Fault(f"no chat template: neither {beside} nor chat_template in {config_path}; --chat-template names one")
    return ChatTemplate(text, str(config_path), tokens)


def reading_chats(template: ChatTemplate, name: str) -> Callable[[dict[str, Any], str], Document]:
    def read(line: dict[str, Any], place: str) -> Document:
        messages = messages_of(field_of(line, name, place, "--field"), name, place)
        return template.document(messages, line.get("tools"), 0, place)
    return read


def reading_completions(template: Callable[[], ChatTemplate], prompt: str,
                        completion: str) -> Callable[[dict[str, Any], str], Document]:
    """Texts, or lists of messages, for which the template is asked."""
    def read(line: dict[str, Any], place: str) -> Document:
        asked, said = field_of(line, prompt, place, "--prompt-field"), field_of(line, completion, place,
                                                                              "--completion-field")
        if isinstance(asked, str) and isinstance(said, str):
            return Document(asked + said, place, [(len(asked), len(asked) + len(said))])
        if isinstance(asked, list) and isinstance(said, list):
            messages = messages_of(asked, prompt, place) + messages_of(said, completion, place)
            return template().document(messages, line.get("tools"), len(asked), place)
        raise Fault(f"{place}: {prompt!r} is {kind(asked)} and {completion!r} is {kind(said)}, and two texts or two lists "
                    "of messages are needed")
    return read
