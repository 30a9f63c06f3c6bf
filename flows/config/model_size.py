"""Determines the size of a recipe's model without fetching or loading it."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from artifacts.errors import BadInputError
from artifacts.local.input_files import read_regular
from artifacts.store.location import local_folder
from stages.models.from_scratch import ScratchModel, config_of
from stages.models.merging.config import MergedModel
from stages.models.shape import DecoderShape, describe, families, text_part
from stages.models.source import (
    FolderModel,
    GgufPackageModel,
    HubModel,
    ModelConfig,
    StoredModel,
    find_packaged_file,
)

_IN_NAME = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([bBmM])(?![A-Za-z0-9])")
_UNITS = {"b": 1e9, "m": 1e6}
UNKNOWN = "unknown until fetched"


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of a decoder's layers.

    Attributes:
        queries: Width of all query heads together.
        keys: Width of all key heads together, equal to that of the value heads.
        tied: Whether the output head shares the weights of the embedding.
        head_dim: Width of one head; None if it is not known.
        positions: Longest sequence of the model in tokens; None if it is not known.
        norms: Number of norms of a layer over its width.
        norms_heads: Whether queries and keys are normalized.
        sliding_layers: Number of layers that look back at most `window` tokens.
        divisible: Whether a tensor group can divide a layer.
        experts: Number of feed-forward networks of a layer.
        active: Number of them that compute a token.
    """

    vocabulary: int
    hidden: int
    layers: int
    queries: int
    keys: int
    intermediate: int
    tied: bool
    head_dim: int | None = None
    positions: int | None = None
    norms: int = 2
    norms_heads: bool = False
    sliding_layers: int = 0
    window: int = 0
    divisible: bool = True
    experts: int = 1
    active: int = 1

    @property
    def heads(self) -> tuple[int, int] | None:
        """Numbers of query heads and of key-value heads; None if they are not known."""
        return None if self.head_dim is None else (self.queries // self.head_dim, self.keys // self.head_dim)

    @property
    def attention(self) -> int:
        """Number of weights in the attention projections of a layer."""
        return 2 * self.hidden * (self.queries + self.keys)

    @property
    def layer(self) -> int:
        """Number of weights in the matrices of a layer."""
        router = self.hidden * self.experts if self.experts > 1 else 0
        return self.attention + 3 * self.hidden * self.intermediate * self.experts + router

    @property
    def computed(self) -> int:
        """Number of weights of a layer that compute a token."""
        return self.layer - 3 * self.hidden * self.intermediate * (self.experts - self.active)

    @property
    def head(self) -> int:
        """Number of weights in the output head."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Number of weights in the model, without biases and head norms (less than a thousandth)."""
        norms = (self.norms * self.layers + 1) * self.hidden
        return self.layers * self.layer + self.head * (1 if self.tied else 2) + norms


_QWEN_1_5B = LayerSizes(151_936, 1536, 28, 1536, 256, 8960, tied=False, head_dim=128, positions=131_072)
_QWEN_14B = LayerSizes(152_064, 5120, 48, 5120, 1024, 13_824, tied=False, head_dim=128, positions=32_768)
_QWEN_32B = LayerSizes(152_064, 5120, 64, 5120, 1024, 27_648, tied=False, head_dim=128, positions=32_768)
_PUBLISHED: Mapping[str, LayerSizes] = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _QWEN_1_5B,
    "Qwen/Qwen2.5-14B-Instruct": _QWEN_14B,
    "Qwen/Qwen2.5-32B-Instruct": _QWEN_32B,
    "Qwen/Qwen2.5-32B": replace(_QWEN_32B, positions=131_072),
}
"""Sizes in the published config.json of models that recipes name, so that a plan needs no download."""


@dataclass(frozen=True)
class ModelSize:
    """Size of a model.

    Attributes:
        parameters: Number of parameters; None if unknown.
        source: Source of the number, as text; why it is unknown if `parameters` is None.
        shape: Sizes of the layers, if known.
    """

    parameters: float | None
    source: str
    shape: LayerSizes | None = None

    def __str__(self) -> str:
        if self.parameters is None:
            return f"size {self.source}"
        billions = self.parameters / 1e9
        number = f"{billions:.3g} billion" if billions >= 1 else f"{self.parameters / 1e6:.3g} million"
        return f"{number} parameters ({self.source})"


def model_size(config: ModelConfig) -> ModelSize:
    """Returns the size of a recipe's model: from the recipe, from files on this machine, or from its name."""
    match config:
        case ScratchModel():
            shape = shape_of_config(config_of(config, config.vocabulary))
            return _of_shape(shape, f"with at most {config.vocabulary} tokens")
        case GgufPackageModel():
            return _packaged(config.package, config.file)
        case FolderModel():
            folder = local_folder(config.path)
            return ModelSize(None, UNKNOWN) if folder is None else _in_folder(folder) or ModelSize(None, UNKNOWN)
        case HubModel():
            return _in_hub_cache(config) or _published(config.id) or size_by_name(config.id)
        case StoredModel() | MergedModel():
            return ModelSize(None, "that of its checkpoints in the store")


def hidden_size(config: ModelConfig) -> int | None:
    """Returns the hidden size of a recipe's model; None if finding it requires a download or parsing a large file."""
    shape = None if isinstance(config, GgufPackageModel) else model_size(config).shape
    return shape.hidden if shape else None


def size_by_name(name: str) -> ModelSize:
    """Returns the size that a model's name states, as `Qwen2.5-14B-Instruct` does."""
    if not (match := _IN_NAME.search(name.rpartition("/")[2])):
        return ModelSize(None, UNKNOWN)
    return ModelSize(float(match[1]) * _UNITS[match[2].lower()], f"by its name, {match[0]}")


def shape_of_config(config: Mapping[str, Any]) -> LayerSizes:
    """Returns the sizes in a Hugging Face config.json, of a model of any family.

    Raises:
        KeyError: A size is missing.
        BadInputError: It is of a supported family, and needs a computation that is not supported.
    """
    if config.get("model_type") in families() or text_part(config) is not None:
        return _sizes_of(describe(Path("config.json"), config))
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    head_dim = int(config.get("head_dim") or hidden // heads)
    return LayerSizes(
        vocabulary=int(config["vocab_size"]),
        hidden=hidden,
        layers=int(config["num_hidden_layers"]),
        queries=heads * head_dim,
        keys=int(config.get("num_key_value_heads") or heads) * head_dim,
        intermediate=int(config["intermediate_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        head_dim=head_dim,
        positions=int(config["max_position_embeddings"]) if "max_position_embeddings" in config else None,
    )


def _sizes_of(shape: DecoderShape) -> LayerSizes:
    return LayerSizes(
        vocabulary=shape.vocab_size,
        hidden=shape.embed_dim,
        layers=shape.layers,
        queries=shape.heads * shape.head_dim,
        keys=shape.kv_heads * shape.head_dim,
        intermediate=shape.hidden_dim,
        tied=shape.tied,
        head_dim=shape.head_dim,
        positions=shape.max_positions,
        norms=sum(name is not None for name in asdict(shape.norms).values()),
        norms_heads=shape.qk_norm is not None,
        sliding_layers=len(shape.sliding_layers),
        window=shape.sliding_window or 0,
        divisible=shape.divisible,
        experts=shape.experts.count if shape.experts else 1,
        active=shape.experts.active if shape.experts else 1,
    )


def _published(name: str) -> ModelSize | None:
    return _of_shape(_PUBLISHED[name], "by its published config.json") if name in _PUBLISHED else None


def _of_shape(shape: LayerSizes, source: str) -> ModelSize:
    return ModelSize(shape.parameters, source, shape)


@cache  # reading the file's vocabulary takes 2.4 s
def _packaged(package: str, file: str) -> ModelSize:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(find_packaged_file(package, file))
    except (BadInputError, ValueError, OSError):
        return ModelSize(None, f"unknown: {package} does not contain a readable {file}")
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
    kind = fields.get("general.architecture")
    sizes = {name.removeprefix(f"{kind}."): value for name, value in fields.items()}
    tensors = {tensor.name: [int(size) for size in tensor.shape] for tensor in reader.tensors}
    try:
        heads, hidden = int(sizes["attention.head_count"]), int(sizes["embedding_length"])
        shape = LayerSizes(
            vocabulary=max(tensors["token_embd.weight"]),
            hidden=hidden,
            layers=int(sizes["block_count"]),
            queries=hidden,
            keys=int(sizes.get("attention.head_count_kv", heads)) * hidden // heads,
            intermediate=int(sizes["feed_forward_length"]),
            tied="output.weight" not in tensors,
            head_dim=hidden // heads,
            positions=int(sizes["context_length"]) if "context_length" in sizes else None,
        )
    except KeyError:
        return ModelSize(float(sum(int(tensor.n_elements) for tensor in reader.tensors)), f"by {file}")
    return _of_shape(shape, f"by {file}")


def _in_folder(folder: Path) -> ModelSize | None:
    try:
        shape = shape_of_config(json.loads(read_regular(folder / "config.json")))
    except (
        BadInputError, OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, AttributeError,
    ):  # fmt: skip
        return None
    return _of_shape(shape, "by its config.json")


def _in_hub_cache(config: HubModel) -> ModelSize | None:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub_cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    snapshots = hub_cache / f"models--{config.id.replace('/', '--')}" / "snapshots"
    sizes = (_in_folder(folder) for folder in sorted(snapshots.glob("*")))
    return next((size for size in sizes if size), None)
