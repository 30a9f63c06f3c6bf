"""Makes a system prompt and template arguments part of a model folder, so that all readers write the same prompts."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from artifacts.documents.suggestions import did_you_mean
from artifacts.errors import BadInputError
from stages.models.tokenizers.chat import ChatTokenizer, find_chat_template

ArgumentValue = bool | int | float | str
_SHOWN_CHARACTERS = 60
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
_WRITTEN_LINE = re.compile(
    r"(\{%- if (not messages or messages\[0\]\['role'\] != 'system'|\w+ is not defined) %\}.*\{%- endif %\})+"
)
"""Matches a line that `with_system_prompt` or `with_arguments` writes."""


def with_system_prompt(template: str, prompt: str) -> str:
    """Returns a chat template that writes a system prompt in conversations that have none of their own.

    Args:
        template: A chat template in Jinja.
        prompt: The system prompt.
    """
    message = f'{{"role": "system", "content": {_literal(prompt)}}}'
    condition = "{%- if not messages or messages[0]['role'] != 'system' %}"
    # The line ends with a block, so its end is not part of the text, and the template begins on a line of its own.
    return f"{condition}{{%- set messages = [{message}] + messages %}}{{%- endif %}}\n{template}"


def with_arguments(template: str, arguments: Mapping[str, ArgumentValue]) -> str:
    """Returns a chat template in which variables have values unless its caller gives others.

    Args:
        template: A chat template in Jinja.
        arguments: Value of each variable.

    Raises:
        BadInputError: The template does not read one of the variables.
    """
    words = set(_WORD.findall(template))
    for name in arguments:
        if name not in words:
            raise BadInputError(
                f"model.template_arguments.{name}",
                f"a chat template without this variable{did_you_mean(name, words)}",
                "a variable that the model's chat template reads",
                "correct the name, or drop it",
            )
    lines = (
        f"{{%- if {name} is not defined %}}{{%- set {name} = {_literal(value)} %}}{{%- endif %}}"
        for name, value in arguments.items()
    )
    return f"{''.join(lines)}\n{template}"


def _literal(value: ArgumentValue) -> str:
    """Returns a value as Jinja reads it."""
    if not isinstance(value, str):
        return json.dumps(value)
    escaped = value.encode("unicode_escape").decode().replace('"', '\\"')
    return f'"{escaped}"'


def begins_from(template: str, original: str) -> bool:
    """Returns whether a chat template is another one, at most with lines before it that `adapt_template` writes."""
    while template != original:
        line, _, template = template.partition("\n")
        if not _WRITTEN_LINE.fullmatch(line):
            return False
    return True


def adapt_template(folder: Path, prompt: str | None, arguments: Mapping[str, ArgumentValue] | None) -> None:
    """Writes a system prompt and template arguments into the chat template of a complete model folder.

    Raises:
        BadInputError: The template fails with them, does not write the prompt, or does not read an argument.
    """
    template = find_chat_template(folder) or ""
    template = with_arguments(template, arguments) if arguments else template
    template = with_system_prompt(template, prompt) if prompt else template
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    written = ChatTokenizer(folder).prompt_text("2 + 2 = ?")
    if prompt and prompt.strip() not in written:
        raise BadInputError(
            "model.system_prompt",
            f"a chat template that does not write {prompt[:_SHOWN_CHARACTERS]!r}",
            "a template with a system role",
            "put the text into puzzles.puzzle.prompt instead, or drop it",
        )
