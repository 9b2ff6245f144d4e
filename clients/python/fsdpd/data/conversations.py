"""Conversations in the formats of fine-tuning data, converted to the messages and tools that chat templates use.

  openai    messages: [{role, content, tool_calls}], tools
  sharegpt  conversations: [{from, value}], system, tools
  alpaca    instruction, input, output, system, history: [[user, assistant], ...]

A record's format is that of the first message's fields (role or from), so either list may have either name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fsdpd.data.fields import Fields, Record, kind, listed, parsed
from fsdpd.faults import Fault

Message = dict[str, Any]
IN = ", column "  # Of JSON in a string.
LISTS = {"messages": "openai", "conversations": "sharegpt"}
ALPACA = ("instruction", "input", "output", "system", "history")
CHAT_FIELDS = (*LISTS, "tools", "role", "content", "from", "value", *ALPACA)
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system", "tool": "tool",
         "observation": "tool", "function_call": "assistant"}


@dataclass(frozen=True)
class Conversation:
    messages: list[Message]
    tools: list[Any] | None


class Conversations:
    """Converts the records of one run, which have the same format."""

    def __init__(self, fields: Fields, format: str | None) -> None:
        """`format`: None detects it from the first record."""
        self._fields, self._given, self._format, self._first = fields, format, format, ""

    def read(self, record: Record, place: str) -> Conversation:
        format, field = self._format_of(record, place)
        convert: Callable[[Fields, Record, str, str], Conversation] = {
            "openai": openai, "sharegpt": sharegpt, "alpaca": alpaca}[format]
        return convert(self._fields, record, field, place)

    def _format_of(self, record: Record, place: str) -> tuple[str, str]:
        """Returns the format, and the field with the list of messages."""
        fields = self._fields
        if self._given:
            lists = sorted(LISTS, key=lambda field: LISTS[field] != self._given)
            return self._given, next((field for field in lists if fields.has(record, field)), lists[0])
        found, field = detected(fields, record)
        if not found:
            raise Fault(f"{place}: unknown format (got fields {listed(record)}; want messages, conversations, or instruction "
                        "and output); set --field messages=NAME")
        if not self._format:
            self._format, self._first = found, place
        if found != self._format:
            raise Fault(f"{place}: format {found} differs from {self._format} of {self._first} (got fields {listed(record)}; "
                        f"want {wanted_by(self._format)}); tokenize each format separately, and merge the files with "
                        "fsdpctl data pack")
        return found, field


def wanted_by(format: str) -> str:
    return {"openai": "messages with role and content", "sharegpt": "conversations with from and value",
            "alpaca": "instruction and output"}[format]


def detected(fields: Fields, record: Record) -> tuple[str | None, str]:
    present = [field for field in LISTS if fields.has(record, field)]
    for field in sorted(present, key=lambda field: fields.optional(record, field) is None):
        value = fields.optional(record, field)
        first = value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else {}
        return "openai" if fields.has(first, "role") else "sharegpt" if fields.has(first, "from") else LISTS[field], field
    return "alpaca" if fields.has(record, "instruction") and fields.has(record, "output") else None, ""


def messages_of(fields: Fields, value: object, name: str, place: str) -> list[Message]:
    """Converts messages with `role` and `content`."""
    made = []
    for message, at in objects(value, name, place):
        role = fields.text(message, "role", at)
        rest = {key: each for key, each in message.items() if key not in (fields.name("role"), fields.name("content"))}
        calls = tool_calls(rest.pop("tool_calls", None), at)
        content = fields.optional(message, "content") if calls else fields.value(message, "content", at)
        if isinstance(content, list):
            content = text_of_parts(content, at)
        if not isinstance(content, str) and not (content is None and calls):
            raise Fault(f"{at}: field {fields.name('content')!r} is {kind(content)}, want a string")
        made.append({"role": role, "content": content, **({"tool_calls": calls} if calls else {}),
                     **{key: each for key, each in rest.items() if each is not None}})
    return made


def text_of_parts(parts: list[object], place: str) -> str:
    """Joins OpenAI's content parts, which most templates do not render."""
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            shown = part.get("type") if isinstance(part, dict) else kind(part)
            raise Fault(f"{place}: content part of type {shown!r} is not supported (want text)")
        texts.append(text)
    return "".join(texts)


def objects(value: object, name: str, place: str) -> list[tuple[Record, str]]:
    """Returns the objects of a list, and the place of each."""
    if not isinstance(value, list) or not value:
        raise Fault(f"{place}: field {name!r} is {'empty' if value == [] else kind(value)}, want a list of messages "
                    'such as [{"role": "user", "content": "..."}]')
    for number, message in enumerate(value):
        if not isinstance(message, dict):
            raise Fault(f"{place}: message {number} of {name!r} is {kind(message)}, want an object with a role")
    return [(message, f"{place}: message {number} of {name!r}") for number, message in enumerate(value)]


def openai(fields: Fields, record: Record, field: str, place: str) -> Conversation:
    messages = messages_of(fields, fields.value(record, field, place), fields.name(field), place)
    return Conversation(messages, tools_of(fields, record, place))


def sharegpt(fields: Fields, record: Record, field: str, place: str) -> Conversation:
    system = fields.optional_text(record, "system", place)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for message, at in objects(fields.value(record, field, place), fields.name(field), place):
        sender, text = fields.text(message, "from", at), fields.text(message, "value", at)
        if sender not in ROLES:
            raise Fault(f"{at}: unknown {fields.name('from')} (got {sender!r}, want {', '.join(ROLES)})")
        if sender == "function_call":
            calls = parsed(text, at, IN)
            messages.append({"role": "assistant", "content": None,
                             "tool_calls": tool_calls(calls if isinstance(calls, list) else [calls], at)})
        else:
            messages.append({"role": ROLES[sender], "content": text})
    return Conversation(messages, tools_of(fields, record, place))


def alpaca(fields: Fields, record: Record, field: str, place: str) -> Conversation:
    system, history = fields.optional_text(record, "system", place), fields.optional(record, "history")
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    turns = [] if history is None else history
    if not isinstance(turns, list) or not all(isinstance(turn, list) and len(turn) == 2 and
                                              all(isinstance(each, str) for each in turn) for turn in turns):
        raise Fault(f"{place}: invalid field {fields.name('history')!r} (want a list of pairs of strings: a user's message "
                    "and its answer)")
    for user, answer in [*turns, (instruction_of(fields, record, place), fields.text(record, "output", place))]:
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
    return Conversation(messages, None)


def instruction_of(fields: Fields, record: Record, place: str) -> str:
    """Returns the user's turn of an Alpaca record."""
    instruction, given = fields.text(record, "instruction", place), fields.optional_text(record, "input", place)
    return f"{instruction}\n{given}" if given else instruction


def tools_of(fields: Fields, record: Record, place: str) -> list[Any] | None:
    """Returns the tools. They may be JSON in a string, because tools of different fields do not fit into an Arrow column."""
    value, at = fields.optional(record, "tools"), f"{place}: field {fields.name('tools')!r}"
    if isinstance(value, str):
        value = parsed(value, at, IN) if value.strip() else None
    if not value:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise Fault(f"{at}: is {kind(value)}, want a list of objects, or such a list as a JSON string")
    return [tool if "name" not in tool else {"type": "function", "function": tool} for tool in value]


def tool_calls(value: object, at: str) -> list[Any] | None:
    """Returns the calls with parsed arguments. Chat templates convert arguments to JSON; OpenAI's API has them as JSON."""
    value = parsed(value, f"{at}: tool_calls", IN) if isinstance(value, str) else value
    if not value:
        return None
    if not isinstance(value, list):
        raise Fault(f"{at}: tool_calls is {kind(value)}, want a list of objects")
    made = []
    for call in value:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Fault(f'{at}: invalid tool call (want an object such as {{"name": "...", "arguments": {{}}}})')
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            arguments = parsed(arguments, f"{at}: arguments of {function['name']}", IN)
        if not isinstance(arguments, dict):
            raise Fault(f"{at}: arguments of {function['name']}: is {kind(arguments)}, want an object")
        rest = {key: each for key, each in call.items() if each is not None} if function is not call else {"type": "function"}
        made.append({**rest, "function": {**function, "arguments": arguments}})
    return made
