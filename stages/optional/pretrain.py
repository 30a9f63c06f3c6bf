"""The stage that trains a critic on stored rollouts, before the first iteration needs it. It samples nothing."""

from collections.abc import Sequence
from typing import Any, cast

from artifacts.address import ArtifactAddress
from artifacts.errors import NEW_RUN, BadInputError
from artifacts.identity import Identity, seed_of
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Critic, Grades, OptimizerState, Ref, Rollouts
from stages.context import StageContext
from stages.models.tokenizers.digest import check_same_tokenizer
from stages.training.critic import (
    LONGER_CONTEXT,
    ValueConfig,
    critic_batch,
    valued_rollouts,
    warn_of_bounds,
)
from stages.training.job import JobSettings
from stages.training.launch import Target, Weights, batch_file, train_and_publish
from stages.training.schedules.learning_rates import shared_rate

REVISION = 1
_SETTINGS = (
    "head", "reward_low", "reward_high", "row_tokens", "learning_rate", "learning_rate_of", "least_shares", "optimizer",
    "trainable",
)  # fmt: skip
"""Settings of the critic on which its pretraining depends, besides those of `pretrain` itself."""


def pretrain(
    ctx: StageContext,
    config: ValueConfig,
    model: Ref[Checkpoint],
    rollouts: Sequence[Ref[Rollouts]],
    grades: Sequence[Ref[Grades]],
    *,
    out: ArtifactAddress[Critic],
    state_out: ArtifactAddress[OptimizerState],
) -> Weights:
    """Trains a critic on the rewards of stored rollouts and publishes it with its optimizer state.

    The rollouts may be those of other runs, and other policies may have written them. The identity holds their digests.

    Args:
        config: Settings of the critic, with `pretrain`. The learning rate is the highest of the schedule.
        model: Model that the critic starts from; its value head begins at 0.
        rollouts: Rollouts of one or more iterations.
        grades: Their grades, in the same order.

    Raises:
        BadInputError: The rollouts were written with another tokenizer, or all their completions are masked.
        IntegrityError: Grades are not those of their rollouts.
        TransientError: The trainer died or hung.
        DeerstalkerError: The trainer ran out of memory.
    """
    chosen = config.pretrain
    assert chosen is not None  # the caller runs this stage only if `pretrain` is set
    settings = {name: item for name, item in config.model_dump(mode="json").items() if name in _SETTINGS}
    settings |= {"epochs": chosen.epochs, "updates": chosen.updates}
    inputs: dict[str, Ref[Any] | None] = {"model": model}
    for number, (sampled, graded) in enumerate(zip(rollouts, grades, strict=True), start=1):
        inputs |= {f"rollouts_{number:04d}": sampled, f"grades_{number:04d}": graded}
    identity = Identity.of("pretrain", REVISION, settings, **inputs)
    target = Target(identity, cast(ArtifactAddress[Checkpoint], out), state_out, inputs)
    if published := target.published():
        return published
    for sampled in rollouts:
        writer = Ref[Checkpoint](**Artifact.open(ctx.store, sampled).manifest.inputs["weights"])
        check_same_tokenizer(ctx.store, model, writer, f"value.pretrain.run: {sampled.key}")
    tables = [valued_rollouts(ctx.store, *pair) for pair in zip(rollouts, grades, strict=True)]
    warn_of_bounds(config, tables, ctx.log)
    seed = seed_of(identity.digest)
    batch, _ = critic_batch(tables, config, chosen.updates, seed)
    if batch.minibatches == 0:
        raise BadInputError(
            "value.pretrain", "no completion with an advantage in these rollouts", "at least one",
            f"{NEW_RUN}, with other iterations or without value.pretrain",
        )  # fmt: skip
    batch.check(out.key)
    rate = shared_rate(config, config.learning_rate, batch.minibatches)
    job_settings = JobSettings(
        learning_rates=(rate,) * batch.minibatches * chosen.epochs,
        epochs=chosen.epochs,
        optimizer=config.optimizer,
        trainable=config.trainable.merging(),
        epoch_seed=seed,
        value=config.for_pretraining().job(),
    )
    with batch_file(batch, model, ctx, where="value.pretrain.run", remedy=LONGER_CONTEXT) as file:
        return train_and_publish(Weights(model), file, job_settings, target, ctx, label="pretrain").saved(ctx)
