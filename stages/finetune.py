"""The stage that updates the weights on a packed batch."""

from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.refs import Batch, Checkpoint, Ref, TrainingState
from artifacts.tensors import BATCH_FILE, PackedBatch
from stages.context import StageContext
from stages.training.job import EpochOrder, LossConfig, OptimizerConfig
from stages.training.launch import JobSettings, Target, Weights, carry_over, train_and_publish, warn_of_rounding
from stages.training.rounding import step_warning
from stages.training.schedules.kl_schedule import KlScheduleConfig, kl_coef_at
from stages.training.schedules.learning_rates import (
    LEARNING_RATE_SETTINGS,
    LearningRateConfig,
    learning_rate_at,
    shared_rate,
    step_rate,
)
from stages.training.trainable import TrainableConfig

REVISION = 1

_SEED_DIGITS = 12
"""Number of hex digits of the batch's digest (part of the identity) that seed the order of the later passes."""


class FinetuneConfig(LearningRateConfig):
    """Loss, optimizer, learning rate and reference of the GRPO updates."""

    epochs: int = Field(default=1, ge=1, le=1_000_000, description="Passes over the rollouts of an iteration.")
    epoch_order: EpochOrder = Field(
        default="shuffled",
        description="Mini-batches of the passes after the first: drawn again from the batch's rows, or as packed.",
    )
    frozen_iterations: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="First iterations in which the weights stay unchanged, so that a value model learns before its "
        "values count. The schedules of learning rate and KL term begin after them. `value.pretrain` does the same "
        "without sampling.",
    )
    carry_state: bool = Field(
        default=True,
        description="Carry master weights and optimizer state over to the next iteration; false starts each iteration "
        "from the checkpoint with a new optimizer.",
    )
    loss: LossConfig = Field(default_factory=LossConfig)
    kl_schedule: KlScheduleConfig | None = Field(
        default=None, description="How `loss.kl_coef` falls over the iterations; null keeps it."
    )
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    trainable: TrainableConfig = Field(default_factory=TrainableConfig)
    reference: Literal["none", "base", "periodic", "ema"] = Field(
        default="none",
        description="Reference model of the KL term: none, the model that GRPO starts from, an earlier policy that is "
        "replaced every `reference_iterations`, or a moving average of the policies. With `loss.kl_coef` 0 the "
        "divergence is only measured.",
    )
    reference_iterations: int = Field(
        default=10,
        ge=1,
        le=1_000_000,
        description="Under `periodic`, number of iterations after which the policy becomes the reference.",
    )
    reference_decay: float = Field(
        default=0.99,
        ge=0,
        le=1,
        description="Under `ema`, weight of the old reference in the next one, once per iteration.",
    )

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.loss.kl_coef and self.reference == "none":
            raise ValueError("loss.kl_coef needs a reference: base, periodic or ema")
        if self.kl_schedule and not self.loss.kl_coef:
            raise ValueError("kl_schedule lowers loss.kl_coef, but that is 0: set it, or drop the schedule")
        return self


def finetune(
    ctx: StageContext,
    config: FinetuneConfig,
    weights: Weights,
    batch: Ref[Batch],
    *,
    iteration: int,
    out: ArtifactAddress[Checkpoint],
    state_out: ArtifactAddress[TrainingState],
    reference_out: ArtifactAddress[Checkpoint],
) -> Weights:
    """Trains on the batch and publishes the new checkpoint.

    With `carry_state` it also publishes the training state, and with `reference = "ema"` the next reference; any other
    reference is a checkpoint that exists already. If the batch has no rows (no group had a signal), or in a frozen
    iteration, the weights are published again unchanged.

    Args:
        weights: The newest checkpoint (the rollouts may be of the one before, see `flows.ahead`), the training state
            that was saved with it, and the reference model (read only if the recipe has a reference).
        iteration: Number of the iteration, from 1; determines the learning rate, the KL coefficient, whether the
            weights are frozen, and under `reference = "periodic"` whether the new checkpoint becomes the reference.

    Raises:
        TransientError: The trainer died or hung.
        BadInputError: The recipe needs a reference and there is none, or its vocabulary differs.
        DeerstalkerError: The trainer ran out of memory, or the checkpoint is of an unsupported family.
    """
    frozen = iteration <= config.frozen_iterations
    learning = max(1, iteration - config.frozen_iterations)  # schedules begin when the weights begin to change
    learning_rate = 0.0 if frozen else learning_rate_at(config, learning)
    kl_coef = kl_coef_at(config.loss.kl_coef, config.kl_schedule, learning)
    config = config.model_copy(
        update={"loss": config.loss.model_copy(update={"kl_coef": kl_coef}), "kl_schedule": None}
    )
    left_out = {*LEARNING_RATE_SETTINGS, "frozen_iterations"}
    settings = {name: value for name, value in config.model_dump(mode="json").items() if name not in left_out}
    reference = None if config.reference == "none" else weights.reference
    if config.reference != "none" and reference is None:
        raise BadInputError(
            f"finetune {iteration}", "no reference model", f"one, because finetune.reference is {config.reference!r}",
            "check whether the reference of the previous iteration was removed",
        )  # fmt: skip
    inputs = {
        "weights": weights.checkpoint,
        "training_state": weights.state,
        "batch": batch,
        "reference": reference,
    }
    target = Target(
        Identity.of("finetune", REVISION, {**settings, "learning_rate": learning_rate}, **inputs),
        checkpoint=out,
        state=state_out if config.carry_state else None,
        inputs=inputs,
        reference=reference_out if config.reference == "ema" else None,
    )
    if published := target.published():
        return _with_reference(published, weights, config, iteration)
    folder = ctx.local_folder(batch)
    packed = PackedBatch.from_bytes((folder / BATCH_FILE).read_bytes(), batch.key)
    if frozen or packed.minibatches == 0:
        return _with_reference(carry_over(weights, target, ctx), weights, config, iteration)
    rates = [step_rate(config, learning, packed.minibatches)] * packed.minibatches * config.epochs
    highest = shared_rate(config, config.learning_rate, packed.minibatches)
    if learning == 1 and config.optimizer.master_dtype == "bf16" and (warning := step_warning(highest)):
        ctx.log.warning("%s", warning)
    job_settings = JobSettings(
        learning_rates=rates,
        epochs=config.epochs,
        loss=config.loss,
        optimizer=config.optimizer,
        trainable=config.trainable,
        reference=reference,
        reference_decay=config.reference_decay,
        epoch_order=config.epoch_order,
        epoch_seed=int(batch.digest[:_SEED_DIGITS], 16),
    )
    trained = train_and_publish(weights, folder / BATCH_FILE, job_settings, target, ctx, label=f"finetune {iteration}")
    if learning == max(1, config.warmup_iterations):  # the first iteration with the highest rate
        warn_of_rounding(trained, job_settings, "finetune.learning_rate", ctx)
    return _with_reference(trained, weights, config, iteration)


def _with_reference(trained: Weights, before: Weights, config: FinetuneConfig, iteration: int) -> Weights:
    """Returns the trained weights with the reference of the next iteration."""
    if config.reference == "ema":
        return trained
    refresh = config.reference == "periodic" and iteration % config.reference_iterations == 0
    return replace(trained, reference=trained.checkpoint if refresh else before.reference)
