"""The rotary positions of a decoder."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LinearScaling:
    """All rotation frequencies are divided by `factor`."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3's scaling of the low rotation frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): low frequencies are divided by `factor`, and queries and keys are multiplied.

    Attributes:
        attention_factor: Factor of queries and keys.
        beta_fast: Turns in the original context at and above which a frequency is unchanged.
        beta_slow: Turns up to which a frequency is divided by the whole factor.
        truncate: Whether the bounds between the two are rounded to whole dimensions.
    """

    factor: float
    original_max_positions: int
    attention_factor: float
    beta_fast: float
    beta_slow: float
    truncate: bool


@dataclass(frozen=True)
class LongRopeScaling:
    """LongRoPE (arXiv 2402.13753) within the original context."""

    divisors: tuple[float, ...]
    attention_factor: float


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True)
class Rope:
    """Rotary positions.

    Attributes:
        theta: Base of the frequencies.
        dims: Number of rotated dimensions of a head; the first ones.
        scaling: Change of the frequencies; None for none.
    """

    theta: float
    dims: int
    scaling: RopeScaling | None = None
