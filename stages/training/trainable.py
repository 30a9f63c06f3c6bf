"""Which parameters a recipe trains: plain data and rules on names, readable without torch.

LoRA: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv 2106.09685).
"""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from artifacts.config import Config

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
"""Names of a layer's linear maps as Hugging Face publishes them, and inside the policy."""


class TrainableConfig(Config):
    """Which parameters learn; all others stay as they are, without gradient and optimizer state.

    `all`: every one. `attention`: weights and biases of the query, key, value and output projections.
    `top_layers`: the last layers, norms included; not the embeddings, the final norm or the head.
    `lora`: weights stay, and each chosen projection W becomes W + (alpha / rank) B A with trained A [rank, in] and
    B [out, rank]; B starts at 0. Checkpoints hold the sum, so that any engine opens them.
    """

    parameters: Literal["all", "attention", "top_layers", "lora"] = Field(default="all", description="what is trained")
    top_fraction: float = Field(
        default=0.5, gt=0.0, le=1.0, description="`top_layers`: share of the layers, counted from the last, rounded up"
    )
    rank: int = Field(default=16, ge=1, le=65_536, description="`lora`: rank of the added matrices")
    alpha: float = Field(
        default=32.0, gt=0.0, le=1e6, description="`lora`: the added matrices are scaled by alpha / rank"
    )
    projections: tuple[Projection, ...] = Field(
        default=("q_proj", "v_proj"), min_length=1, description="`lora`: which linear maps of a layer are adapted"
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
        """Whether a parameter of the policy learns.

        Args:
            name: In the policy, adapters included: `decoder.layers.<number>.attn.q_proj.weight`, for instance.
            layers: Layers of the decoder.
        """
        if self.parameters == "all":
            return True
        if self.parameters == "lora":
            return is_adapter(name)
        if not name.startswith("decoder.layers."):
            return False
        number, inner = name.removeprefix("decoder.layers.").split(".", 1)
        if self.parameters == "attention":
            return inner.startswith("attn.") and inner.split(".")[1].endswith("_proj")
        # In whole numbers the fraction is what it says: 0.7 of 10 layers is 7, though 0.7 * 10 may be above that.
        return int(number) >= layers - math.ceil(round(self.top_fraction * layers, 9))


EVERYTHING = TrainableConfig()


def is_adapter(name: str) -> bool:
    """Whether a parameter is one that LoRA adds to the model."""
    return ".lora_a." in name or ".lora_b." in name
