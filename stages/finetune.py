"""The stage that updates the weights on a packed batch."""

from dataclasses import replace
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity, seed_of, settings_of
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, OptimizerState, Ref
from artifacts.tensors import BATCH_FILE
from stages.context import StageContext
from stages.models.stored import BASE, base_ref
from stages.training.job import JobSettings, UpdateConfig
from stages.training.launch import Target, Weights, carry_over, train_and_publish, warn_of_rounding
from stages.training.rounding import step_warning
from stages.training.schedules.kl_schedule import KlScheduleConfig, kl_coef_at
from stages.training.schedules.learning_rates import LearningRateConfig, shared_rate, step_rate

REVISION = 1


class FinetuneConfig(UpdateConfig, LearningRateConfig):
    """Loss, optimizer, learning rate and reference of the GRPO updates."""

    frozen_iterations: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="First iterations in which the weights stay unchanged, so that a critic learns before its "
        "values count. The schedules of learning rate and KL term begin after them. `value.pretrain` does the same "
        "without sampling.",
    )
    carry_state: bool = Field(
        default=True,
        description="Carry master weights and optimizer state over to the next iteration; false starts each iteration "
        "from the checkpoint with a new optimizer.",
    )
    kl_schedule: KlScheduleConfig | None = Field(
        default=None, description="How `loss.kl_coef` falls over the iterations; null keeps it."
    )
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
        description="Under `ema`, weight of the old reference in the next one, once per iteration that trains.",
    )

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.loss.kl_coef and self.reference == "none":
            raise ValueError("loss.kl_coef needs a reference: base, periodic or ema")
        if self.reference == "none":
            self.loss.refuse_unread(("kl_estimator", "kl_clamp", "kl_place"), "without a reference")
        for name, kind in (("reference_iterations", "periodic"), ("reference_decay", "ema")):
            if self.reference != kind:
                self.refuse_unread((name,), f"with reference = '{self.reference}'")
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
    state_out: ArtifactAddress[OptimizerState],
    reference_out: ArtifactAddress[Checkpoint],
) -> Weights:
    """Trains on the batch and publishes the new checkpoint.

    With `carry_state` it also publishes the optimizer state, and with `reference = "ema"` the next reference; any other
    reference is a checkpoint that exists already. If the batch has no rows (no group had a signal), or in a frozen
    iteration, the weights are published again unchanged.

    Args:
        weights: The newest checkpoint (the rollouts may be of the one before, see `flows.ahead`), the optimizer state
            that was saved with it, and the reference model (read only if the recipe has a reference).
        iteration: Number of the iteration, from 1; determines the learning rate, the KL coefficient, whether the
            weights are frozen, and under `reference = "periodic"` whether the new checkpoint becomes the reference.

    Raises:
        TransientError: The trainer died or hung.
        BadInputError: The recipe needs a reference and there is none, or its vocabulary differs.
        DeerstalkerError: The trainer ran out of memory, or the checkpoint is of an unsupported family.
    """
    if not config.carry_state:
        weights = replace(weights, state=None)  # an earlier phase may have carried one
    reference = None if config.reference == "none" else weights.reference
    if config.reference != "none" and reference is None:
        raise BadInputError(
            f"finetune {iteration}", "no reference model", f"one, because finetune.reference is {config.reference!r}",
            "check whether the reference of the previous iteration was removed",
        )  # fmt: skip
    settings = _settings(ctx, config, batch, iteration)
    if settings.loss.function is not None:
        settings.loss.function.found()  # before a trainer starts
    inputs: dict[str, Ref[Any] | None] = {
        "weights": weights.checkpoint,
        "optimizer_state": weights.state,
        "batch": batch,
        "reference": reference,
    }
    base = base_ref(ctx.store, weights.checkpoint)
    if settings.trainable.publishes_adapter or base != weights.checkpoint:
        inputs[BASE] = base
    target = Target(
        Identity.of("finetune", REVISION, {**settings_of(settings), "carry_state": config.carry_state}, **inputs),
        checkpoint=out,
        state=state_out if config.carry_state else None,
        inputs=inputs,
        reference=reference_out if config.reference == "ema" else None,
    )
    start = replace(weights, reference=reference)
    if published := target.published():
        trained = published
    elif any(settings.learning_rates):
        batch_file = ctx.local_folder(batch) / BATCH_FILE
        trained = train_and_publish(start, batch_file, settings, target, ctx, label=f"finetune {iteration}")
        _warn_of_rates(config, settings, trained, iteration - config.frozen_iterations, ctx)
    else:  # the iteration is frozen, or its batch is empty
        if iteration > config.frozen_iterations:
            ctx.log.warning("iteration %d has nothing to train on: its weights are those before it", iteration)
        trained = carry_over(start, target, ctx)
    if config.reference == "ema":
        return trained
    refresh = config.reference == "periodic" and iteration % config.reference_iterations == 0
    return replace(trained, reference=trained.checkpoint if refresh else weights.reference)


def _settings(ctx: StageContext, config: FinetuneConfig, batch: Ref[Batch], iteration: int) -> JobSettings:
    """Returns how the job of an iteration trains: its rates are 0 while the weights are frozen."""
    steps: int = Artifact.open(ctx.store, batch).manifest.facts["minibatches"]
    learning = max(1, iteration - config.frozen_iterations)  # schedules begin when the weights begin to change
    rate = 0.0 if iteration <= config.frozen_iterations else step_rate(config, learning, steps)
    kl_coef = kl_coef_at(config.loss.kl_coef, config.kl_schedule, learning)
    return JobSettings.of(
        config.model_copy(update={"loss": config.loss.model_copy(update={"kl_coef": kl_coef})}),
        learning_rates=[rate] * steps * config.epochs,
        epoch_seed=seed_of(batch.digest),
        reference_decay=config.reference_decay if config.reference == "ema" else None,
    )


def _warn_of_rates(
    config: FinetuneConfig, settings: JobSettings, trained: Weights, learning: int, ctx: StageContext
) -> None:
    """Warns once if rounding undoes most of the steps; `learning` counts the iterations that changed the weights."""
    if learning == 1 and config.optimizer.master_dtype == "bf16":
        highest = shared_rate(config, config.learning_rate, len(settings.learning_rates) // config.epochs)
        if warning := step_warning(highest):
            ctx.log.warning("%s", warning)
    if learning == max(1, config.warmup_iterations):  # the first iteration with the highest rate
        warn_of_rounding(trained, settings, "finetune.learning_rate", ctx)
