"""Results of a training job. This module imports no torch."""

import math
from typing import Annotated

from pydantic import BeforeValidator, Field

from artifacts.documents.document import Document


def _null_unless_finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


Measured = Annotated[float | None, BeforeValidator(_null_unless_finite)]
"""A measured number. NaN and infinities become null, because JSON has no such numbers."""


class StepMetrics(Document):
    """Metrics of one optimizer step, over all processes. A number that is not finite is null.

    The losses and the kl of a skipped step are null even if they are finite, because they would dominate a mean.
    """

    step: int = Field(description="number of the step, from 1")
    of: int = Field(description="optimizer steps of the job")
    skipped: bool = Field(
        default=False,
        description="the gradient was not finite, so that weights and optimizer state stayed unchanged",
    )
    loss: Measured = Field(
        description="minimized: policy_loss + kl_coef x kl (no kl if it is in the reward) - entropy_coef x entropy "
        "+ loss.positive_nll x positive_nll"
    )
    policy_loss: Measured = Field(description="aggregated token loss")
    entropy: Measured = Field(description="mean entropy of the predicting distribution, nats per token")
    kl: Measured = Field(description="estimated divergence from the reference, aggregated like the loss")
    kl_penalty: Measured = Field(
        description="mean reward that a completion lost for its divergence: kl_coef x the sum of its tokens' "
        "divergences under the old log-probabilities; null where kl_place is `loss`"
    )
    positive_nll: Measured = Field(
        default=None, description="mean negative log-probability of the tokens of right completions; null = not used"
    )
    grad_norm: Measured = Field(description="norm of the whole gradient before clipping")
    learning_rate: float
    ratio_mean: Measured = Field(description="mean importance ratio new / old")
    ratio_max: Measured
    clip_low_fraction: float = Field(
        description="share of tokens that the lower clip changed: under ppo_clip and gspo only where A < 0, under "
        "cispo and masked everywhere; of a value model, tokens whose value was clipped"
    )
    clip_high_fraction: float = Field(
        description="share of tokens that the upper clip changed: under ppo_clip and gspo only where A > 0 or "
        "dual_clip applies, under cispo and masked everywhere"
    )
    sampler_gap_mean: Measured = Field(
        description="mean |trainer - sampler| log-probability under the starting weights; null after the first update, "
        "and if the loss has a temperature of its own"
    )
    sampler_gap_max: Measured
    sampler_ratio_mean: Measured = Field(
        description="mean importance ratio trainer / sampler; null where sampler_gap_mean is null"
    )
    sampler_ratio_max: Measured
    sampler_ess: Measured = Field(
        description="effective sample size of the tokens for the trainer, as a share: (sum r)^2 / (n sum r^2), 0 to 1"
    )
    tokens: int = Field(description="tokens that the model processed, prompts once")
    loss_tokens: int = Field(description="completion tokens in the loss")
    seconds: float
    tokens_per_s: float


class TrainTotals(Document):
    """Totals of a job."""

    tokens: int
    loss_tokens: int
    tokens_per_s: float = Field(description="tokens per second of training, without loading and saving")
    peak_memory_bytes: int = Field(description="peak of the process (CPU) or device (CUDA) that used most")
    load_s: float
    old_logprobs_s: float = Field(description="seconds for old and reference log-probabilities")
    train_s: float
    save_s: float = Field(description="seconds for the weights; those of the training state follow")
    movement_lost: Measured = Field(
        default=None,
        description="share of the movement of the weights that was lost by rounding them to bf16, estimated from up to "
        "65,536 weights of each matrix (see `stages.training.model.movement`); null = masters in bf16, or no movement",
    )


class TrainResult(Document):
    """Result of a finished job."""

    steps: list[StepMetrics]
    totals: TrainTotals
