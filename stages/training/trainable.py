"""Which parameters a recipe trains: settings and rules on parameter names. This module imports no torch.

LoRA: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv 2106.09685). Its defaults are those of
Schulman et al., "LoRA Without Regret" (Thinking Machines Lab, 2025): adapters on all linear maps of a layer, since
those on attention alone learn less at any rank; alpha 32 over the rank, with which one learning rate fits all ranks;
and about ten times the learning rate of full weights. For the policy gradient small ranks suffice.
"""

import math
from typing import Any, Literal, Self, cast

from pydantic import Field, model_validator

from artifacts.config import Config
from stages.models.value_head import VALUE_HEAD_WEIGHT

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

PROJECTIONS: dict[Projection, str] = {
    "q_proj": "attn.q_proj",
    "k_proj": "attn.k_proj",
    "v_proj": "attn.v_proj",
    "o_proj": "attn.output_proj",
    "gate_proj": "mlp.w1",
    "up_proj": "mlp.w3",
    "down_proj": "mlp.w2",
}
"""The linear maps of a layer: Hugging Face name to name inside the policy."""


class TrainableConfig(Config):
    """Which parameters learn. All others are frozen and have neither gradient nor optimizer state.

    The head of a value model always learns.

    `all`: every parameter. `attention`: weights and biases of the query, key, value and output projections.
    `except_attention`: all others (SAO's value model).
    `top_layers`: the last layers, norms included; not the embeddings, the final norm or the head.
    `lora`: all weights are frozen, and each chosen projection W becomes W + (alpha / rank) B A with trained A
    [rank, in] and B [out, rank]; B starts at 0. Checkpoints contain the sum, so that any engine can load them.
    """

    parameters: Literal["all", "attention", "except_attention", "top_layers", "lora"] = Field(
        default="all", description="which parameters learn"
    )
    top_fraction: float = Field(
        default=0.5, gt=0.0, le=1.0, description="`top_layers`: share of the layers, counted from the last, rounded up"
    )
    rank: int = Field(default=16, ge=1, le=65_536, description="`lora`: rank of the added matrices")
    alpha: float = Field(
        default=32.0, gt=0.0, le=1e6, description="`lora`: the added matrices are scaled by alpha / rank"
    )
    projections: tuple[Projection, ...] = Field(
        default=tuple(PROJECTIONS), min_length=1, description="`lora`: which linear maps of a layer are adapted"
    )

    @model_validator(mode="after")
    def _settings_belong_together(self) -> Self:
        owners = {"top_fraction": "top_layers", "rank": "lora", "alpha": "lora", "projections": "lora"}
        for name in self.model_fields_set:
            default = type(self).model_fields[name].default
            if name in owners and self.parameters != owners[name] and getattr(self, name) != default:
                raise ValueError(f"{name} is set, but parameters is {self.parameters!r}, not {owners[name]!r}")
        return self

    def trains(self, name: str, layers: int) -> bool:
        """Returns whether a parameter of the policy learns.

        Args:
            name: Name of the parameter in the policy: `decoder.layers.<number>.attn.q_proj.weight`, for instance.
            layers: Number of layers of the decoder.
        """
        if self.parameters == "all" or name == VALUE_HEAD_WEIGHT:
            return True
        if self.parameters == "lora":
            return is_adapter(name)
        outside = not name.startswith("decoder.layers.")
        if outside:
            return self.parameters == "except_attention"
        number, inner = name.removeprefix("decoder.layers.").split(".", 1)
        projects = inner.startswith("attn.") and inner.split(".")[1].endswith("_proj")
        if self.parameters in ("attention", "except_attention"):
            return projects == (self.parameters == "attention")
        # Rounded before the ceiling, since 0.7 * 10 may be slightly above 7 in floating point.
        return int(number) >= layers - math.ceil(round(self.top_fraction * layers, 9))


EVERYTHING = TrainableConfig()
LORA_RATE_FACTOR = 10
"""Learning rate of LoRA over that of full weights, if a recipe sets neither."""


class TrainedConfig(Config):
    """Base of configs with `learning_rate` and `trainable`: LoRA has a default rate of its own."""

    @model_validator(mode="before")
    @classmethod
    def _lora_rate(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "learning_rate" in data:
            return cast("Any", data)
        settings = cast("dict[str, Any]", data)
        trainable: Any = settings.get("trainable")
        if isinstance(trainable, dict):
            parameters = cast("dict[str, Any]", trainable).get("parameters")
        else:
            parameters = getattr(trainable, "parameters", None)
        if parameters != "lora":
            return settings
        rate = LORA_RATE_FACTOR * cls.model_fields["learning_rate"].default
        return {**settings, "learning_rate": round(rate, 12)}  # 10 * 1e-6 is not 1e-5 in floating point


def is_adapter(name: str) -> bool:
    """Returns whether LoRA added a parameter to the model."""
    return ".lora_a." in name or ".lora_b." in name
