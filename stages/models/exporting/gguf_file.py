"""Writes an exported folder as a GGUF file for llama.cpp.

Names and metadata are those of llama.cpp's `convert_hf_to_gguf.py`, whose package `gguf` writes the file.
"""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
from gguf import (
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    GGUFWriter,
    LlamaFileType,
    TokenType,
    get_tensor_name_map,
    quants,
)

from artifacts.errors import BadInputError
from artifacts.local.input_files import LARGEST_TOKENIZER, read_input
from stages.models.exporting.folder import Dtype
from stages.models.exporting.weights import Floats, full_tensors
from stages.models.json_file import read_json
from stages.models.shape import DecoderShape, read_shape
from stages.models.tokenizers.chat import find_chat_template

GGUF = "model.gguf"
_ARCHITECTURES = {"llama": MODEL_ARCH.LLAMA, "qwen2": MODEL_ARCH.QWEN2, "qwen3": MODEL_ARCH.QWEN3}
_TYPES = {
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "fp16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
}
_ADDED_IDS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unk", "pad_token": "pad"}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


def _split(digits: str) -> list[dict[str, Any]]:
    word = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    other = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    rule = {"type": "Split", "pattern": {"Regex": word + digits + other}, "behavior": "Isolated", "invert": False}
    return [rule, {**_BYTES, "use_regex": False}]


_WORDS = {
    "llama-bpe": _split(r"\p{N}{1,3}"),
    "qwen2": _split(r"\p{N}"),
    "smollm": [{"type": "Digits", "individual_digits": True}, _BYTES],
    "gpt-2": [_BYTES],
}
"""llama.cpp's name of each pre-tokenizer, and its rules, which divide a text into words."""


def check_gguf(folder: Path) -> None:
    """Checks that a model can be written as GGUF.

    Raises:
        BadInputError: The family, its rotations or its tokenizer are not among those that are written, or the tokenizer
            has ids that the model does not.
    """
    shape = read_shape(folder)
    if shape.family not in _ARCHITECTURES:
        raise BadInputError("--gguf", f"a model of family {shape.family}", ", ".join(_ARCHITECTURES), "leave it out")
    if shape.rope.scaling is not None or shape.sliding_layers:
        raise BadInputError(
            "--gguf", "scaled rotary positions, or sliding layers", "neither", "use llama.cpp's convert_hf_to_gguf.py"
        )
    tokenizer = _tokenizer(folder)
    _words(tokenizer)
    highest = max([0, *tokenizer["model"]["vocab"].values(), *(added["id"] for added in tokenizer["added_tokens"])])
    if highest >= shape.vocab_size:
        problem = f"a tokenizer with the id {highest}"
        raise BadInputError("--gguf", problem, f"ids below {shape.vocab_size}, the model's vocabulary", "leave it out")


def write_gguf(folder: Path, dtype: Dtype) -> Path:
    """Writes `model.gguf` into a folder with full weights and returns its path.

    Raises:
        BadInputError: As `check_gguf`.
    """
    check_gguf(folder)
    shape, path = read_shape(folder), folder / GGUF
    architecture = _ARCHITECTURES[shape.family]
    writer = GGUFWriter(path, MODEL_ARCH_NAMES[architecture])
    _add_sizes(writer, shape, dtype)
    _add_tokenizer(writer, folder, shape.vocab_size)
    names = get_tensor_name_map(architecture, shape.layers)
    for name, values in full_tensors(folder):
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None  # every tensor of these families has one
        ordered = _in_pairs(name, values, shape) if shape.family == "llama" else values
        kind = _TYPES[dtype][0] if ordered.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(target, quants.quantize(ordered, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_sizes(writer: GGUFWriter, shape: DecoderShape, dtype: Dtype) -> None:
    writer.add_file_type(_TYPES[dtype][1])
    writer.add_vocab_size(shape.vocab_size)
    writer.add_context_length(shape.max_positions)
    writer.add_embedding_length(shape.embed_dim)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden_dim)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope.theta)
    writer.add_layer_norm_rms_eps(shape.norm_eps)


def _in_pairs(name: str, values: Floats, shape: DecoderShape) -> Floats:
    """Returns queries and keys in the order of llama.cpp, which rotates neighbours instead of the two halves."""
    heads = {"q_proj": shape.heads, "k_proj": shape.kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return values
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _tokenizer(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer.json"
    tokenizer = cast("dict[str, Any]", json.loads(read_input(path, "a tokenizer", most_bytes=LARGEST_TOKENIZER)))
    kind = tokenizer["model"].get("type")
    if kind != "BPE":
        raise BadInputError("--gguf", f"a tokenizer of type {kind}", "byte-level BPE", "leave it out")
    if not tokenizer["model"]["merges"]:
        raise BadInputError("--gguf", "a tokenizer without merges", "byte-level BPE", "leave it out")
    return tokenizer


def _words(tokenizer: dict[str, Any]) -> str:
    """Returns llama.cpp's name of the pre-tokenizer.

    Raises:
        BadInputError: It has other rules than those that are written, or the text is changed before it.
    """
    stated = tokenizer["pre_tokenizer"] or {}
    rules = stated.get("pretokenizers", [stated])
    # `trim_offsets` changes no token, and files of old libraries leave out `use_regex`.
    plain = [{name: value for name, value in rule.items() if name != "trim_offsets"} for rule in rules]
    plain = [{"use_regex": True, **rule} if rule.get("type") == "ByteLevel" else rule for rule in plain]
    normaliser = (tokenizer.get("normalizer") or {}).get("type")
    for name, words in _WORDS.items():
        if plain == words and normaliser in (None, "NFC"):
            return name
    kinds = ", ".join(str(rule.get("type")) for rule in rules)
    found = f"a tokenizer with the rules {kinds}" + (f" after {normaliser}" if normaliser else "")
    remedy = "use llama.cpp's convert_hf_to_gguf.py"
    raise BadInputError("--gguf", found, f"exactly the rules of {', '.join(_WORDS)}", remedy)


def _add_tokenizer(writer: GGUFWriter, folder: Path, size: int) -> None:
    tokenizer, settings = _tokenizer(folder), read_json(folder / "tokenizer_config.json")
    ids: dict[str, int] = dict(tokenizer["model"]["vocab"])
    tokens, kinds = [f"[PAD{number}]" for number in range(size)], [TokenType.UNUSED] * size
    for token, number in ids.items():
        tokens[number], kinds[number] = token, TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        ids[added["content"]] = number = added["id"]
        tokens[number] = added["content"]
        kinds[number] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_words(tokenizer))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    for setting, name in _ADDED_IDS.items():
        stated = settings.get(setting)
        token = stated.get("content") if isinstance(stated, dict) else stated
        if token in ids:
            getattr(writer, f"add_{name}_token_id")(ids[token])
    writer.add_add_bos_token(False)
    if (template := find_chat_template(folder)) is not None:
        writer.add_chat_template(template)
