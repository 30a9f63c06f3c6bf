"""The shape of a decoder as its Hugging Face config.json states it."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from artifacts.errors import BadInputError

FAMILIES = {"qwen2": "Qwen2 / Qwen2.5", "qwen3": "Qwen3", "llama": "Llama 3.x / SmolLM2"}
"""Values of `model_type` whose layer structure is known; sizes and switches come from the config itself."""


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's stretch of the slow rotations."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class DecoderShape:
    """Sizes and switches of a decoder-only transformer (SwiGLU, RMS norm before each part, rotary positions)."""

    family: str
    vocab_size: int
    embed_dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_dim: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_positions: int
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool


def read_shape(folder: Path) -> DecoderShape:
    """Reads `config.json` of a checkpoint folder.

    Raises:
        BadInputError: the file is missing or broken, or asks for something the trainer does not compute.
    """
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise BadInputError(str(path), "no such file", "a Hugging Face model folder") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadInputError(str(path), f"not JSON ({error})", "the model's config.json") from error
    family = config.get("model_type")
    if family not in FAMILIES:
        raise BadInputError(f"{path}: model_type", repr(family), f"one of {', '.join(FAMILIES)}")
    if config.get("hidden_act", "silu") != "silu":
        raise BadInputError(f"{path}: hidden_act", repr(config["hidden_act"]), "'silu'")
    if config.get("use_sliding_window"):
        raise BadInputError(f"{path}: use_sliding_window", "true", "false (sliding windows are not computed)")
    try:
        heads, width = int(config["num_attention_heads"]), int(config["hidden_size"])
        bias = bool(config.get("attention_bias", False))
        theta, scaling = _rope(path, config)
        return DecoderShape(
            family=family,
            vocab_size=int(config["vocab_size"]),
            embed_dim=width,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or width // heads),
            hidden_dim=int(config["intermediate_size"]),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_scaling=scaling,
            max_positions=int(config["max_position_embeddings"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=family == "qwen2" or bias,
            output_bias=family != "qwen2" and bias,
            mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
            qk_norm=family == "qwen3",
        )
    except KeyError as error:
        raise BadInputError(str(path), f"no key {error}", "a complete config.json") from error


def _rope(path: Path, config: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    rope: dict[str, Any] = dict(config.get("rope_parameters") or {})
    rope.update(config.get("rope_scaling") or {})
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise BadInputError(f"{path}: rope_type", repr(kind), "'default' or 'llama3'")
    return theta, RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_positions=int(rope["original_max_position_embeddings"]),
    )


def rotation_frequencies(shape: DecoderShape) -> Tensor:
    """Angle per position of each pair of a head: [D / 2] float32."""
    steps = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).float() / shape.head_dim
    frequencies = 1.0 / shape.rope_theta**steps
    scaling = shape.rope_scaling
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_positions / wavelengths
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return frequencies * (blend + (1.0 - blend) / scaling.factor)
