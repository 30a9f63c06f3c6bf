"""The stage that updates the weights on a packed batch."""

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from artifacts.identity import Identity
from artifacts.refs import Batch, Checkpoint, Ref, TrainingState
from artifacts.slot import Slot
from artifacts.tensors import BATCH_FILE, PackedBatch
from stages.context import StageContext
from stages.training.job import LossConfig, OptimizerConfig
from stages.training.launch import Schedule, Target, Weights, carry_over, train_and_publish
from stages.training.trainable import TrainableConfig

REVISION = 1


class FinetuneConfig(BaseModel):
    """Loss, optimizer and learning-rate schedule of the GRPO updates."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    learning_rate: float = Field(default=1e-6, gt=0, description="Highest learning rate of the schedule.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="How the learning rate falls to 0 behind the last of `schedule_iterations`."
    )
    schedule_iterations: int = Field(default=1000, ge=1, description="Length of a falling schedule.")
    warmup_iterations: int = Field(
        default=0, ge=0, description="Iterations over which the learning rate rises linearly."
    )
    epochs: int = Field(default=1, ge=1, description="Passes over the rollouts of an iteration.")
    carry_state: bool = Field(
        default=True, description="Carry fp32 weights and optimizer state on; false = fresh each time."
    )
    loss: LossConfig = Field(default_factory=LossConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    trainable: TrainableConfig = Field(default_factory=TrainableConfig)


def finetune(
    config: FinetuneConfig,
    weights: Weights,
    batch: Ref[Batch],
    *,
    iteration: int,
    out: Slot[Checkpoint],
    state_out: Slot[TrainingState],
    ctx: StageContext,
) -> Weights:
    """Trains on the batch and publishes the new checkpoint, with its training state where the recipe carries it on.

    A batch without rows (no group had a signal) leaves the weights as they are; they are published again.

    Args:
        weights: Checkpoint that the rollouts came from, and the training state that was saved beside it.
        iteration: From 1; decides the learning rate.

    Raises:
        TransientError: The trainer died or hung.
        DeerstalkerError: It ran out of memory, or the checkpoint is of an unsupported family.
    """
    learning_rate = learning_rate_at(config, iteration)
    settings = config.model_dump(
        mode="json", exclude={"learning_rate", "schedule", "schedule_iterations", "warmup_iterations"}
    )
    inputs = {"weights": weights.checkpoint, "training_state": weights.state, "batch": batch}
    target = Target(
        Identity.of("finetune", REVISION, {**settings, "learning_rate": learning_rate}, **inputs),
        out,
        state_out if config.carry_state else None,
        inputs,
    )
    if found := target.found():
        return found
    folder = ctx.local_folder(batch)
    packed = PackedBatch.from_bytes((folder / BATCH_FILE).read_bytes(), batch.key)
    if packed.minibatches == 0:
        return carry_over(weights, target, ctx)
    steps = packed.minibatches * config.epochs
    schedule = Schedule([learning_rate] * steps, config.epochs, config.loss, config.optimizer, config.trainable)
    return train_and_publish(weights, folder / BATCH_FILE, schedule, target, ctx, label=f"finetune {iteration}")


def learning_rate_at(config: FinetuneConfig, iteration: int) -> float:
    """Learning rate of one iteration, counted from 1.

    With n = `schedule_iterations`: `linear` gives lr (1 - (i-1)/n), `cosine` gives lr (1 + cos(pi (i-1)/n)) / 2;
    both stay at their last positive value behind n.
    """
    warmup = min(1.0, iteration / config.warmup_iterations) if config.warmup_iterations else 1.0
    spent = min(iteration - 1, config.schedule_iterations - 1) / config.schedule_iterations
    decay = {"constant": 1.0, "linear": 1.0 - spent, "cosine": (1.0 + math.cos(math.pi * spent)) / 2}
    return config.learning_rate * warmup * decay[config.schedule]
