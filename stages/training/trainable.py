"""Which parameters a recipe trains: settings and rules on parameter names. This module imports no torch.

LoRA: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv 2106.09685). Its defaults are those of
Schulman et al., "LoRA Without Regret" (Thinking Machines Lab, 2025): adapters on all linear maps of a layer, since
those on attention alone learn less at any rank; alpha 32 over the rank, with which one learning rate fits all ranks;
and about ten times the learning rate of full weights. For the policy gradient small ranks suffice.
"""

import math
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from pydantic import Field, model_validator

from artifacts.config import Config
from artifacts.errors import BadInputError
from stages.models.adapter_config import AdapterConfig, Projection
from stages.models.value_head import VALUE_HEAD_WEIGHT

if TYPE_CHECKING:
    from stages.models.shape import DecoderShape

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
_FUSED: dict[str, tuple[Projection, ...]] = {
    "attn.qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "mlp.w1": ("gate_proj", "up_proj"),
}
"""Maps of a fused model, and those that they take the place of."""


class TrainableConfig(Config):
    """Which parameters learn. All others are frozen and have neither gradient nor optimizer state.

    The head of a critic always learns.

    `all`: every parameter. `attention`: weights and biases of the query, key, value and output projections.
    `except_attention`: all others (SAO's critic).
    `top_layers`: the last layers, norms included; not the embeddings, the final norm or the head.
    `lora`: all weights are frozen, and each chosen projection W becomes W + (alpha / rank) B A with trained A
    [rank, in] and B [out, rank]; B starts at 0. Checkpoints hold the adapter in PEFT's layout, and engines get it as
    it is.
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
    rslora: bool = Field(default=False, description="`lora`: scale by alpha / sqrt(rank) (rank-stabilized LoRA)")
    projections: tuple[Projection, ...] = Field(
        default=tuple(PROJECTIONS), min_length=1, description="`lora`: which linear maps of a layer are adapted"
    )
    merge: bool = Field(
        default=False,
        description="`lora`: add the adapter into the weights of every checkpoint, in bf16, instead of publishing the "
        "adapter alone. Warm starts and critics always do",
    )

    @model_validator(mode="after")
    def _settings_belong_together(self) -> Self:
        of_lora = ("rank", "alpha", "rslora", "projections", "merge")
        owners = {"top_fraction": "top_layers", **dict.fromkeys(of_lora, "lora")}
        for name in self.changed(*self.model_fields_set & owners.keys()):
            if self.parameters != owners[name]:
                raise ValueError(f"{name} is set, but parameters is {self.parameters!r}, not {owners[name]!r}")
        return self

    def adapted(self, shape: "DecoderShape") -> list[str]:
        """Returns the linear maps of a layer that get adapters, by their names inside the policy.

        Raises:
            BadInputError: The model has one matrix for several projections, and only some of them are chosen, or the
                adapter is not merged; or a projection of experts is chosen.
        """
        where, paths = "finetune.trainable.projections", dict[str, None]()
        if (shape.fused or shape.experts is not None) and self.publishes_adapter:
            problem = "experts" if shape.experts is not None else "one matrix for query, key and value"
            problem = f"false for a model with {problem}"
            raise BadInputError("finetune.trainable.merge", problem, "true: engines do not load its adapters")
        for projection in self.projections:
            path = PROJECTIONS[projection]
            if shape.experts is not None and path.startswith("mlp."):
                raise BadInputError(where, projection, "q_proj, k_proj, v_proj, o_proj: experts have no adapters")
            for fused, parts in _FUSED.items() if shape.fused else ():
                if projection in parts:
                    path = fused
                    if lost := [part for part in parts if part not in self.projections]:
                        expected = f"all of {', '.join(parts)}, or none: the model has one matrix for them"
                        raise BadInputError(where, f"{projection} without {', '.join(lost)}", expected)
            paths[path] = None
        return list(paths)

    @classmethod
    def of(cls, adapter: AdapterConfig) -> Self:
        """Returns the settings that trained an adapter."""
        return cls(
            parameters="lora",
            rank=adapter.rank,
            alpha=adapter.alpha,
            rslora=adapter.rslora,
            projections=adapter.projections,
        )

    @property
    def adapter(self) -> AdapterConfig | None:
        """The adapter that is trained; None if none is."""
        if self.parameters != "lora":
            return None
        return AdapterConfig(self.rank, self.alpha, self.rslora, self.projections)

    @property
    def publishes_adapter(self) -> bool:
        """Whether checkpoints hold the adapter instead of full weights."""
        return self.parameters == "lora" and not self.merge

    def merging(self) -> Self:
        """Returns the same parameters, with checkpoints of full weights."""
        return self.model_copy(update={"merge": True}) if self.parameters == "lora" else self

    def takes_state_of(self, before: "TrainableConfig") -> bool:
        """Returns whether an optimizer state of other parameters has all weights and moments that these need."""
        if self.parameters == before.parameters == "top_layers":
            return self.top_fraction <= before.top_fraction
        return self == before or (before.parameters == "all" and self.parameters != "lora")

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
