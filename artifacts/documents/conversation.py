"""Prompts as tables store them: one user message as its text, a conversation as the JSON list of its messages."""

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from artifacts.documents.parsing import text_problem
from artifacts.errors import BadInputError

ROLES = ("system", "user", "assistant")
Message = dict[str, str]
"""A message with `role` and `content`."""


def read_messages(value: Sequence[object], where: str) -> list[Message]:
    """Returns the messages of a prompt that somebody wrote; fields without a value do not count.

    Args:
        value: The messages.
        where: Their place, for error messages.

    Raises:
        BadInputError: One has no role or no text, or the last is not the user's.
    """
    messages: list[Message] = []
    for item in value:
        given = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        message = {name: part for name, part in given.items() if part is not None}
        if not _is_message(message) or text_problem(message["content"]):
            expected = f"{{role, content}}, a role of {', '.join(ROLES)}, the content a text"
            raise BadInputError(where, f"the message {str(item)[:80]!r}", expected, "convert the messages")
        messages.append(message)
    last = messages[-1]["role"] if messages else "nobody"
    if last != "user":
        expected, remedy = "messages that end with the user's turn", "name a column without the answer, or drop it"
        raise BadInputError(where, f"messages that end with the turn of {last}", expected, remedy)
    return messages


def stored_prompt(messages: Sequence[Message]) -> str:
    """Returns the prompt of a conversation, whose last message is the user's."""
    if len(messages) == 1:
        return messages[0]["content"]
    plain = [{"role": message["role"], "content": message["content"]} for message in messages]
    return json.dumps(plain, ensure_ascii=False)


def messages_of(prompt: str) -> list[Message]:
    """Returns the messages of a prompt; a text that is not a JSON list of several messages is one user message."""
    if prompt.startswith('[{"role":'):
        try:
            listed = json.loads(prompt)
        except (ValueError, RecursionError):
            listed = []
        if len(listed) > 1 and all(_is_message(item) for item in listed):
            return listed
    return [{"role": "user", "content": prompt}]


def with_last(prompt: str, change: Callable[[str], str]) -> str:
    """Returns a prompt with another text in its last message."""
    *before, last = messages_of(prompt)
    return stored_prompt([*before, {**last, "content": change(last["content"])}])


def readable(prompt: str) -> str:
    """Returns a prompt for people: a conversation as paragraphs that begin with the roles."""
    messages = messages_of(prompt)
    if len(messages) == 1:
        return prompt
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def _is_message(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    fields = cast("dict[str, Any]", value)
    return set(fields) == {"role", "content"} and fields["role"] in ROLES and isinstance(fields["content"], str)
