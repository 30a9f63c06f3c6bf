"""Makes a system prompt part of a model folder, so that everything that reads the folder writes the same prompts."""

from pathlib import Path

from artifacts.errors import BadInputError
from stages.models.tokenizers.chat import ChatTokenizer, find_chat_template

_SHOWN_CHARACTERS = 60


def with_system_prompt(template: str, prompt: str) -> str:
    """Returns a chat template that writes a system prompt in conversations that have none of their own.

    Args:
        template: A chat template in Jinja.
        prompt: The system prompt.
    """
    literal = prompt.encode("unicode_escape").decode().replace('"', '\\"')  # the escapes that Jinja reads
    message = f'{{"role": "system", "content": "{literal}"}}'
    condition = "{%- if not messages or messages[0]['role'] != 'system' %}"
    # The line ends with a block, so its end is not part of the text, and the template begins on a line of its own.
    return f"{condition}{{%- set messages = [{message}] + messages %}}{{%- endif %}}\n{template}"


def add_system_prompt(folder: Path, prompt: str) -> None:
    """Writes a system prompt into the chat template of a complete model folder.

    Raises:
        BadInputError: The template fails with a system prompt, or does not write it.
    """
    (folder / "chat_template.jinja").write_text(
        with_system_prompt(find_chat_template(folder) or "", prompt), encoding="utf-8"
    )
    if prompt.strip() not in ChatTokenizer(folder).prompt_text("2 + 2 = ?"):
        raise BadInputError(
            "model.system_prompt",
            f"a chat template that does not write {prompt[:_SHOWN_CHARACTERS]!r}",
            "a template with a system role",
            "put the text into puzzles.puzzle.prompt instead, or drop it",
        )
