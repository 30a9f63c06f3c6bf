"""Turns text into token ids and back with the tokenizer and chat template of a checkpoint folder. No torch."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from artifacts.errors import BadInputError
from artifacts.input_files import LARGEST_TOKENIZER, read_input
from stages.models.json_file import read_json
from stages.models.tokenizers.chat_template import ChatTemplate


def find_chat_template(folder: Path) -> str | None:
    """Returns the chat template of a model folder, or None if it has none.

    Raises:
        BadInputError: The template or `tokenizer_config.json` cannot be read.
    """
    separate = folder / "chat_template.jinja"
    if separate.exists():
        expected = "a chat template in UTF-8"
        try:
            return read_input(separate, expected).decode()
        except UnicodeDecodeError as error:
            raise BadInputError(str(separate), f"byte {error.start + 1} is not UTF-8", expected) from error
    template = read_json(folder / "tokenizer_config.json").get("chat_template")
    return template if isinstance(template, str) else None


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("content")
    return value if isinstance(value, str) else None


class ChatTokenizer:
    """The tokenizer of a checkpoint folder with its chat template.

    Args:
        folder: A Hugging Face model folder.

    Raises:
        BadInputError: A tokenizer file or the chat template is missing or unreadable.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        remedy = "export the model with its fast tokenizer"
        content = read_input(path, "a tokenizer", remedy, most_bytes=LARGEST_TOKENIZER)
        source = find_chat_template(folder)
        if source is None:
            raise BadInputError(
                str(folder), "no chat template", "chat_template in tokenizer_config.json", "choose an instruct model"
            )
        self._template = ChatTemplate(source, str(folder))  # its process starts while the tokenizer is read
        try:
            self._tokenizer = Tokenizer.from_str(content.decode())
        except Exception as error:  # tokenizers raises bare Exception
            raise BadInputError(str(path), f"unreadable ({error})", "a file of the tokenizers library") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._settings = read_json(folder / "tokenizer_config.json")
        self._template.check()
        self.eos_ids = self._find_eos_ids(folder)
        self._decoded = lru_cache(maxsize=1 << 16)(self._decode)

    def _find_eos_ids(self, folder: Path) -> tuple[int, ...]:
        """Returns the ids that end a text: that of `eos_token` first, then those of the generation config or config.

        Raises:
            BadInputError: There are none, or a file cannot be read.
        """
        eos_ids: list[int] = []
        generation = folder / "generation_config.json"
        for path in (generation, folder / "config.json"):
            value: object = read_json(path).get("eos_token_id") if path.exists() else None
            listed = cast("list[object]", value) if isinstance(value, list) else [value]
            eos_ids.extend(item for item in listed if isinstance(item, int) and item not in eos_ids)
            if eos_ids:
                break
        name = _token_text(self._settings.get("eos_token"))
        token_id = self._tokenizer.token_to_id(name) if name is not None else None
        if token_id is not None:
            if token_id in eos_ids:
                eos_ids.remove(token_id)
            eos_ids.insert(0, token_id)
        if not eos_ids:
            raise BadInputError(str(folder), "no end-of-sequence token", "eos_token in tokenizer_config.json")
        return tuple(eos_ids)

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def prompt_text(self, prompt: str) -> str:
        """Returns the text that the model reads for one user message, up to the start of its answer.

        Raises:
            BadInputError: The chat template fails, or exceeds its limit of time or length.
        """
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        special = {name: _token_text(self._settings.get(name)) or "" for name in names}
        return self._template.render(
            messages=[{"role": "user", "content": prompt}], add_generation_prompt=True, tools=None, **special
        )

    def prompt_ids(self, prompt: str) -> list[int]:
        """Returns the token ids of one user message in the chat template, up to the start of the answer."""
        return self._tokenizer.encode(self.prompt_text(prompt), add_special_tokens=False).ids

    def answer_ids(self, answer: str) -> list[int]:
        """Returns the token ids of an answer with the end-of-sequence token."""
        return [*self.text_ids(answer), self.eos_ids[0]]

    def text_ids(self, text: str) -> list[int]:
        """Returns the token ids of a text, without special tokens of the template."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: list[int]) -> str:
        """Returns the text of token ids without special tokens; bytes that are not UTF-8 become U+FFFD."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def token_ends(self, token_ids: Sequence[int]) -> list[int]:
        """Returns for each token the number of complete characters of `decode` up to its end, ascending.

        A character whose bytes are divided between tokens counts from the last of them on.
        """
        ends: list[int] = []
        # `characters` counts those of the first `start` tokens. The text of some tokens depends on the one before, so
        # new tokens are decoded together with those from `before` to `start`.
        characters = before = start = 0
        for count in range(1, len(token_ids) + 1):
            text = self._decoded(tuple(token_ids[before:count]))
            if not text.endswith("\ufffd"):
                characters += len(text) - len(self._decoded(tuple(token_ids[before:start])))
                before, start = start, count
            ends.append(characters)
        return ends

    def _decode(self, token_ids: tuple[int, ...]) -> str:
        return self.decode(list(token_ids))
