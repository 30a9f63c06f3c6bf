"""What a completion is worth: accuracy, and what an unfinished answer costs."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class RewardConfig(BaseModel):
    """Terms of the reward."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    accuracy_weight: float = Field(
        default=1.0, ge=0, description="Times the fraction of lettered answers that are right."
    )
    exact_weight: float = Field(default=0.0, ge=0, description="Added when every answer is right.")
    deductions_weight: float = Field(
        default=0.0,
        ge=0,
        description="Times the fraction of the asserted statements that are proved; those that restate a clue count "
        "neither way, and a completion that asserts nothing else gets nothing.",
    )
    truncated: Literal["graded", "zero", "penalty"] = Field(
        default="penalty",
        description="A completion cut at the token limit: graded like any other, worth 0, or graded less the penalty.",
    )
    truncation_penalty: float = Field(
        default=0.5, ge=0, description="Subtracted from a cut completion under `penalty`."
    )


def reward(accuracy: float, exact: bool, truncated: bool, config: RewardConfig, *, sound: float = 0.0) -> float:
    """Reward of one completion; with an unfinished answer costing nothing, lengths run into the limit.

    Args:
        accuracy: Fraction of the lettered answers that are right.
        exact: Whether all are.
        truncated: Whether the completion was cut at the token limit.
        config: The terms.
        sound: Fraction of the completion's statements, restated clues aside, that the clues entail.
    """
    graded = config.accuracy_weight * accuracy + config.exact_weight * exact + config.deductions_weight * sound
    if not truncated or config.truncated == "graded":
        return graded
    return 0.0 if config.truncated == "zero" else graded - config.truncation_penalty
