"""Conversations rendered by a chat template. Training targets are the assistant's answers, including the template's end of
turn.

If the template marks answers with {% generation %}, the marks are used. Otherwise an answer is found by prefixes: it
starts where the conversation before it ends (rendered with the generation prompt), and ends where the conversation
including it ends. Templates that rewrite earlier turns render that conversation differently than the complete one. For
example, Qwen3's removes the reasoning of earlier turns. Then each answer is a separate example: the conversation up to this
answer, as the model sees it when it generates.
"""

from __future__ import annotations

import datetime
import json
import pathlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jinja2
import jinja2.ext
import jinja2.sandbox

from fsdpd.data.conversations import Conversation, Message
from fsdpd.data.sources import Document
from fsdpd.faults import Fault


ROLES = ("system", "developer", "user", "assistant", "tool")


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


@dataclass(frozen=True)
class Answer:
    """One answer as the last turn of its conversation."""

    text: str
    counted: tuple[int, int]
    header_counted: bool


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

    def documents(self, conversation: Conversation, first_counted: int, place: str) -> list[Document]:
        """Renders a conversation: one document, or one per answer. Targets are the answers in messages[first_counted:]."""
        messages, tools = conversation.messages, conversation.tools
        whole = self._render(messages, tools, False, place)
        for number, message in enumerate(messages):
            if message["role"] not in ROLES and str(message["content"] or "").strip() not in whole:
                raise Fault(f"{place}: message {number} of role {message['role']!r} is not in the output of the chat template "
                            f"of {self._origin} (usual roles: {', '.join(ROLES)})")
        if self._marks[0] in whole and first_counted == 0:
            return [self._by_marks(whole, place)]
        whole = self._unmarked(whole)
        answers = [self._answer(messages[:number + 1], tools, place) for number, message in enumerate(messages)
                   if message["role"] == "assistant" and number >= first_counted]
        ends = [self._end_in(whole, answer.text) for answer in answers]
        if all(ends):
            return [Document(whole, place, [(answer.counted[0], end) for answer, end in zip(answers, ends)], templated=True,
                             header_counted=any(answer.header_counted for answer in answers))]
        return [Document(answer.text, place, [answer.counted], templated=True, group=whole,
                         header_counted=answer.header_counted) for answer in answers]

    def _render(self, messages: list[Message], tools: object, generation_prompt: bool, place: str) -> str:
        failed: Exception | None = None
        for form in (messages, list(map(with_content, messages)), list(map(with_encoded_arguments, messages))):
            try:
                return cast(str, self._template.render(messages=form, tools=tools, add_generation_prompt=generation_prompt,
                                                       **self._special_tokens))
            except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
                failed = failed or error
        raise Fault(f"{place}: the chat template of {self._origin} rejects the conversation: {failed}")

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

    def _end_in(self, whole: str, text: str) -> int:
        """Returns where a conversation with `text` for its beginning continues; 0: it is rendered differently there. Some
        templates, such as Phi-3's, end each conversation with eos_token."""
        shorter = text.removesuffix(self._special_tokens.get("eos_token") or "")
        return len(text) if whole.startswith(text) else len(shorter) if whole.startswith(shorter) else 0

    def _unmarked(self, text: str) -> str:
        return text.replace(self._marks[0], "").replace(self._marks[1], "")

    def _answer(self, messages: list[Message], tools: object, place: str) -> Answer:
        """Renders the last message after the others, and finds where it begins."""
        def rendered(number: int, generation_prompt: bool) -> str:
            return self._unmarked(self._render(messages[:number], tools, generation_prompt, place)) if number else ""

        number = len(messages) - 1
        text, before = rendered(number + 1, False), rendered(number, True)
        if text.startswith(before):
            header = not begins_with_content(text[len(before):], messages[-1]) and before == rendered(number, False)
            return Answer(text, (len(before), len(text)), header)
        before = rendered(number, False)
        if not text.startswith(before):
            raise Fault(f"{place}: the tokens of message {number} cannot be located, because the chat template of "
                        f"{self._origin} renders the messages before it differently when it follows; set --chat-template to "
                        "a template that marks answers with {% generation %}")
        return Answer(text, (len(before), len(text)), True)


def with_content(message: Message) -> Message:
    """For templates that fail without a content next to tool calls, such as Qwen3's."""
    return {**message, "content": message["content"] or ""}


def with_encoded_arguments(message: Message) -> Message:
    """For templates that fail for arguments that are not JSON, such as DeepSeek's."""
    if "tool_calls" not in message:
        return message
    return {**message, "tool_calls": [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False)}}
        for call in message["tool_calls"]]}


def begins_with_content(text: str, message: Message) -> bool:
    content = message.get("content")
    return not isinstance(content, str) or text.lstrip().startswith(content.strip())


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
