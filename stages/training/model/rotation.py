"""Constants of rotary position encoding."""

import math

import torch
from torch import Tensor

from stages.models.shape import DecoderShape


def rotation_frequencies(shape: DecoderShape) -> Tensor:
    """Returns the rotation angle per position of each pair of a head's D dimensions: [D / 2] float32.

    Under Llama 3's scaling, frequencies with few turns within the original context are divided by `factor`.
    """
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).float() / shape.head_dim
    frequencies = 1.0 / shape.rope_theta**exponents
    scaling = shape.rope_scaling
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_positions / wavelengths
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return frequencies * (blend + (1.0 - blend) / scaling.factor)
