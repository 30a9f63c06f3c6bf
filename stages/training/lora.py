"""LoRA on the policy: torchtune's adapted linear maps in place of plain ones, and their sum for publishing."""

import hashlib
import math

import torch
from torch import Tensor, nn

from stages.training.components import LoRALinear, TransformerDecoder
from stages.training.trainable import PROJECTIONS, TrainableConfig


def add_adapters(decoder: TransformerDecoder, config: TrainableConfig) -> None:
    """Replaces the chosen projections of every layer; names of weights and biases stay as they were."""
    for layer in decoder.layers:
        for projection in config.projections:
            owner, leaf = PROJECTIONS[projection].split(".")
            part = layer.get_submodule(owner)
            plain = part.get_submodule(leaf)
            assert isinstance(plain, nn.Linear)
            adapted = LoRALinear(
                plain.in_features,
                plain.out_features,
                config.rank,
                config.alpha,
                use_bias=plain.bias is not None,  # pyright: ignore[reportUnnecessaryComparison]
            )
            setattr(part, leaf, adapted)


def first_adapter(name: str, shape: torch.Size) -> Tensor:
    """Starting value of an adapter: float32 on the CPU, the same on every process and in every run.

    B is 0, A uniform within 1 / sqrt(in) as in the authors' code, drawn from a seed that is the parameter's name.
    """
    if ".lora_b." in name:
        return torch.zeros(shape)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
    return nn.init.kaiming_uniform_(torch.empty(shape), a=math.sqrt(5), generator=torch.Generator().manual_seed(seed))


def merged(weights: dict[str, Tensor], config: TrainableConfig) -> dict[str, Tensor]:
    """Full weights with the adapters added in: W + (alpha / rank) B A, computed in float32.

    Args:
        weights: By policy name, adapters included.

    Returns:
        By policy name, without adapters; the model computes the same with them, up to rounding.
    """
    plain = {name: tensor for name, tensor in weights.items() if ".lora_" not in name}
    for name, a in weights.items():
        if ".lora_a." in name:
            b = weights[name.replace(".lora_a.", ".lora_b.")]
            base = name.replace(".lora_a.", ".")
            added = (config.alpha / config.rank) * (b.float() @ a.float())
            plain[base] = plain[base].float() + added
    return plain
