"""The shape of a decoder, and how a family of models reads it from its Hugging Face config.json.

A family is a module of `stages.models.families` with a `FAMILY`, which changes the shape of a Llama without biases.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Literal, cast, get_args

from artifacts.errors import BadInputError
from stages.models.json_file import ConfigFile, LayerType, read_json, refuse_own_code
from stages.models.rope import LinearScaling, Llama3Scaling, LongRopeScaling, Rope, RopeScaling, YarnScaling
from stages.models.value_head import VALUE_HEAD, ValueHead

_MAX_LAYERS = 4096
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


@dataclass(frozen=True)
class LayerNorms:
    """Hugging Face names of a layer's norms by their places in torchtune's layer; None where there is no norm.

    Attributes:
        sa_norm: Before attention.
        sa_scale: After attention, before the sum with the layer's input.
        mlp_norm: Before the feed-forward network.
        mlp_scale: After the feed-forward network, before the sum.
    """

    sa_norm: str | None = "input_layernorm"
    sa_scale: str | None = None
    mlp_norm: str | None = "post_attention_layernorm"
    mlp_scale: str | None = None


@dataclass(frozen=True)
class Experts:
    """The mixture of experts of a layer.

    Attributes:
        count: Number of experts; each has the width `hidden_dim`.
        active: Number of experts that process a token.
        normalized: Whether the factors of a token's experts add up to 1.
    """

    count: int
    active: int
    normalized: bool


@dataclass(frozen=True)
class DecoderShape:
    """Sizes and switches of a decoder-only transformer with gated feed-forward networks and RMS norms.

    Attributes:
        family: `model_type` of its config.json.
        rope: Rotary positions of the layers.
        qk_norm: Whether queries and keys are normalized: each head, or all heads together.
        norms: Norms of a layer.
        offset_norms: Whether a norm multiplies by 1 + its weight.
        activation: Function of the gate.
        fused: Whether query, key and value are one matrix, and so are gate and up.
        experts: Experts of every layer; None for a dense feed-forward network.
        sliding_window: Largest number of tokens, itself included, to which a token of a sliding layer attends.
        sliding_layers: Numbers of the sliding layers.
        sliding_rope: Rotary positions of sliding layers; None: those of the others.
        unrotated_layers: Numbers of the layers without rotary positions.
        embedding_scale: Factor of embeddings, rounded to the compute type.
        residual_scale: Factor of what attention and feed-forward network add.
        attention_scale: Factor of products of queries and keys; None: 1 / sqrt(head_dim).
        logit_divisor: Divisor of logits.
        value_head: Form of the head of a critic, which has no output head; None for a language model.
    """

    family: str
    vocab_size: int
    embed_dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_dim: int
    norm_eps: float
    rope: Rope
    max_positions: int
    tied: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: Literal["head", "projection"] | None = None
    norms: LayerNorms = LayerNorms()
    offset_norms: bool = False
    activation: Literal["silu", "gelu_pytorch_tanh"] = "silu"
    fused: bool = False
    experts: Experts | None = None
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] = ()
    sliding_rope: Rope | None = None
    unrotated_layers: tuple[int, ...] = ()
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float | None = None
    logit_divisor: float = 1.0
    value_head: ValueHead | None = None

    @property
    def divisible(self) -> bool:
        """Whether each process of a tensor group can compute some of the heads and of the feed-forward width."""
        return not self.fused and self.qk_norm != "projection" and self.experts is None

    def with_sliding_layers(
        self, window: int | None, layers: Sequence[int], rope: Rope | None = None
    ) -> "DecoderShape":
        """Returns the shape with some sliding layers; none if the window is never shorter than a sequence.

        Args:
            window: Number of tokens; None: the layers do not slide.
            layers: Numbers of the layers.
            rope: Rotary positions of these layers, if they differ.
        """
        if window is None or (window >= self.max_positions and rope is None):
            return self
        return replace(self, sliding_window=window, sliding_layers=tuple(layers), sliding_rope=rope)


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        model_type: Its name in config.json.
        architecture: Its class in transformers and vLLM.
        describe: Returns the shape, given that of a Llama of the same sizes without biases, and the config.
        defaults: Values of keys that its config.json may leave out, as in transformers.
        rotates_partly: Whether `partial_rotary_factor` counts.
        part_of: `model_type` of a vision-language model, whose text model is of this family.
    """

    model_type: str
    architecture: str
    describe: Callable[[DecoderShape, ConfigFile], DecoderShape]
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    rotates_partly: bool = False
    part_of: str = ""


@cache
def families() -> dict[str, Family]:
    """Returns the supported families by `model_type`: the modules of `stages.models.families`."""
    names = sorted(module.name for module in iter_modules([str(Path(__file__).with_name("families"))]))
    described: list[Family] = [import_module(f"{__package__}.families.{name}").FAMILY for name in names]
    return {family.model_type: family for family in described}


def read_shape(folder: Path) -> DecoderShape:
    """Returns the shape that `config.json` of a checkpoint folder states.

    Raises:
        BadInputError: The file is missing or broken, needs a computation that the trainer does not support, or names
            Python code in the folder.
    """
    path = folder / "config.json"
    values = read_json(path)
    refuse_own_code(path, without_own_code(values))
    return describe(path, values)


def without_own_code(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a `config.json` without `auto_map`, which Phi-3 has for transformers that did not know it yet.

    It stays where the architecture is not that of a supported family, because then the model needs the code.
    """
    family = families().get(str(values.get("model_type")))
    known = family is not None and values.get("architectures") == [family.architecture]
    return {name: value for name, value in values.items() if not (known and name == "auto_map")}


def text_part(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the config of the text model inside a vision-language model; None for another `config.json`."""
    part: Any = values.get("text_config")
    family = families().get(str(cast("dict[str, Any]", part).get("model_type"))) if isinstance(part, dict) else None
    return part if family is not None and values.get("model_type") == (family.part_of or None) else None


def describe(path: Path, values: Mapping[str, Any]) -> DecoderShape:
    """Returns the shape that the content of a `config.json` states, or its text part.

    Raises:
        BadInputError: It is broken, or needs a computation that the trainer does not support.
    """
    values = text_part(values) or values
    family = _family(ConfigFile(path, values))
    config = ConfigFile(path, values, family.defaults)
    if config.stated("quantization_config"):
        raise BadInputError(str(path), "quantized weights", "bf16, f16 or f32 weights", "use the unquantized model")
    return family.describe(_plain_shape(config, family), config)


def _plain_shape(config: ConfigFile, family: Family) -> DecoderShape:
    heads, width = config.count("num_attention_heads"), config.count("hidden_size")
    kv_heads = config.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.refusal("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads, {heads}")
    if config.stated("head_dim") is None and width % heads:
        raise config.refusal("hidden_size", width, f"a multiple of num_attention_heads, {heads}")
    head_dim = config.count("head_dim", width // heads)
    if head_dim % 2:
        raise config.refusal("head_dim", head_dim, "an even number")
    head = config.stated(VALUE_HEAD)
    if head is not None and head not in get_args(ValueHead):
        raise config.refusal(VALUE_HEAD, head, " or ".join(get_args(ValueHead)))
    config.refuse(hidden_act="silu", use_sliding_window=False)
    rope = read_rope(config, head_dim)
    if rope.dims != head_dim and not family.rotates_partly:
        raise config.refusal("partial_rotary_factor", rope.dims / head_dim, f"1, as in every {family.model_type}")
    return DecoderShape(
        family=family.model_type,
        vocab_size=config.count("vocab_size"),
        embed_dim=width,
        layers=config.count("num_hidden_layers", most=_MAX_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden_dim=config.count("intermediate_size"),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=rope,
        max_positions=config.count("max_position_embeddings"),
        tied=config.switch("tie_word_embeddings"),
        value_head=cast("ValueHead | None", head),
    )


def _family(config: ConfigFile) -> Family:
    name, known = config.stated("model_type"), families()
    if not isinstance(name, str) or name not in known:
        missing = [size for size in _SIZES if config.stated(size) is None]
        lacks = f"its config lacks {', '.join(missing)}; " if missing else ""
        raise config.refusal(
            "model_type", name, f"one of {', '.join(sorted(known))}", f"{lacks}choose a model of these families"
        )
    family, stated = known[name], config.stated("architectures")
    if stated is not None and not (isinstance(stated, list) and family.architecture in stated):
        raise config.refusal("architectures", stated, f"{family.architecture}, the architecture of model_type {name}")
    return family


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
