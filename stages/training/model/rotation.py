"""Constants of rotary position encoding."""

import math

import torch
from torch import Tensor

from stages.models.rope import LinearScaling, Llama3Scaling, LongRopeScaling, Rope, YarnScaling


def rotation_frequencies(rope: Rope) -> Tensor:
    """Returns the rotation angle per position of each pair of a head's R rotated dimensions: [R / 2] float32."""
    exponents = torch.arange(0, rope.dims, 2, dtype=torch.int64).float() / rope.dims
    frequencies = 1.0 / rope.theta**exponents
    match rope.scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / factor
        case Llama3Scaling() as llama3:
            return _llama3(frequencies, llama3)
        case YarnScaling() as yarn:
            return _yarn(frequencies, rope, yarn)
        case LongRopeScaling(divisors):
            return 1.0 / (torch.tensor(divisors) * rope.theta**exponents)


def rotation_factor(rope: Rope) -> float:
    """Returns the factor by which the rotated dimensions of queries and keys are multiplied."""
    scaling = rope.scaling
    return scaling.attention_factor if isinstance(scaling, YarnScaling | LongRopeScaling) else 1.0


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Divides frequencies with few turns within the original context by `factor`."""
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_positions / wavelengths
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return frequencies * (blend + (1.0 - blend) / scaling.factor)


def _yarn(frequencies: Tensor, rope: Rope, scaling: YarnScaling) -> Tensor:
    """Divides frequencies of at most `beta_slow` turns by `factor`, and blends those of up to `beta_fast`."""

    def pair(turns: float) -> float:
        return rope.dims * math.log(scaling.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dims - 1)
    steps = torch.arange(rope.dims // 2, dtype=torch.float32) - low
    divided = (steps / ((high - low) or 0.001)).clamp(0.0, 1.0)
    return frequencies / scaling.factor * divided + frequencies * (1.0 - divided)
