"""The tokenizer of a GGUF file from the file's header alone: no weights, no torch, a fraction of a second.

The header's layout is GGUF's (github.com/ggml-org/ggml, docs/gguf.md), little-endian, versions 2 and 3.
"""

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from artifacts.errors import BadInputError

_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _LIST = 8, 9
_CONTROL = 3
"""The type of a token that stands for no text."""


def write_tokenizer(file: Path, folder: Path) -> None:
    """Writes the files that `stages.models.chat.ChatTokenizer` reads: the tokenizer and its settings.

    Raises:
        BadInputError: The file is no such GGUF file, or has another tokenizer than byte-level BPE.
    """
    try:
        with file.open("rb") as opened:
            header = _read_header(opened)
        if header["tokenizer.ggml.model"] != "gpt2":
            raise BadInputError(str(file), f"a tokenizer of kind {header['tokenizer.ggml.model']}", "byte-level BPE")
        tokens: list[str] = header["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ", 1)) for merge in header["tokenizer.ggml.merges"]]
        control = [t for t, kind in zip(tokens, header["tokenizer.ggml.token_type"], strict=True) if kind == _CONTROL]
        settings = {
            "chat_template": header["tokenizer.chat_template"],
            "bos_token": tokens[header["tokenizer.ggml.bos_token_id"]],
            "eos_token": tokens[header["tokenizer.ggml.eos_token_id"]],
        }
    except (struct.error, KeyError, IndexError, UnicodeDecodeError) as error:
        raise BadInputError(str(file), f"not readable as GGUF ({error!r})", "a GGUF file with a tokenizer") from error
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _read_header(file: BinaryIO) -> dict[str, Any]:
    if file.read(4) != b"GGUF" or _number(file, "<I") not in (2, 3):
        raise KeyError("GGUF")
    _number(file, "<Q")  # of tensors
    return {_text(file): _value(file, _number(file, "<I")) for _ in range(_number(file, "<Q"))}


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _text(file)
    if kind == _LIST:
        inner, count = _number(file, "<I"), _number(file, "<Q")
        return [_value(file, inner) for _ in range(count)]
    return _number(file, _NUMBERS[kind])


def _text(file: BinaryIO) -> str:
    return file.read(_number(file, "<Q")).decode()


def _number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]
