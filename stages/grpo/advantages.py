"""Rewards of a group of completions to advantages.

Shapes: P puzzles (groups), G completions of one puzzle. Formulas: DeepSeekMath (arXiv 2402.03300) for the normalised
advantage, "Understanding R1-Zero-like training" (arXiv 2503.20783) for the variant that only subtracts the mean.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field


class AdvantageConfig(BaseModel):
    """How the rewards of a group become advantages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scale: Literal["population_std", "sample_std", "none"] = Field(
        default="population_std", description="What the centred reward is divided by; `none` is Dr. GRPO."
    )
    epsilon: float = Field(default=1e-6, ge=0, description="Added to the standard deviation.")
    uniform_tolerance: float = Field(
        default=1e-8,
        ge=0,
        description="A group whose rewards spread less than this has no signal: its advantages are 0.",
    )


def group_advantages(rewards_G: npt.NDArray[np.float64], config: AdvantageConfig) -> npt.NDArray[np.float64]:
    """Advantages of one group.

    Args:
        rewards_G: Rewards of the completions of one puzzle, [G].

    Returns:
        Advantages, [G]. Exactly 0 for a uniform group: floating point leaves residues of 1e-10 in the mean of equal
        fractions, which must not pass for a signal.
    """
    if float(np.ptp(rewards_G)) <= config.uniform_tolerance:
        return np.zeros_like(rewards_G)
    centred_G = rewards_G - rewards_G.mean()
    match config.scale:
        case "none":
            return centred_G
        case "population_std":
            return centred_G / (rewards_G.std() + config.epsilon)
        case "sample_std":
            return centred_G / (rewards_G.std(ddof=1) + config.epsilon)
