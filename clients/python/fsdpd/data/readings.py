"""Conversion of records to documents: a text, a prompt with a completion, or a conversation."""

from __future__ import annotations

from collections.abc import Callable

from fsdpd.data.chats import ChatTemplate
from fsdpd.data.conversations import ALPACA, CHAT_FIELDS, Conversation, Conversations, instruction_of, messages_of, tools_of
from fsdpd.data.fields import Fields, Record, kind
from fsdpd.data.sources import Document, Reading
from fsdpd.faults import Fault

FIELDS = {"text": ("text",), "chat": CHAT_FIELDS,
          "preference": ("prompt", "chosen", "rejected", "tools", "role", "content"),
          "completion": ("prompt", "completion", "tools", "role", "content", *ALPACA)}
MAIN = {"text": "text", "chat": "messages", "completion": None, "preference": None}


def texts(fields: Fields) -> Reading:
    return Reading(lambda record, place: [Document(fields.text(record, "text", place), place)], fields.columns, records=False)


def chats(fields: Fields, format: str | None, template: ChatTemplate) -> Reading:
    conversations = Conversations(fields, format)
    return Reading(lambda record, place: template.documents(conversations.read(record, place), 0, place), fields.columns)


def completions(fields: Fields, format: str | None, template: Callable[[], ChatTemplate]) -> Reading:
    """Reads a prompt and a completion: two strings, or two lists of messages, which need the template. Or an Alpaca record,
    with a line each for instruction and input before the output."""
    if format not in (None, "alpaca"):
        raise Fault(f"--format {format}: is not supported with --as completion; use --as chat")

    def read(record: Record, place: str) -> list[Document]:
        if format or fields.has(record, "instruction") and not fields.has(record, "prompt"):
            return [alpaca_completion(fields, record, place)]
        prompt, completion = (fields.value(record, field, place) for field in ("prompt", "completion"))
        if isinstance(prompt, str) and isinstance(completion, str):
            return [completed(prompt, completion, place)]
        if isinstance(prompt, list) and isinstance(completion, list):
            messages = [message for field, value in (("prompt", prompt), ("completion", completion))
                        for message in messages_of(fields, value, fields.name(field), place)]
            conversation = Conversation(messages, tools_of(fields, record, place))
            return template().documents(conversation, len(prompt), place)
        raise Fault(f"{place}: {fields.name('prompt')!r} is {kind(prompt)} and {fields.name('completion')!r} is "
                    f"{kind(completion)}, want two strings or two lists of messages")
    return Reading(read, fields.columns)


def completed(prompt: str, completion: str, place: str) -> Document:
    return Document(prompt + completion, place, [(len(prompt), len(prompt) + len(completion))])


def alpaca_completion(fields: Fields, record: Record, place: str) -> Document:
    for field in ("system", "history"):
        if fields.optional(record, field):
            raise Fault(f"{place}: field {fields.name(field)!r} is not supported with --as completion; use --as chat")
    return completed(instruction_of(fields, record, place) + "\n", fields.text(record, "output", place), place)
