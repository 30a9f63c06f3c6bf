"""The stage that updates the weights on a packed batch."""

from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from artifacts.errors import BadInputError
from artifacts.identity import Added, Identity, settings_of
from artifacts.refs import Batch, Checkpoint, Ref, TrainingState
from artifacts.slot import Slot
from artifacts.tensors import BATCH_FILE, PackedBatch
from stages.context import StageContext
from stages.training.job import EpochOrder, LossConfig, OptimizerConfig
from stages.training.launch import Schedule, Target, Weights, carry_over, train_and_publish
from stages.training.rates import RateConfig, learning_rate_at, shared_rate, step_rate
from stages.training.rounding import rounding_warning
from stages.training.trainable import TrainableConfig

REVISION = 1

_OF_ALL_ITERATIONS = ("learning_rate", "min_learning_rate", "schedule", "schedule_iterations", "warmup_iterations")
"""Settings that decide the learning rate of an iteration, which stands in the identity in their place."""

_SEED_DIGITS = 12
"""Hex digits of the batch's digest, which stands in the identity, that seed the order of the passes over it."""


class FinetuneConfig(RateConfig):
    """Loss, optimizer, learning rate and reference of the GRPO updates."""

    epochs: int = Field(default=1, ge=1, le=1_000_000, description="Passes over the rollouts of an iteration.")
    epoch_order: Annotated[EpochOrder, Added(before="same")] = Field(
        default="shuffled",
        description="Mini-batches of the passes after the first: drawn anew from the batch's rows, or as packed.",
    )
    carry_state: bool = Field(
        default=True, description="Carry master weights and optimizer state on; false = fresh each time."
    )
    loss: LossConfig = Field(default_factory=LossConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    trainable: TrainableConfig = Field(default_factory=TrainableConfig)
    reference: Literal["none", "base", "periodic", "ema"] = Field(
        default="none",
        description="What the KL term measures from: nothing, the model that GRPO starts from, the policy of every so "
        "many iterations, or a moving average of the policies. With `loss.kl_coef` 0 it is only measured.",
    )
    reference_iterations: int = Field(
        default=10,
        ge=1,
        le=1_000_000,
        description="Under `periodic`, iterations after which the policy becomes the reference.",
    )
    reference_decay: float = Field(
        default=0.99, ge=0, le=1, description="Under `ema`, weight of the old reference in the next, once an iteration."
    )

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.loss.kl_coef and self.reference == "none":
            raise ValueError("loss.kl_coef needs a reference: base, periodic or ema")
        return self


def finetune(
    ctx: StageContext,
    config: FinetuneConfig,
    weights: Weights,
    batch: Ref[Batch],
    *,
    iteration: int,
    out: Slot[Checkpoint],
    state_out: Slot[TrainingState],
    reference_out: Slot[Checkpoint],
) -> Weights:
    """Trains on the batch and publishes the new checkpoint, with its training state where the recipe carries it on.

    Beside it goes the next reference, where that is an average; any other is a checkpoint that stands already.
    A batch without rows (no group had a signal) leaves the weights as they are; they are published again.

    Args:
        weights: Checkpoint that the rollouts came from, the training state that was saved beside it, and the model that
            the KL term measures from (read only where the recipe has a reference).
        iteration: From 1; decides the learning rate.

    Raises:
        TransientError: The trainer died or hung.
        BadInputError: There is no reference although the recipe asks for one, or its vocabulary is another.
        DeerstalkerError: It ran out of memory, or the checkpoint is of an unsupported family.
    """
    learning_rate = learning_rate_at(config, iteration)
    without_effect = {"epoch_order"} if config.epochs == 1 else set[str]()
    left_out = {*_OF_ALL_ITERATIONS, *without_effect}
    settings = {name: value for name, value in settings_of(config).items() if name not in left_out}
    reference = None if config.reference == "none" else weights.reference
    if config.reference != "none" and reference is None:
        raise BadInputError(
            f"finetune {iteration}", "no reference model", f"one, since finetune.reference is {config.reference!r}",
            "was the reference of the iteration before removed?",
        )  # fmt: skip
    inputs = {
        "weights": weights.checkpoint,
        "training_state": weights.state,
        "batch": batch,
        "reference": reference,
    }
    target = Target(
        Identity.of("finetune", REVISION, {**settings, "learning_rate": learning_rate}, **inputs),
        out,
        state_out if config.carry_state else None,
        inputs,
        reference_out if config.reference == "ema" else None,
    )
    if found := target.found():
        return _with_reference(found, weights, config, iteration)
    folder = ctx.local_folder(batch)
    packed = PackedBatch.from_bytes((folder / BATCH_FILE).read_bytes(), batch.key)
    if packed.minibatches == 0:
        return _with_reference(carry_over(weights, target, ctx), weights, config, iteration)
    rates = [step_rate(config, iteration, packed.minibatches)] * packed.minibatches * config.epochs
    if iteration == 1 and (warning := _rounding(config, packed.minibatches)):
        ctx.log.warning("%s", warning)
    schedule = Schedule(
        rates,
        config.epochs,
        config.loss,
        config.optimizer,
        config.trainable,
        reference,
        config.reference_decay,
        config.epoch_order,
        int(batch.digest[:_SEED_DIGITS], 16),
    )
    trained = train_and_publish(weights, folder / BATCH_FILE, schedule, target, ctx, label=f"finetune {iteration}")
    return _with_reference(trained, weights, config, iteration)


def _rounding(config: FinetuneConfig, minibatches: int) -> str | None:
    """A warning where most updates would be lost to rounding (see `stages.training.rounding`).

    An adapter's step moves the weights that are published by another amount than the rate, so that LoRA gets none.
    """
    each_step = config.optimizer.master_dtype == "bf16"
    if (config.carry_state and not each_step) or config.trainable.parameters == "lora":
        return None
    highest = shared_rate(config, config.learning_rate, minibatches)
    return rounding_warning(highest, minibatches * config.epochs, each_step=each_step)


def _with_reference(trained: Weights, before: Weights, config: FinetuneConfig, iteration: int) -> Weights:
    """What was trained, with the reference of the next iteration."""
    if config.reference == "ema":
        return trained
    renewed = config.reference == "periodic" and iteration % config.reference_iterations == 0
    return replace(trained, reference=trained.checkpoint if renewed else before.reference)
