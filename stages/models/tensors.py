"""Checks the tensors of a checkpoint against its config.json: names, shapes, types and files, without the weights."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from artifacts.documents.suggestions import listed
from artifacts.errors import BadInputError
from stages.models.adapter_config import AdapterConfig
from stages.models.adapters import (
    ADAPTER_WEIGHTS,
    adapted_weights,
    base_of,
    has_adapter,
    read_adapter_config,
    tensor_name,
)
from stages.models.json_file import read_json, shown
from stages.models.shape import DecoderShape, read_shape
from stages.models.tensor_file import StoredTensor, read_header
from stages.models.value_head import VALUE_HEAD_WEIGHT

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
FILE_BYTES = 4 << 30
"""Size above which the trainer splits weights over several files."""
_FLOATS = ("BF16", "F16", "F32")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_COMPUTED = "rotary_emb.inv_freq"
"""Suffix of the name of a constant that old versions of transformers saved; every reader computes it itself."""
_COPY_AGAIN = "copy the whole model again"
_COMPARED = 1 << 23
"""Numbers of two tensors that are in memory while they are compared."""


def tensors_of(shape: DecoderShape) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a decoder's tensors by Hugging Face name; matrices are [out, in].

    Source: the modules of the families' classes in transformers.
    """
    width, queries, keys = shape.embed_dim, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    tensors: dict[str, tuple[int, ...]] = {EMBEDDING: (shape.vocab_size, width)}
    if shape.fused:
        inputs = {"self_attn.qkv_proj": (queries + 2 * keys, width, shape.qkv_bias)}
        gates = {"mlp.gate_up_proj": (2 * shape.hidden_dim, width, shape.mlp_bias)}
    else:
        sizes = {"q": queries, "k": keys, "v": keys}
        inputs = {f"self_attn.{name}_proj": (rows, width, shape.qkv_bias) for name, rows in sizes.items()}
        gates = {f"mlp.{name}_proj": (shape.hidden_dim, width, shape.mlp_bias) for name in ("gate", "up")}
    feed_forward = {**gates, "mlp.down_proj": (width, shape.hidden_dim, shape.mlp_bias)}
    if shape.experts is not None:
        of_expert = {name.removeprefix("mlp."): sizes for name, sizes in feed_forward.items()}
        feed_forward = {"mlp.gate": (shape.experts.count, width, False)}
        for expert in range(shape.experts.count):
            feed_forward |= {f"mlp.experts.{expert}.{name}": sizes for name, sizes in of_expert.items()}
    projections = {**inputs, "self_attn.o_proj": (width, queries, shape.output_bias), **feed_forward}
    norms = dict.fromkeys(filter(None, asdict(shape.norms).values()), width)
    if shape.qk_norm:
        whole = shape.qk_norm == "projection"
        norms |= {
            "self_attn.q_norm": queries if whole else shape.head_dim,
            "self_attn.k_norm": keys if whole else shape.head_dim,
        }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns, bias) in projections.items():
            tensors[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                tensors[f"{prefix}{name}.bias"] = (rows,)
        for name, size in norms.items():
            tensors[f"{prefix}{name}.weight"] = (size,)
    tensors["model.norm.weight"] = (width,)
    if shape.value_head:
        tensors[VALUE_HEAD_WEIGHT] = (1, width)
    elif not shape.tied:
        tensors[HEAD] = (shape.vocab_size, width)
    return tensors


def check_weights(folder: Path) -> dict[str, StoredTensor]:
    """Checks that a checkpoint contains the tensors that its config.json implies, and returns them by name.

    Only config, index and headers are read, unless an output head is stored next to the embedding it is tied to. The
    tensors of a checkpoint with an adapter are those of its base, and the adapter is checked too.

    Args:
        folder: A Hugging Face model folder.

    Raises:
        BadInputError: A tensor is missing, unexpected, or of another shape or type; a file is damaged; the index does
            not match the files; or the adapter is of another base.
    """
    base = base_of(folder)
    shape = read_shape(base)
    stored = stored_tensors(base)
    compare(base, shape, stored)
    if has_adapter(folder):
        check_adapter(folder, tensors_of(shape))
    return stored


def check_adapter(folder: Path, weights: Mapping[str, Sequence[int]]) -> AdapterConfig:
    """Checks that an adapter fits a model, from its small files and headers, and returns its settings.

    Args:
        folder: Adapter folder.
        weights: Shapes of the model's tensors by Hugging Face name.

    Raises:
        BadInputError: The adapter is of another model, of another kind (see `read_adapter_config`), or damaged.
    """
    config = read_adapter_config(folder)
    path = folder / ADAPTER_WEIGHTS
    stored = {name: tensor.shape for name, tensor in read_header(path).items()}
    needed: dict[str, tuple[int, ...]] = {}
    for name in adapted_weights(config, weights):
        rows, columns = weights[name]
        needed |= {tensor_name(name, "A"): (config.rank, columns), tensor_name(name, "B"): (rows, config.rank)}
    remedy = "name the model that the adapter was trained on, or another adapter"
    for name in sorted(needed.keys() | stored.keys()):
        if needed.get(name) != stored.get(name):
            found, expected = (_shape_words(shapes.get(name)) for shapes in (stored, needed))
            raise BadInputError(f"{path}: {name}", f"an adapter of another base: {found}", expected, remedy)
    return config


def _shape_words(shape: Sequence[int] | None) -> str:
    return "no such tensor" if shape is None else f"shape {list(shape)}"


def compare(folder: Path, shape: DecoderShape, stored: Mapping[str, StoredTensor]) -> None:
    """Compares the stored tensors of a folder with those of a decoder.

    Args:
        folder: Hugging Face folder, for error messages.
        shape: Shape of the decoder.
        stored: Stored tensors by name.

    Raises:
        BadInputError: A tensor is missing, unexpected, or of another shape or type.
    """
    needed = tensors_of(shape)
    implied = f"the {len(needed)} tensors of its config.json"
    if missing := [name for name in needed if name not in stored]:
        raise BadInputError(str(folder), f"no tensor {listed(missing, 1)}", implied, _COPY_AGAIN)
    allowed = dict(needed)
    if shape.tied and not shape.value_head:
        allowed[HEAD] = needed[EMBEDDING]
    unexpected = [name for name in stored if name not in allowed and not name.endswith(_COMPUTED)]
    if unexpected:  # ignoring them would silently lose weights
        raise BadInputError(
            str(folder),
            f"tensor {listed([shown(name) for name in unexpected], 1)}, which config.json does not imply",
            implied,
            "use the config.json that belongs to the weights",
        )
    for name, sizes in allowed.items():
        if name in stored:
            _compare_one(name, stored[name], sizes)
    if HEAD in stored and shape.tied and not _same_content(stored[HEAD], stored[EMBEDDING]):
        raise BadInputError(
            f"{stored[HEAD].file}: {HEAD}",
            "another matrix than the embedding, although config.json ties them",
            "the same matrix as the embedding, or none",
            "set tie_word_embeddings to false if the model has an output head of its own",
        )


def _compare_one(name: str, tensor: StoredTensor, sizes: tuple[int, ...]) -> None:
    where = f"{tensor.file}: {name}"
    if tensor.shape != sizes:
        raise BadInputError(
            where, f"shape {shown(list(tensor.shape))}", f"{list(sizes)} as in config.json", _COPY_AGAIN
        )
    if tensor.dtype not in _FLOATS:
        raise BadInputError(where, f"type {tensor.dtype}", ", ".join(_FLOATS), "use the unquantized model")


def _same_content(first: StoredTensor, second: StoredTensor) -> bool:
    return first.dtype == second.dtype and all(
        first.read(start, start + _COMPARED) == second.read(start, start + _COMPARED)
        for start in range(0, math.prod(first.shape), _COMPARED)
    )


def _files(folder: Path, file_of: Mapping[str, str]) -> list[Path]:
    return sorted({folder / name for name in file_of.values()}) or [folder / WEIGHTS]


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of a model folder by name, from one file or from several with an index.

    Raises:
        BadInputError: A file is missing or damaged, or the index names the wrong file for a tensor.
    """
    file_of = _file_of_tensor(folder)
    stored: dict[str, StoredTensor] = {}
    for file in _files(folder, file_of):
        for name, tensor in read_header(file).items():
            if file_of and file_of.get(name) != file.name:
                stated = f"places it in {shown(file_of[name])}" if name in file_of else "does not list it"
                problem = f"{WEIGHTS_INDEX} {stated}"
                raise BadInputError(f"{file}: tensor {shown(name)}", problem, "the file it is in", _COPY_AGAIN)
            stored[name] = tensor
    if lost := [name for name in file_of if name not in stored]:
        problem = f"{listed([shown(name) for name in lost], 1)} is not in {file_of[lost[0]]}"
        raise BadInputError(str(folder / WEIGHTS_INDEX), problem, "tensors that the files hold", _COPY_AGAIN)
    return stored


def _file_of_tensor(folder: Path) -> dict[str, str]:
    """Returns the file name of each tensor from the index; empty if a single file contains all tensors.

    Readers of model folders differ: vLLM reads the files that the index names, or every file without an index, and
    transformers prefers a single file to the index. A folder that they would read differently is refused.

    Raises:
        BadInputError: There are no files, one is missing, or it is ambiguous which files count.
    """
    single, index = folder / WEIGHTS, folder / WEIGHTS_INDEX
    if not index.is_file():
        if not single.is_file():
            if shards := len(list(folder.glob("*.safetensors"))):
                found = f"no {WEIGHTS_INDEX} beside {shards} files of weights"
                raise BadInputError(str(folder), found, "the index that names the file of each tensor", "copy it, too")
            remedy = "copy the weights, or save the model with safe_serialization=True"
            raise BadInputError(str(folder), f"no {WEIGHTS}", "weights in safetensors", remedy)
        others = sorted(path.name for path in folder.glob("*.safetensors") if path.name != WEIGHTS)
        if others:
            remedy = "remove the files that do not belong to the model"
            raise BadInputError(str(folder), f"{shown(others[0])} beside {WEIGHTS}", f"{WEIGHTS} alone", remedy)
        return {}
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise BadInputError(str(index), "no weight_map", "an index of safetensors files", _COPY_AGAIN)
    names = cast("dict[str, Any]", table)
    for name in names.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise BadInputError(
                str(index), f"{shown(name)} in its weight_map", "names of safetensors files beside it", _COPY_AGAIN
            )
        if not (folder / name).is_file():
            raise BadInputError(
                str(folder / name), "no such file", f"every file that {WEIGHTS_INDEX} names", "copy it too"
            )
    if single.is_file() and WEIGHTS not in names.values():
        problem = f"both {WEIGHTS} and {WEIGHTS_INDEX}, which does not name it"
        raise BadInputError(str(folder), problem, "one of them", "remove the one that does not belong to the model")
    return names
