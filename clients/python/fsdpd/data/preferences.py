"""Preference pairs in the formats of TRL: a chosen and a rejected answer to one prompt, as texts or as lists of messages.

  explicit prompt   prompt, chosen, rejected
  implicit prompt   chosen and rejected, which begin with the prompt
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

from fsdpd.data.chats import ChatTemplate
from fsdpd.data.conversations import Conversation, Message, messages_of, tools_of
from fsdpd.data.fields import Fields, Record, kind
from fsdpd.data.readings import completed
from fsdpd.data.sources import SIDES, Document, Reading
from fsdpd.faults import Fault


def preferences(fields: Fields, template: Callable[[], ChatTemplate]) -> Reading:
    """Returns two documents per record, first the chosen one."""
    def read(record: Record, place: str) -> list[Document]:
        answers = [fields.value(record, side, place) for side in SIDES]
        prompt = fields.optional(record, "prompt")
        if all(isinstance(each, str) for each in (*answers, prompt or "")):
            documents = texts(prompt, answers, place)
        elif all(isinstance(each, list) for each in answers) and isinstance(prompt or "", (str, list)):
            documents = chats(fields, record, prompt, place, template())
        else:
            kinds = (f"{fields.name(field)!r} is {kind(value)}" for field, value in zip(("prompt", *SIDES), (prompt, *answers)))
            raise Fault(f"{place}: {', '.join(kinds)}; want strings or lists of messages")
        for document, side in zip(documents, SIDES):
            if not document.text:
                raise Fault(f"{place}: the {side} text is empty")
        return [dataclasses.replace(document, group=documents[0].text, side=side)
                for document, side in zip(documents, SIDES)]
    return Reading(read, fields.columns)


def texts(prompt: Any, answers: list[Any], place: str) -> list[Document]:
    if prompt is None:
        length = len(os.path.commonprefix(answers))
        # The space before the first word that differs belongs to that word.
        length -= int(answers[0][:length].endswith(" "))
        check_differ(answers, place)
        prompt, answers = answers[0][:length], [answer[length:] for answer in answers]
    return [completed(prompt, answer, place) for answer in answers]


def chats(fields: Fields, record: Record, prompt: Any, place: str, template: ChatTemplate) -> list[Document]:
    sides = [messages_of(fields, fields.value(record, side, place), fields.name(side), place) for side in SIDES]
    if isinstance(prompt, str):
        asked: list[Message] = [{"role": "user", "content": prompt}]
        # Some data sets have the prompt as text and as the first message of both answers.
        prompt = None if all(asked[0] in side for side in sides) else asked
    elif prompt is not None:
        prompt = messages_of(fields, prompt, fields.name("prompt"), place)
    if prompt is None:
        check_differ(sides, place)
        first = next((number for number, (one, other) in enumerate(zip(*sides)) if one != other), min(map(len, sides)))
    else:
        first, sides = len(prompt), [prompt + side for side in sides]
    tools, documents = tools_of(fields, record, place), []
    for side, messages in zip(SIDES, sides):
        made = template.documents(Conversation(messages, tools), first, place)
        if len(made) > 1:
            raise Fault(f"{place}: several answers in {fields.name(side)!r} are not supported with a chat template that "
                        "rewrites earlier turns")
        documents += made
    return documents


def check_differ(answers: list[Any], place: str) -> None:
    if answers[0] == answers[1]:
        raise Fault(f"{place}: chosen and rejected are equal, and there is no prompt to split them")
