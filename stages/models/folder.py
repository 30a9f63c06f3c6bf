"""Is this folder a checkpoint that both the trainer and the engine can open? And which one is it?"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from artifacts.errors import BadInputError
from stages.models.chat import ChatTokenizer, read_json
from stages.models.tensor_file import read_header

ARCHITECTURES = ("Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM")
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
_TAKEN = (".json", ".safetensors", ".jinja", ".txt", ".model", ".md")  # weights, tokenizer, the card with the licence
_HASHED_AT_ONCE = 4
_FLOATS = ("BF16", "F16", "F32")
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


def _check_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    config = read_json(path)
    architectures = config.get("architectures")
    supported = ", ".join(ARCHITECTURES)
    if not isinstance(architectures, list) or not any(name in ARCHITECTURES for name in architectures):  # pyright: ignore[reportUnknownVariableType]
        raise BadInputError(
            str(path), f"architectures {architectures!r}", supported, "choose a model of these families"
        )
    for name in _SIZES:
        if not isinstance(config.get(name), int) or config[name] < 1:
            raise BadInputError(str(path), f"{name} is {config.get(name)!r}", "a positive whole number")
    if config.get("hidden_act", "silu") != "silu":
        raise BadInputError(str(path), f"hidden_act {config['hidden_act']!r}", "silu")
    if config.get("quantization_config"):
        raise BadInputError(str(path), "quantized weights", "bf16, f16 or f32 weights", "take the unquantized model")
    return config


def hidden_size(folder: Path) -> int:
    """The hidden size of a model folder.

    Raises:
        BadInputError: The folder is none of a supported model.
    """
    return _check_config(folder)["hidden_size"]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder.

    Raises:
        BadInputError: There are none, or one that the index names is missing.
    """
    single = folder / WEIGHTS
    if single.is_file():
        return [single]
    index = folder / WEIGHTS_INDEX
    if not index.is_file():
        raise BadInputError(
            str(folder), f"no {WEIGHTS}", "weights in safetensors", "save the model with safe_serialization=True"
        )
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict):
        raise BadInputError(str(index), "no weight_map", "an index of safetensors files", "copy the file again")
    files = [folder / str(name) for name in sorted(set(table.values()))]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for file in files:
        if not file.is_file():
            raise BadInputError(str(file), "no such file", f"every file that {WEIGHTS_INDEX} names", "copy it too")
    return files


def _check_weights(folder: Path, config: dict[str, Any]) -> None:
    header: dict[str, dict[str, Any]] = {}
    for file in weight_files(folder):
        header.update(read_header(file))
    where = str(folder / WEIGHTS)
    shape = [config["vocab_size"], config["hidden_size"]]
    embedding = header.get("model.embed_tokens.weight", {}).get("shape")
    if embedding != shape:
        raise BadInputError(where, f"model.embed_tokens.weight of shape {embedding}", f"{shape} as in config.json")
    last = f"model.layers.{config['num_hidden_layers'] - 1}.self_attn.q_proj.weight"
    for name in (last, "model.norm.weight"):
        if name not in header:
            raise BadInputError(
                where, f"no tensor {name}", "every layer that config.json counts", "copy the whole model"
            )
    for name, entry in header.items():
        if entry.get("dtype") not in _FLOATS:
            raise BadInputError(
                where, f"{name} is {entry.get('dtype')}", ", ".join(_FLOATS), "take the unquantized model"
            )


def content_of(folder: Path) -> dict[str, str]:
    """SHA-256 (hex) of each file of a model folder that its checkpoint is made of, by name; read once while unchanged.

    Raises:
        BadInputError: There is no such folder, or a file of it cannot be read.
    """
    _check_is_folder(folder)
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix in _TAKEN and path.is_file())
    except OSError as error:
        raise BadInputError(str(folder), f"cannot be read ({error.strerror})", "a Hugging Face model folder") from error
    with ThreadPoolExecutor(_HASHED_AT_ONCE) as pool:
        digests = list(pool.map(_file_digest, files))
    return {path.name: digest for path, digest in zip(files, digests, strict=True)}


def _file_digest(path: Path) -> str:
    try:
        state = path.stat()
        return _digest(path, state.st_ino, state.st_size, state.st_mtime_ns)
    except OSError as error:
        found = f"cannot be read ({error.strerror})"
        raise BadInputError(str(path), found, "a file of a model folder", "check its rights") from error


@lru_cache(maxsize=1024)
def _digest(path: Path, inode: int, size_bytes: int, modified_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_is_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise BadInputError(
            str(folder), "no such folder", "a Hugging Face model folder", "check the recipe's model.path"
        )


def check_folder(folder: Path) -> None:
    """Checks that a folder is a complete checkpoint of a supported family, without reading its weights.

    Args:
        folder: A Hugging Face model folder.

    Raises:
        BadInputError: Missing or damaged files, an unsupported architecture, or no chat template.
    """
    _check_is_folder(folder)
    config = _check_config(folder)
    if not (folder / "tokenizer_config.json").is_file():
        raise BadInputError(
            str(folder),
            "no tokenizer_config.json",
            "the tokenizer files beside the weights",
            "save the tokenizer into the folder too",
        )
    chat = ChatTokenizer(folder)
    if chat.vocabulary_size > config["vocab_size"]:
        raise BadInputError(
            str(folder),
            f"a tokenizer of {chat.vocabulary_size} tokens",
            f"at most vocab_size {config['vocab_size']}",
            "take the tokenizer that belongs to the model",
        )
    chat.prompt_ids("Who did it?")
    _check_weights(folder, config)
