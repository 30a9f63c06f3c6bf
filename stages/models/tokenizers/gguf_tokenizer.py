"""Reads the tokenizer of a GGUF file, without its weights and without torch."""

import json
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from artifacts.errors import BadInputError

_WHOLE = ("gpt-2", "phi-2", "olmo", "mpt", "jais", "trillion", "gigachat", "mellum", "a.x-4.0")
_DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
_CONTROL = 3
"""Token type of control tokens, which represent no text."""


def words_of(file: Path, name: str | None) -> pre_tokenizers.PreTokenizer:
    """Returns the rules by which GPT-2's kind of byte-level BPE divides a text into words.

    Args:
        file: The GGUF file, for the error.
        name: What it calls them (`tokenizer.ggml.pre`). These names are llama.cpp's (`src/llama-vocab.cpp`), of which
            transformers 5.19 knows only those with a pattern of their own; it takes GPT-2's rules for all others.

    Raises:
        BadInputError: They are other rules.
    """
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in _WHOLE:
        return words
    if name in _DIGITS_APART:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    known = ", ".join((*_WHOLE, *_DIGITS_APART))
    remedy = "use the model's Hugging Face folder or hub id"
    found = f"a tokenizer with the rules {name or '(not named)'}"
    raise BadInputError(str(file), found, f"those of {known}, or a pattern that transformers has", remedy)


def write_tokenizer(file: Path, folder: Path) -> None:
    """Writes the tokenizer of a GGUF file as the files that `ChatTokenizer` reads.

    Args:
        file: GGUF file.
        folder: Folder to write into; made if missing.

    Raises:
        BadInputError: The file is not a GGUF file with a tokenizer, or the tokenizer is not byte-level BPE with the
            rules of `words_of`.
    """
    try:
        fields = GGUFReader(file).fields
        header: dict[str, Any] = {
            name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")
        }
        if header["tokenizer.ggml.model"] != "gpt2":
            raise BadInputError(str(file), f"a tokenizer of kind {header['tokenizer.ggml.model']}", "byte-level BPE")
        words = words_of(file, header.get("tokenizer.ggml.pre"))
        tokens: list[str] = header["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ", 1)) for merge in header["tokenizer.ggml.merges"]]
        control = [t for t, kind in zip(tokens, header["tokenizer.ggml.token_type"], strict=True) if kind == _CONTROL]
        settings = {
            "chat_template": header["tokenizer.chat_template"],
            "bos_token": tokens[header["tokenizer.ggml.bos_token_id"]],
            "eos_token": tokens[header["tokenizer.ggml.eos_token_id"]],
        }
    except (ValueError, KeyError, IndexError) as error:
        raise BadInputError(str(file), f"not readable as GGUF ({error!r})", "a GGUF file with a tokenizer") from error
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = words  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
