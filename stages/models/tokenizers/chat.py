"""Turns text into token ids and back with the tokenizer and chat template of a checkpoint folder. No torch."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from artifacts.documents.conversation import messages_of
from artifacts.errors import BadInputError
from artifacts.local.input_files import LARGEST_TOKENIZER, read_input, read_regular
from stages.models.json_file import read_json
from stages.models.tokenizers.chat_template import ChatTemplate

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_COUNTED_AT_ONCE = 512
TEMPLATE_FILES = ("tokenizer_config.json", "chat_template.jinja")
"""Files that can hold a chat template."""
_FILES = ("tokenizer.json", *TEMPLATE_FILES, "generation_config.json", "config.json")
"""Files that a `ChatTokenizer` reads."""
_shared: OrderedDict[bytes, "ChatTokenizer"] = OrderedDict()
_SHARED = 4


def chat_tokenizer(folder: Path) -> "ChatTokenizer":
    """Returns the tokenizer of a checkpoint folder, the same one for folders with the same files.

    All checkpoints of a run have the same files, and reading those of 49,000 tokens takes 0.1 s.

    Raises:
        BadInputError: As `ChatTokenizer`.
    """
    digest = hashlib.sha256()
    for name in _FILES:
        with suppress(OSError, ValueError):  # `ChatTokenizer` refuses a file that cannot be read
            digest.update(name.encode() + hashlib.sha256(read_regular(folder / name, LARGEST_TOKENIZER)).digest())
    key = digest.digest()
    tokenizer = _shared.pop(key, None) or ChatTokenizer(folder)
    _shared[key] = tokenizer
    if len(_shared) > _SHARED:
        _shared.popitem(last=False)
    return tokenizer


def find_chat_template(folder: Path) -> str | None:
    """Returns the chat template of a model folder, or None if it has none; of several with names, `default`.

    Raises:
        BadInputError: The template or `tokenizer_config.json` cannot be read, or none of several is named `default`.
    """
    settings, separate = (folder / name for name in TEMPLATE_FILES)
    if separate.exists():
        expected = "a chat template in UTF-8"
        try:
            return read_input(separate, expected).decode()
        except UnicodeDecodeError as error:
            raise BadInputError(str(separate), f"byte {error.start + 1} is not UTF-8", expected) from error
    template = read_json(settings).get("chat_template")
    if template is None or isinstance(template, str):
        return template
    if isinstance(template, dict):
        named = cast("dict[object, object]", template)
    else:
        listed = cast("list[object]", template) if isinstance(template, list) else []
        entries = [cast("dict[str, object]", entry) for entry in listed if isinstance(entry, dict)]
        named = {entry.get("name"): entry.get("template") for entry in entries}
    default = named.get("default")
    if not isinstance(default, str):
        found = f"chat templates named {', '.join(map(repr, named))}" if named else "a chat_template of another form"
        raise BadInputError(str(settings), found, "a text, or a list with one named 'default'")
    return default


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
        self._where = str(folder)
        path = folder / "tokenizer.json"
        remedy = "export the model with its fast tokenizer"
        content = read_input(path, "a tokenizer", remedy, most_bytes=LARGEST_TOKENIZER)
        source = find_chat_template(folder)
        if source is None:
            raise BadInputError(
                str(folder), "no chat template", "chat_template.jinja, or chat_template in tokenizer_config.json",
                "add one, or choose an instruct model",
            )  # fmt: skip
        self._template = ChatTemplate(source, str(folder))  # its process starts while the tokenizer is read
        try:
            self._tokenizer = Tokenizer.from_str(content.decode())
        except Exception as error:  # tokenizers raises bare Exception
            raise BadInputError(str(path), f"unreadable ({error})", "a file of the tokenizers library") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._settings = read_json(folder / "tokenizer_config.json")
        self._template.check()
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        """Ids of the tokens that `decode` leaves out."""
        end = self._end_of_message()
        self.eos_ids = self._find_eos_ids(folder, end)
        self._end_id = self.eos_ids[0] if end is None else end
        self._decoded = lru_cache(maxsize=1 << 16)(self._decode)

    def _find_eos_ids(self, folder: Path, end: int | None) -> tuple[int, ...]:
        """Returns the ids that end a text: from `eos_token`, the generation config or config, and `end`.

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
        if end is not None and end not in eos_ids:
            eos_ids.append(end)
        if not eos_ids:
            raise BadInputError(str(folder), "no end-of-sequence token", "eos_token in tokenizer_config.json")
        return tuple(eos_ids)

    def _end_of_message(self) -> int | None:
        """Returns the special token that the template writes after the assistant's message; None if there is none."""
        question, answer = {"role": "user", "content": "1 + 1 = ?"}, {"role": "assistant", "content": "It is two"}
        try:
            (text,) = self._template.render([[question, answer]], add_generation_prompt=False, **self._special_tokens)
        except BadInputError:
            return None  # the template writes prompts only; whether it can is checked where a prompt is asked for
        _, written, end = text.rpartition(answer["content"])
        ids = self.text_ids(end.lstrip()) if written else []
        return ids[0] if ids and ids[0] in self.special_ids else None

    @property
    def vocabulary_size(self) -> int:
        """Largest token id that a text can have, plus 1.

        The special tokens above all others do not count: that for pictures in Gemma 3 1B, which reads none, is above
        the vocabulary of the model.
        """
        size, optional = self._tokenizer.get_vocab_size(with_added_tokens=True), self.special_ids - {*self.eos_ids}
        while size - 1 in optional:
            size -= 1
        return size

    def prompt_text(self, prompt: str) -> str:
        """Returns the text that the model reads for a prompt, up to the start of its answer.

        Args:
            prompt: A user message, or a conversation (see `artifacts.documents.conversation`).

        Raises:
            BadInputError: The chat template fails, or exceeds its limit of time or length.
        """
        return self._prompt_texts([prompt])[0]

    def _prompt_texts(self, prompts: Sequence[str]) -> list[str]:
        conversations = [messages_of(prompt) for prompt in prompts]
        return self._template.render(conversations, add_generation_prompt=True, **self._special_tokens)

    @property
    def _special_tokens(self) -> dict[str, str]:
        """The special tokens that have names, as variables of the template."""
        texts = {name: _token_text(self._settings.get(name)) for name in _SPECIAL_TOKENS}
        return {name: text for name, text in texts.items() if text is not None}

    def prompt_token_ids(self, prompt: str) -> list[int]:
        """Returns the token ids of a prompt in the chat template, up to the start of the answer."""
        return self._tokenizer.encode(self.prompt_text(prompt), add_special_tokens=False).ids

    def prompt_lengths(self, prompts: Sequence[str]) -> list[int]:
        """Returns the number of tokens of each prompt, as `prompt_token_ids` gives them.

        Raises:
            BadInputError: As `prompt_text`.
        """
        lengths: list[int] = []
        for start in range(0, len(prompts), _COUNTED_AT_ONCE):
            texts = self._prompt_texts(prompts[start : start + _COUNTED_AT_ONCE])
            lengths += map(len, self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        return lengths

    @cached_property
    def _around_reply(self) -> tuple[str, str]:
        """What the template writes between an answer and the user's next message, and from there to the next answer."""
        contents = ("1 + 1 = ?", "It is two", "Is it three")
        roles = ("user", "assistant", "user")
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        (text,) = self._template.render([messages], add_generation_prompt=True, **self._special_tokens)
        between, found, after = text.rpartition(contents[1])[2].partition(contents[2])
        if not found or contents[1] not in text:
            problem = "its chat template does not write a second message of the user after an answer"
            raise BadInputError(self._where, problem, "a template for several turns", "choose another model")
        return between, after

    def reply_ids(self, answer: Sequence[int], message: str) -> list[int]:
        """Returns the token ids that follow an answer: the end of its message, a message of the user, the next start.

        Args:
            answer: The answer as it was sampled; the token that ends its message is not repeated.
            message: The message of the user.

        Raises:
            BadInputError: The chat template fails, or does not write the message.
        """
        between, after = self._around_reply
        ids = self.text_ids(f"{between}{message}{after}")
        return ids[1:] if answer and ids[:1] == list(answer[-1:]) else ids

    def answer_ids(self, answer: str) -> list[int]:
        """Returns the token ids of an answer with the token that the template writes after it, else `eos_token`."""
        return [*self.text_ids(answer), self._end_id]

    def text_ids(self, text: str) -> list[int]:
        """Returns the token ids of a text, without special tokens of the template."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: list[int]) -> str:
        """Returns the text of token ids without special tokens; bytes that are not UTF-8 become U+FFFD."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def hides(self, text: str) -> bool:
        """Returns whether a text is one special token, which `decode` omits."""
        token_id = self._tokenizer.token_to_id(text)
        return token_id is not None and not self.decode([token_id])

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
