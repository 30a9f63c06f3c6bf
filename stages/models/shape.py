"""Reads the shape of a decoder from its Hugging Face config.json."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from artifacts.errors import BadInputError
from stages.models.json_file import read_json, refuse_own_code, shown
from stages.models.value_head import VALUE_HEAD, ValueHead

FAMILIES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
"""Architecture of each supported `model_type`; sizes and switches come from the config itself."""
ARCHITECTURES = frozenset(FAMILIES.values())
_MAX_LAYERS = 4096
_MAX_SIZE = 2**31 - 1
_MAX_NUMBER = 1e30


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's scaling of the low rotation frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class DecoderShape:
    """Sizes and switches of a decoder-only transformer with SwiGLU, RMS pre-norms and rotary positions."""

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
    value_head: ValueHead | None = None
    """Form of the head of a value model, which has no output head; None for a language model."""


def read_shape(folder: Path) -> DecoderShape:
    """Returns the shape that `config.json` of a checkpoint folder states.

    Raises:
        BadInputError: The file is missing or broken, needs a computation that the trainer does not support, or names
            Python code in the folder.
    """
    config = _Config(folder / "config.json")
    family = _family(config)
    _refuse_unsupported(config)
    heads, width = config.count("num_attention_heads"), config.count("hidden_size")
    kv_heads = config.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.refusal("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads, {heads}")
    if config.stated("head_dim") is None and width % heads:
        raise config.refusal("hidden_size", width, f"a multiple of num_attention_heads, {heads}")
    head_dim = config.count("head_dim", width // heads)
    if head_dim % 2:
        raise config.refusal("head_dim", head_dim, "an even number")
    bias = config.switch("attention_bias")
    theta, scaling = _rope(config)
    head = config.stated(VALUE_HEAD)
    if head is not None and head not in get_args(ValueHead):
        raise config.refusal(VALUE_HEAD, head, " or ".join(get_args(ValueHead)))
    return DecoderShape(
        family=family,
        vocab_size=config.count("vocab_size"),
        embed_dim=width,
        layers=config.count("num_hidden_layers", most=_MAX_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden_dim=config.count("intermediate_size"),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        max_positions=config.count("max_position_embeddings"),
        tied=config.switch("tie_word_embeddings"),
        qkv_bias=family == "qwen2" or bias,
        output_bias=family != "qwen2" and bias,
        mlp_bias=family == "llama" and config.switch("mlp_bias"),
        qk_norm=family == "qwen3",
        value_head=cast("ValueHead | None", head),
    )


class _Config:
    """A config.json whose values are checked when they are read.

    Args:
        path: Path of the file.
        values: Content of the file, or of a table in it; None to read the file.
    """

    def __init__(self, path: Path, values: dict[str, Any] | None = None) -> None:
        self.path = path
        self._values = read_json(path) if values is None else values
        if values is None:
            refuse_own_code(path, self._values)

    def stated(self, name: str) -> object:
        """Returns a value without checks, or None if there is none."""
        return self._values.get(name)

    def table(self, name: str) -> dict[str, Any]:
        """Returns a table, empty if there is none."""
        value = self.stated(name)
        if value is not None and not isinstance(value, dict):
            raise self.refusal(name, value, "a table")
        return cast("dict[str, Any]", value or {})

    def count(self, name: str, default: int | None = None, *, most: int = _MAX_SIZE) -> int:
        """Returns a whole number from 1 to `most`."""
        value = self._stated_or(name, default)
        if type(value) is not int or not 1 <= value <= most:
            raise self.refusal(name, value, f"a whole number from 1 to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a finite number above 0."""
        value = self._stated_or(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX_NUMBER:
            raise self.refusal(name, value, "a finite number above 0")
        return float(value)

    def switch(self, name: str) -> bool:
        """Returns true or false; false if there is no value."""
        value = self.stated(name)
        if value is not None and not isinstance(value, bool):
            raise self.refusal(name, value, "true or false")
        return bool(value)

    def refusal(self, name: str, value: object, expected: str, remedy: str = "") -> BadInputError:
        """Returns the error that refuses a value."""
        stated = "no value" if value is None else shown(value)
        return BadInputError(f"{self.path}: {name}", stated, expected, remedy)

    def _stated_or(self, name: str, default: object) -> object:
        value = self.stated(name)
        return default if value is None else value


def _family(config: _Config) -> str:
    stated = config.stated("architectures")
    if stated is not None and not (
        isinstance(stated, list) and ARCHITECTURES & set(map(str, cast("list[Any]", stated)))
    ):
        raise config.refusal(
            "architectures", stated, ", ".join(sorted(ARCHITECTURES)), "choose a model of these families"
        )
    family = config.stated("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise config.refusal("model_type", family, f"one of {', '.join(FAMILIES)}")
    if stated is not None and FAMILIES[family] not in stated:
        raise config.refusal("architectures", stated, f"{FAMILIES[family]}, the architecture of model_type {family}")
    return family


def _refuse_unsupported(config: _Config) -> None:
    if config.stated("quantization_config"):
        raise BadInputError(
            str(config.path), "quantized weights", "bf16, f16 or f32 weights", "use the unquantized model"
        )
    if (activation := config.stated("hidden_act")) not in (None, "silu"):
        raise config.refusal("hidden_act", activation, "'silu'")
    if config.switch("use_sliding_window"):
        raise config.refusal("use_sliding_window", "true", "false (sliding windows are not supported)")


def _rope(config: _Config) -> tuple[float, RopeScaling | None]:
    rope = _Config(config.path, {**config.table("rope_parameters"), **config.table("rope_scaling")})
    theta = rope.number("rope_theta", config.number("rope_theta", 10_000.0))
    if config.stated("rope_theta") is not None and theta != config.number("rope_theta"):
        raise config.refusal("rope_theta", config.stated("rope_theta"), f"{theta}, as in rope_parameters")
    kind = rope.stated("rope_type") or rope.stated("type") or "default"
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise config.refusal("rope_type", kind, "'default' or 'llama3'")
    return theta, RopeScaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_positions=rope.count("original_max_position_embeddings"),
    )
