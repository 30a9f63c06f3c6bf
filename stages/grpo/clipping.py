"""The share of tokens that the clip of the policy loss holds back; readable without torch."""

from collections.abc import Mapping
from typing import Any


def clip_fraction(step: Mapping[str, Any]) -> float:
    """Returns the share of an optimizer step's loss tokens whose importance ratio was clipped, 0 to 1.

    A token is clipped from below or from above (`clipped_low` and `clipped_high` of `stages.grpo.loss.TokenLoss`),
    never both, so the two shares add up.

    Args:
        step: The step's metrics as JSON (`stages.training.results.StepMetrics`).
    """
    return step["clip_low_fraction"] + step["clip_high_fraction"]
