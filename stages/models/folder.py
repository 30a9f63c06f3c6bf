"""Checks that a folder is a checkpoint that trainer and engine can load, and hashes its content."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from artifacts.documents.parsing import is_folder
from artifacts.errors import BadInputError
from artifacts.local.input_files import LARGEST_TOKENIZER, LARGEST_WEIGHTS, check_input, open_regular, reason
from stages.models.adapters import base_of
from stages.models.json_file import read_json, refuse_own_code
from stages.models.shape import DecoderShape, families, read_shape
from stages.models.tensors import check_weights
from stages.models.tokenizers.chat import ChatTokenizer

_SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".model", ".md")
"""Suffixes of a checkpoint's files: weights, tokenizer, and the model card with the licence."""
_HASHED_AT_ONCE = 4


def _check_config(folder: Path) -> DecoderShape:
    path = folder / "config.json"
    if not read_json(path).get("architectures"):
        known = ", ".join(sorted(family.architecture for family in families().values()))
        raise BadInputError(str(path), "no architectures", known, "choose a model of these families")
    return read_shape(folder)


def content_of(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 (hex) of each file of a model folder that belongs to its checkpoint, by file name.

    Digests are cached, so an unchanged file is read once in each process.

    Raises:
        BadInputError: There is no such folder, or one of its files cannot be read.
    """
    _check_is_folder(folder)
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file())
    except OSError as error:
        raise BadInputError(str(folder), f"cannot be read ({error.strerror})", "a Hugging Face model folder") from error
    with ThreadPoolExecutor(_HASHED_AT_ONCE) as pool:
        digests = list(pool.map(_file_digest, files))
    return {path.name: digest for path, digest in zip(files, digests, strict=True)}


def _file_digest(path: Path) -> str:
    try:
        status = path.stat()
        return _digest(path, status.st_ino, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise BadInputError(str(path), reason(error), "a file of a model folder", "check its permissions") from error


@lru_cache(maxsize=1024)
def _digest(path: Path, inode: int, size_bytes: int, modified_ns: int) -> str:
    with open_regular(path, LARGEST_WEIGHTS) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_is_folder(folder: Path) -> None:
    if not is_folder(folder):
        raise BadInputError(
            str(folder), "no such folder", "a Hugging Face model folder", "check the recipe's model.path"
        )
    if folder.name.startswith("models--") and is_folder(folder / "snapshots"):
        snapshots = ", ".join(sorted(f"snapshots/{path.name}" for path in (folder / "snapshots").iterdir()))
        raise BadInputError(
            str(folder), "a folder of the hub's cache", "a Hugging Face model folder", f"name one of: {snapshots}"
        )


def _check_files(folder: Path) -> None:
    """Checks that each file of a checkpoint can be read to its end, even if only transformers and vLLM open it."""
    for path in sorted(folder.iterdir()):
        if path.suffix in _SUFFIXES and path.exists() and not path.is_dir():
            largest = LARGEST_WEIGHTS if path.suffix == ".safetensors" else LARGEST_TOKENIZER
            check_input(path, "a file of a Hugging Face model folder", "copy the model again", most_bytes=largest)


def check_folder(folder: Path) -> None:
    """Checks that a folder is a complete checkpoint of a supported family, from its small files and headers.

    Args:
        folder: A Hugging Face model folder.

    Raises:
        BadInputError: Files are missing, damaged, too large or not regular files; the architecture is unsupported;
            tensors are missing or unexpected; the tokenizer has too many tokens; the folder contains code; or there is
            no chat template.
    """
    _check_is_folder(folder)
    base_of(folder)
    _check_files(folder)
    shape = _check_config(folder)
    settings = folder / "tokenizer_config.json"
    if not settings.is_file():
        raise BadInputError(
            str(folder),
            "no tokenizer_config.json",
            "the tokenizer files next to the weights",
            "save the tokenizer into the folder too",
        )
    refuse_own_code(settings, read_json(settings))
    chat = ChatTokenizer(folder)
    if chat.vocabulary_size > shape.vocab_size:
        raise BadInputError(
            str(folder),
            f"a tokenizer of {chat.vocabulary_size} tokens",
            f"at most vocab_size {shape.vocab_size}",
            "use the tokenizer that belongs to the model",
        )
    chat.prompt_token_ids("Who did it?")
    check_weights(folder)
