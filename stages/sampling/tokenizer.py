"""The tokenizer and chat template of a checkpoint folder, without torch or transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import jinja2
import jinja2.ext
import jinja2.sandbox
from tokenizers import Tokenizer

from artifacts.errors import BadInputError

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_json(path: Path, *, required: bool) -> dict[str, Any]:
    """Read a JSON object of a checkpoint folder; an absent optional file is an empty one.

    Raises:
        BadInputError: The file is missing though required, or is not a JSON object.
    """
    if not path.is_file():
        if not required:
            return {}
        raise BadInputError(str(path), "no such file", "a checkpoint folder in Hugging Face layout", "give its folder")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInputError(str(path), f"unreadable: {error}", "JSON", "copy the model folder again") from error
    if not isinstance(value, dict):
        raise BadInputError(str(path), f"a JSON {type(value).__name__}", "a JSON object", "copy the model folder again")
    return cast(dict[str, Any], value)


def token_text(value: object) -> str | None:
    """Return the text of a special token as tokenizer_config.json writes it: a string or an object with `content`."""
    if isinstance(value, dict):
        value = cast(dict[str, object], value).get("content")
    return value if isinstance(value, str) else None


class ChatTokenizer:
    """Turns one user message into prompt token ids, and completion token ids into text.

    Args:
        folder: Checkpoint folder with tokenizer.json, tokenizer_config.json and a chat template, either in
            chat_template.jinja or inside tokenizer_config.json.

    Raises:
        BadInputError: A file is missing or broken.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "tokenizer.json"
        if not path.is_file():
            expected = "tokenizer.json in the model folder"
            raise BadInputError(str(path), "no such file", expected, "save the model with its tokenizer")
        try:
            self.tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the binding raises plain Exception
            raise BadInputError(str(path), f"unreadable: {error}", "a `tokenizers` file") from error
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.settings = read_json(folder / "tokenizer_config.json", required=False)
        self.special_tokens = {
            name: text for name in SPECIAL_NAMES if (text := token_text(self.settings.get(name))) is not None
        }
        self.template_source = self._find_template()
        self._template: jinja2.Template | None = None
        self.eos_token_ids = self._find_eos()

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens, added ones included."""
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, with no special tokens added around it."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; ids that are not whole UTF-8 become U+FFFD."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def decode_all(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Decode many sequences at once, special tokens left out."""
        return self.tokenizer.decode_batch([list(ids) for ids in sequences], skip_special_tokens=True)

    def prompt_text(self, user_text: str) -> str:
        """Render the chat template for one user message, up to where the assistant's answer begins.

        Raises:
            BadInputError: The folder has no template, or it cannot be rendered.
        """
        if self._template is None:
            self._template = self._compile()
        try:
            return self._template.render(
                messages=[{"role": "user", "content": user_text}], add_generation_prompt=True, **self.special_tokens
            )
        except jinja2.TemplateError as error:
            raise BadInputError(f"chat template of {self.folder}", f"cannot be rendered: {error}") from error

    def prompt_ids(self, user_text: str) -> list[int]:
        """Return the token ids of the rendered chat prompt (see `prompt_text`)."""
        return self.encode(self.prompt_text(user_text))

    def _find_template(self) -> str | None:
        path = self.folder / "chat_template.jinja"
        if path.is_file():
            try:
                return path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise BadInputError(str(path), f"unreadable: {error}", "a UTF-8 Jinja template") from error
        template = self.settings.get("chat_template")
        if isinstance(template, list):
            for entry in cast(list[object], template):
                if isinstance(entry, dict):
                    named = cast(dict[str, object], entry)
                    if named.get("name") == "default":
                        template = named.get("template")
        return template if isinstance(template, str) else None

    def _compile(self) -> jinja2.Template:
        if self.template_source is None:
            raise BadInputError(
                str(self.folder),
                "no chat template",
                "chat_template.jinja, or chat_template in tokenizer_config.json",
                "use a chat model, or add a template",
            )

        # `strftime_now` is left out on purpose: a prompt must not depend on the day it is rendered.
        def refuse(message: str) -> NoReturn:
            raise jinja2.TemplateError(message)

        def to_json(value: object, indent: int | None = None) -> str:
            return json.dumps(value, ensure_ascii=False, indent=indent)

        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = refuse
        try:
            return environment.from_string(self.template_source)
        except jinja2.TemplateError as error:
            raise BadInputError(f"chat template of {self.folder}", f"not valid Jinja: {error}") from error

    def _find_eos(self) -> tuple[int, ...]:
        found: list[int] = []
        for name in ("generation_config.json", "config.json"):
            value = read_json(self.folder / name, required=False).get("eos_token_id")
            for item in cast(list[object], value) if isinstance(value, list) else [value]:
                if isinstance(item, int):
                    found.append(item)
        if (text := self.special_tokens.get("eos_token")) is not None:
            number = self.tokenizer.token_to_id(text)
            if number is None:
                where = str(self.folder / "tokenizer_config.json")
                raise BadInputError(where, f"eos_token {text!r} is not in tokenizer.json", "a token of the vocabulary")
            found.append(number)
        if not found:
            where = str(self.folder)
            raise BadInputError(where, "no end token", "eos_token_id in generation_config.json or config.json")
        return tuple(dict.fromkeys(found))
