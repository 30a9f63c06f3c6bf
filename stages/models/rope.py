"""The rotary positions of a decoder, and how they are read from a config.json."""

import math
from dataclasses import dataclass

from stages.models.json_file import ConfigFile, LayerType


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


def read_rope(
    config: ConfigFile, head_dim: int, layers: LayerType = "full_attention", *, theta_key: str = "rope_theta"
) -> Rope:
    """Returns the rotary positions of a kind of layers, in the spelling of transformers 4 or 5.

    Args:
        config: The config.json.
        head_dim: Width of a head.
        layers: Table of `rope_parameters` that is read if it has a table for each kind.
        theta_key: Key of the base in the spelling of transformers 4, which scales `full_attention` only.

    Raises:
        BadInputError: A value is missing or wrong, or the scaling is not supported.
    """
    table = config.table("rope_parameters")
    table = ConfigFile(config.path, table).table(layers) if layers in table else table
    rope = ConfigFile(config.path, table | (config.table("rope_scaling") if layers == "full_attention" else {}))
    theta = rope.number("rope_theta", config.number(theta_key, 10_000.0))
    if layers == "full_attention" and config.written.get(theta_key, theta) != theta:
        raise config.refusal(theta_key, config.stated(theta_key), f"{theta}, as in rope_parameters")
    share = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    dims = int(head_dim * share)
    if not 0 < dims <= head_dim or dims % 2:
        raise config.refusal("partial_rotary_factor", share, f"an even part of the {head_dim} dimensions of a head")
    return Rope(theta, dims, _scaling(config, rope, dims))


def _scaling(config: ConfigFile, rope: ConfigFile, dims: int) -> RopeScaling | None:
    match rope.stated("rope_type") or rope.stated("type") or "default":
        case "default":
            return None
        case "linear":
            return LinearScaling(rope.number("factor"))
        case "llama3":
            return Llama3Scaling(
                factor=rope.number("factor"),
                low_freq_factor=rope.number("low_freq_factor"),
                high_freq_factor=rope.number("high_freq_factor"),
                original_max_positions=_original_positions(config, rope),
            )
        case "yarn":
            factor = rope.number("factor")
            rope.refuse(mscale=None, mscale_all_dim=None)
            return YarnScaling(
                factor=factor,
                original_max_positions=_original_positions(config, rope),
                attention_factor=rope.number("attention_factor", 1.0 + 0.1 * math.log(max(factor, 1.0))),
                beta_fast=rope.number("beta_fast", 32.0),
                beta_slow=rope.number("beta_slow", 1.0),
                truncate=rope.stated("truncate") is None or rope.switch("truncate"),
            )
        case "longrope" | "su":
            original = _original_positions(config, rope)
            longer = max(1.0, rope.number("factor", config.count("max_position_embeddings") / original))
            factor = math.sqrt(1.0 + math.log(longer) / math.log(original))
            divisors = rope.numbers("short_factor", dims // 2)
            return LongRopeScaling(divisors, rope.number("attention_factor", factor))
        case kind:
            raise config.refusal("rope_type", kind, "'default', 'linear', 'llama3', 'yarn' or 'longrope'")


def _original_positions(config: ConfigFile, rope: ConfigFile) -> int:
    """Returns the length of the context before scaling; transformers prefers the config's own key to the table's."""
    key = "original_max_position_embeddings"
    return config.count(key, rope.count(key, config.count("max_position_embeddings")))
