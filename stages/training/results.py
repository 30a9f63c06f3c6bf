"""Results of a training job. This module imports no torch."""

import math
from typing import Annotated, Self

from pydantic import BeforeValidator, Field

from artifacts.documents.document import Document


def _null_unless_finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


Measured = Annotated[float | None, BeforeValidator(_null_unless_finite)]
"""A measured number. NaN and infinities become null, because JSON has no such numbers."""


class LossMetrics(Document):
    """Metrics that an objective measures in one optimizer step, over all processes.

    A number that is not finite is null, and so is one that the objective does not measure.
    """

    loss: Measured = Field(
        description="minimized: policy_loss + kl_coef x kl (no kl if it is in the reward) - entropy_coef x entropy "
        "+ loss.positive_nll x positive_nll + loss.router_aux_loss_coef x router_aux_loss"
    )
    policy_loss: Measured = Field(default=None, description="aggregated token loss")
    entropy: Measured = Field(default=None, description="mean entropy of the predicting distribution, nats per token")
    kl: Measured = Field(default=None, description="estimated divergence from the reference, aggregated like the loss")
    kl_penalty: Measured = Field(
        default=None,
        description="mean reward that a completion lost for its divergence: kl_coef x the sum of its tokens' "
        "divergences under the old log-probabilities; null where kl_place is `loss`",
    )
    positive_nll: Measured = Field(
        default=None, description="mean negative log-probability of the tokens of right completions; null = not used"
    )
    router_aux_loss: Measured = Field(
        default=None,
        description="load-balancing loss of the router, mean over the tokens of their sequences' losses: the number of "
        "experts of a token where the load is even, more where it is not; null = a model without experts",
    )
    ratio_mean: Measured = Field(default=None, description="mean importance ratio new / old")
    ratio_max: Measured = None
    clip_low_fraction: float = Field(
        default=0.0,
        description="share of tokens that the lower clip changed: under ppo_clip and gspo only where A < 0, under "
        "cispo and masked everywhere; of a critic, tokens whose value was clipped",
    )
    clip_high_fraction: float = Field(
        default=0.0,
        description="share of tokens that the upper clip changed: under ppo_clip and gspo only where A > 0 or "
        "dual_clip applies, under cispo and masked everywhere",
    )
    sampler_gap_mean: Measured = Field(
        default=None,
        description="mean |trainer - sampler| log-probability under the starting weights; null after the first update "
        "unless old_logprobs is trainer, and if the loss has a temperature of its own",
    )
    sampler_gap_max: Measured = None
    sampler_ratio_mean: Measured = Field(
        default=None, description="mean importance ratio trainer / sampler; null where sampler_gap_mean is null"
    )
    sampler_ratio_max: Measured = None
    sampler_ess: Measured = Field(
        default=None,
        description="effective sample size of the tokens for the trainer, as a share: (sum r)^2 / (n sum r^2), 0 to 1",
    )

    own: dict[str, Measured] = Field(
        default_factory=dict[str, float | None], description="mean of each metric that your own loss returns"
    )

    def of_skipped_step(self) -> Self:
        """Returns the metrics without losses and kl, which would dominate a mean even if they are finite."""
        return self.model_copy(update=dict.fromkeys(("loss", "policy_loss", "kl", "positive_nll", "router_aux_loss")))


class StepMetrics(LossMetrics):
    """Metrics of one optimizer step, over all processes. The losses and the kl of a skipped step are null."""

    step: int = Field(description="number of the step, from 1")
    of: int = Field(description="optimizer steps of the job")
    skipped: bool = Field(
        default=False,
        description="the gradient was not finite, so that weights and optimizer state stayed unchanged",
    )
    grad_norm: Measured = Field(description="norm of the whole gradient before clipping")
    learning_rate: float
    tokens: int = Field(description="tokens that the model processed, prompts once")
    loss_tokens: int = Field(description="completion tokens in the loss")
    seconds: float
    tokens_per_s: float


class TrainTotals(Document):
    """Totals of a job."""

    tokens: int
    loss_tokens: int
    tokens_per_s: float = Field(
        description="tokens per second of training, without loading, saving and the writing of step checkpoints"
    )
    peak_memory_bytes: int = Field(description="peak of the process (CPU) or device (CUDA) that used most")
    load_s: float
    old_logprobs_s: float = Field(description="seconds for old and reference log-probabilities")
    train_s: float
    save_s: float = Field(description="seconds for the weights, without the later optimizer state")
    movement_lost: Measured = Field(
        default=None,
        description="share of the movement of the weights that was lost by rounding them to bf16, estimated from up to "
        "65,536 weights of each matrix (see `stages.training.model.movement`); null = masters in bf16, or no movement",
    )


class TrainResult(Document):
    """Result of a finished job."""

    steps: list[StepMetrics]
    totals: TrainTotals
