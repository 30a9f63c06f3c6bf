"""What the trainer answers: plain data, readable without torch."""

import math
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _null_unless_finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


Measured = Annotated[float | None, BeforeValidator(_null_unless_finite)]
"""A measured number; NaN and infinities, which JSON does not have, become null."""


class StepMetrics(BaseModel):
    """One optimizer step, over all processes. A number that is not finite is null.

    The losses and kl of a skipped step are null too: where they are finite, they are too large for a mean over steps.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int = Field(description="1-based")
    of: int = Field(description="optimizer steps of the job")
    skipped: bool = Field(
        default=False,
        description="the gradient was not finite, so that weights and optimizer state stayed as they were",
    )
    loss: Measured = Field(
        description="what was minimised: policy_loss + kl_coef x kl (no kl in the reward) - entropy_coef x entropy"
    )
    policy_loss: Measured = Field(description="the aggregated token loss")
    entropy: Measured = Field(description="mean entropy of the predicting distribution, nats a token")
    kl: Measured = Field(description="estimated divergence from the reference, averaged like the loss")
    kl_penalty: Measured = Field(
        description="what a completion lost for it in reward, on average: kl_coef x the sum of its tokens' divergences "
        "under the old log-probabilities; null where kl_place is `loss`"
    )
    grad_norm: Measured = Field(description="norm of the whole gradient before clipping")
    learning_rate: float
    ratio_mean: Measured = Field(description="mean importance ratio new / old")
    ratio_max: Measured
    clip_low_fraction: float = Field(description="share of tokens whose ratio was clipped from below (A < 0)")
    clip_high_fraction: float = Field(description="... from above (A > 0; A < 0 under dual_clip)")
    sampler_gap_mean: Measured = Field(
        description="mean |trainer - sampler| log-probability under the starting weights; null once they have moved, "
        "and where the loss has a temperature of its own"
    )
    sampler_gap_max: Measured
    sampler_ratio_mean: Measured = Field(description="mean importance trainer / sampler, null as the gap is")
    sampler_ratio_max: Measured
    sampler_ess: Measured = Field(
        description="effective share of the tokens as samples of the trainer, (sum r)^2 / (n sum r^2), 0 to 1"
    )
    tokens: int = Field(description="tokens gone through the model, prompts once")
    loss_tokens: int = Field(description="completion tokens that took part in the loss")
    seconds: float
    tokens_per_s: float


class TrainTotals(BaseModel):
    """The whole job."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: int
    loss_tokens: int
    tokens_per_s: float = Field(description="tokens over the seconds of training, loading and saving left out")
    peak_memory_bytes: int = Field(description="of the process (CPU) or device (CUDA) that used most")
    load_s: float
    old_logprobs_s: float = Field(description="seconds of recomputing old and reference log-probabilities")
    train_s: float
    save_s: float


class TrainResult(BaseModel):
    """What a finished job reports."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: list[StepMetrics]
    totals: TrainTotals
