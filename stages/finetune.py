"""The stage that updates the weights on a packed batch."""

from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from artifacts.errors import BadInputError
from artifacts.identity import Identity, settings_of
from artifacts.refs import Batch, Checkpoint, Ref, TrainingState
from artifacts.slot import Slot
from artifacts.tensors import BATCH_FILE, PackedBatch
from stages.context import StageContext
from stages.training.job import LossConfig, OptimizerConfig
from stages.training.launch import Schedule, Target, Weights, carry_over, train_and_publish
from stages.training.rates import RateConfig, learning_rate_at, step_rate
from stages.training.trainable import TrainableConfig

REVISION = 1

_OF_ALL_ITERATIONS = ("learning_rate", "min_learning_rate", "schedule", "schedule_iterations", "warmup_iterations")
"""Settings that decide the learning rate of an iteration, which stands in the identity in their place."""


class FinetuneConfig(RateConfig):
    """Loss, optimizer, learning rate and reference of the GRPO updates."""

    epochs: int = Field(default=1, ge=1, description="Passes over the rollouts of an iteration.")
    carry_state: bool = Field(
        default=True, description="Carry fp32 weights and optimizer state on; false = fresh each time."
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
        default=10, ge=1, description="Under `periodic`, iterations after which the policy becomes the reference."
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
    config: FinetuneConfig,
    weights: Weights,
    batch: Ref[Batch],
    *,
    iteration: int,
    out: Slot[Checkpoint],
    state_out: Slot[TrainingState],
    reference_out: Slot[Checkpoint],
    ctx: StageContext,
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
    settings = {name: value for name, value in settings_of(config).items() if name not in _OF_ALL_ITERATIONS}
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
    schedule = Schedule(
        rates, config.epochs, config.loss, config.optimizer, config.trainable, reference, config.reference_decay
    )
    trained = train_and_publish(weights, folder / BATCH_FILE, schedule, target, ctx, label=f"finetune {iteration}")
    return _with_reference(trained, weights, config, iteration)


def _with_reference(trained: Weights, before: Weights, config: FinetuneConfig, iteration: int) -> Weights:
    """What was trained, with the reference of the next iteration."""
    if config.reference == "ema":
        return trained
    renewed = config.reference == "periodic" and iteration % config.reference_iterations == 0
    return replace(trained, reference=trained.checkpoint if renewed else before.reference)
