"""LoRA on the policy: replaces linear maps by torchtune's adapted ones."""

import hashlib
import math

import torch
from torch import Tensor, nn

from stages.models.shape import DecoderShape
from stages.training.model.components import LoRALinear, TransformerDecoder
from stages.training.trainable import TrainableConfig


def add_adapters(decoder: TransformerDecoder, config: TrainableConfig, shape: DecoderShape) -> None:
    """Replaces the chosen projections of every layer by adapted ones; names of weights and biases stay the same.

    Raises:
        BadInputError: The model does not have these projections (see `TrainableConfig.adapted`).
    """
    for layer in decoder.layers:
        for path in config.adapted(shape):
            owner, leaf = path.split(".")
            part = layer.get_submodule(owner)
            plain = part.get_submodule(leaf)
            assert isinstance(plain, nn.Linear)
            adapted = LoRALinear(
                plain.in_features,
                plain.out_features,
                config.rank,
                scaled_alpha(config),
                use_bias=plain.bias is not None,  # pyright: ignore[reportUnnecessaryComparison]
            )
            setattr(part, leaf, adapted)


def scaled_alpha(config: TrainableConfig) -> float:
    """Returns the alpha for torchtune, which always scales by alpha / rank."""
    return config.alpha * math.sqrt(config.rank) if config.rslora else config.alpha


def initial_adapter(name: str, shape: torch.Size) -> Tensor:
    """Returns the initial value of an adapter: float32 on the CPU, equal on every process and in every run.

    B is 0. A is uniform within 1 / sqrt(in), as in the code of the LoRA authors, with a seed derived from the name of
    the parameter.
    """
    if ".lora_b." in name:
        return torch.zeros(shape)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
    return nn.init.kaiming_uniform_(torch.empty(shape), a=math.sqrt(5), generator=torch.Generator().manual_seed(seed))
