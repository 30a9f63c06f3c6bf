"""What the trainer answers: plain data, readable without torch."""

from pydantic import BaseModel, ConfigDict, Field


class StepMetrics(BaseModel):
    """One optimizer step, over all processes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int = Field(description="1-based")
    of: int = Field(description="optimizer steps of the job")
    loss: float = Field(
        description="what was minimised: policy_loss + kl_coef x kl (no kl in the reward) - entropy_coef x entropy"
    )
    policy_loss: float = Field(description="the aggregated token loss")
    entropy: float = Field(description="mean entropy of the predicting distribution, nats a token")
    kl: float | None = Field(description="estimated divergence from the reference, averaged like the loss")
    kl_penalty: float | None = Field(
        description="what a completion lost for it in reward, on average: kl_coef x the sum of its tokens' divergences "
        "under the old log-probabilities; null where kl_place is `loss`"
    )
    grad_norm: float = Field(description="norm of the whole gradient before clipping")
    learning_rate: float
    ratio_mean: float = Field(description="mean importance ratio new / old")
    ratio_max: float
    clip_low_fraction: float = Field(description="share of tokens whose ratio was clipped from below (A < 0)")
    clip_high_fraction: float = Field(description="... from above (A > 0; A < 0 under dual_clip)")
    sampler_gap_mean: float | None = Field(
        description="mean |trainer - sampler| log-probability under the starting weights; null once they have moved, "
        "and where the loss has a temperature of its own"
    )
    sampler_gap_max: float | None
    sampler_ratio_mean: float | None = Field(description="mean importance trainer / sampler, null as the gap is")
    sampler_ratio_max: float | None
    sampler_ess: float | None = Field(
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
