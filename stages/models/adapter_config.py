"""The settings of a LoRA adapter, in the words of PEFT."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from artifacts.errors import BadInputError

ADAPTER_CONFIG = "adapter_config.json"
ENGINE_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks for which vLLM 0.32 makes room (`vllm.config.lora.MaxLoRARanks`)."""
Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROJECTIONS: tuple[Projection, ...] = get_args(Projection)
_WRITTEN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "bias": ("none",), "use_dora": (False, None), "modules_to_save": (None, []),
    "rank_pattern": ({}, None), "alpha_pattern": ({}, None), "layers_to_transform": (None,),
    "fan_in_fan_out": (False, None), "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}  # fmt: skip
"""The settings of `PLAIN` that are written; every PEFT of recent years has them."""
PLAIN: dict[str, tuple[Any, ...]] = _WRITTEN | {
    "lora_bias": (False, None), "layer_replication": (None,), "exclude_modules": (None, []),
    "trainable_token_indices": (None,), "target_parameters": (None, []), "alora_invocation_tokens": (None,),
    "use_qalora": (False, None), "use_bdlora": (None, False),
}  # fmt: skip
"""Settings of PEFT that change what an adapter computes: the values with which it is plain LoRA, the usual one first.

All but the first may be missing.
"""


@dataclass(frozen=True)
class AdapterConfig:
    """What an `adapter_config.json` says.

    Attributes:
        rank: Rows of A and columns of B.
        alpha: The product B A is scaled by alpha / rank.
        rslora: Whether it is scaled by alpha / sqrt(rank) instead (Kalajdzievski, arXiv 2312.03732).
        projections: The adapted linear maps of a layer, by their Hugging Face names.
        base: The base that the file names; None if it names none.
        revision: The base's commit, tag or branch on the hub; None if the file names none.
    """

    rank: int
    alpha: float
    rslora: bool
    projections: tuple[Projection, ...]
    base: str | None = None
    revision: str | None = None

    @property
    def scale(self) -> float:
        """Factor of the product B A."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def check_continues(self, stored: "AdapterConfig") -> None:
        """Checks that training with these settings can continue a stored adapter.

        Raises:
            BadInputError: The stored adapter has other settings.
        """
        if (stored.scale, stored.rank, set(stored.projections)) != (self.scale, self.rank, set(self.projections)):
            remedy = "or set finetune.trainable.merge = true, which adds the adapter to the weights"
            raise BadInputError("finetune.trainable", self._described, f"the adapter's {stored._described}", remedy)

    @property
    def _described(self) -> str:
        names = [f'"{name}"' for name in PROJECTIONS if name in self.projections]
        rslora = ", rslora = true" if self.rslora else ""
        return f"rank = {self.rank}, alpha = {self.alpha:g}{rslora}, projections = [{', '.join(names)}]"

    def write(self, folder: Path) -> None:
        """Writes the file as PEFT reads it. A trained adapter has no dropout."""
        alpha = int(self.alpha) if float(self.alpha).is_integer() else self.alpha
        settings: dict[str, Any] = {name: values[0] for name, values in _WRITTEN.items()}
        settings |= {
            "base_model_name_or_path": self.base, "revision": self.revision, "task_type": "CAUSAL_LM",
            "inference_mode": True, "r": self.rank, "lora_alpha": alpha, "lora_dropout": 0.0,
            "target_modules": sorted(self.projections), "use_rslora": self.rslora,
        }  # fmt: skip
        (folder / ADAPTER_CONFIG).write_text(json.dumps(dict(sorted(settings.items())), indent=2) + "\n")
