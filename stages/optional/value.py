"""The stage that judges rollouts by a critic, derives the advantages of tokens, and trains the critic."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from safetensors.numpy import load_file

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity, seed_of
from artifacts.refs import Checkpoint, Critic, Grades, OptimizerState, Ref, Rollouts, Values
from artifacts.schemas import TOKEN_ADVANTAGES, TOKEN_ADVANTAGES_FILE, VALUES, VALUES_FILE, as_table
from stages.context import StageContext
from stages.grpo.gae import Floats, explained_variances, gae, lambda_of_length, last_token_rewards, normalised
from stages.grpo.packing import by_completion
from stages.training.critic import (
    LONGER_CONTEXT,
    ValueConfig,
    critic_batch,
    model_tokens,
    valued_rollouts,
    warn_of_bounds,
)
from stages.training.job import JobSettings
from stages.training.launch import Target, Weights, batch_file, carry_over, train_and_publish
from stages.training.schedules.learning_rates import LEARNING_RATE_SETTINGS, learning_rate_at, step_rate

REVISION = 1
_VALUES = "values"
_WITHOUT_EFFECT = (*LEARNING_RATE_SETTINGS, "source", "pretrain")
"""Settings that the identity leaves out, because the iteration's learning rate and the inputs depend on them."""


@dataclass(frozen=True)
class Valued:
    """The result of the stage.

    Attributes:
        values: Values and advantages of tokens under the critic before its training.
        critic: The critic after it, with its optimizer state.
    """

    values: Ref[Values]
    critic: Weights

    @property
    def reused(self) -> bool:
        """Whether the critic, which is published after the values, was found in the store instead of being trained."""
        return self.critic.reused


def value(
    ctx: StageContext,
    config: ValueConfig,
    critic: Weights,
    rollouts: Ref[Rollouts],
    grades: Ref[Grades],
    *,
    iteration: int,
    out: ArtifactAddress[Values],
    critic_out: ArtifactAddress[Critic],
    state_out: ArtifactAddress[OptimizerState],
) -> Valued:
    """Computes values of rollouts and the advantages of their tokens, then trains the critic on the rewards.

    The values are those before this training. The critic is published after them; its optimizer state follows
    (see `stages.training.launch.train_and_publish`).

    Args:
        critic: The critic with its optimizer state; at first a language model, whose value head then begins at 0.
        rollouts: The rollouts.
        grades: Their grades. Completions without an advantage (masked) have no values and are not learned from.
        iteration: Number of the iteration, from 1; determines the learning rate.

    Raises:
        IntegrityError: The grades are not those of the rollouts.
        BadInputError: The critic does not know a token of the rollouts, has another head, or its context is too short.
        TransientError: The trainer died or hung.
        DeerstalkerError: The trainer ran out of memory.
    """
    settings = {name: item for name, item in config.model_dump(mode="json").items() if name not in _WITHOUT_EFFECT}
    settings["learning_rate"] = learning_rate_at(config, iteration)
    inputs: dict[str, Ref[Any] | None] = {
        "critic": critic.checkpoint,
        "critic_state": critic.state,
        "rollouts": rollouts,
        "grades": grades,
    }
    identity = Identity.of("value", REVISION, settings, **inputs)
    target = Target(identity, cast(ArtifactAddress[Checkpoint], critic_out), state_out, inputs)
    values, trained = out.find(identity), target.published()
    if values and trained:
        return Valued(values, trained)
    table = valued_rollouts(ctx.store, rollouts, grades)
    warn_of_bounds(config, [table], ctx.log)
    seed = seed_of(rollouts.digest)
    batch, numbers = critic_batch([table], config, config.updates, seed)

    def publish(file: Path | None) -> Ref[Values]:
        attempt = out.attempt(identity)
        values = load_file(file)[_VALUES] if file else np.zeros((0, 0), np.float32)
        frames = _tables(table, by_completion(values.astype(np.float64), numbers, len(table)), config)
        attempt.write_table(VALUES_FILE, frames.values, VALUES)
        attempt.write_table(TOKEN_ADVANTAGES_FILE, frames.token_advantages, TOKEN_ADVANTAGES)
        return attempt.publish(frames.facts, **inputs)

    if batch.minibatches == 0:
        values = publish(None)
        return Valued(values, carry_over(critic, target, ctx))
    batch.check(out.key)
    job_settings = JobSettings(
        learning_rates=(step_rate(config, iteration, batch.minibatches),) * batch.minibatches * config.epochs,
        epochs=config.epochs,
        optimizer=config.optimizer,
        trainable=config.trainable.merging(),
        epoch_seed=seed,
        value=config.job(),
    )
    to_publish = replace(target, values=values, publish_values=None if values else publish)
    with batch_file(batch, critic.checkpoint, ctx, where="value.source", remedy=LONGER_CONTEXT) as file:
        trained = train_and_publish(critic, file, job_settings, to_publish, ctx, label=f"value {iteration}")
    published = out.find(identity)
    assert published is not None  # `publish` has run before the critic was published
    return Valued(published, trained)


@dataclass(frozen=True)
class _Tables:
    """Content of the artifact of values: tables of the schemas `values` and `token_advantages`, and figures."""

    values: pl.DataFrame
    token_advantages: pl.DataFrame
    facts: dict[str, float | None]


def _tables(table: pl.DataFrame, values: list[Floats], config: ValueConfig) -> _Tables:
    """Returns values and advantages of completions.

    Args:
        table: Completions with their rewards.
        values: For each completion the values of its tokens; NaN for those of a tool.
        config: Lambda and normalisation.
    """
    keys, rewards, own = table.select("group", "sample").rows(), table["reward"].to_list(), model_tokens(table)
    own_values = [of_one[mine] for of_one, mine in zip(values, own, strict=True)]
    advantages: list[Floats] = []
    for of_one, reward in zip(own_values, rewards, strict=True):
        length = len(of_one)
        lambda_ = config.lambda_policy
        if config.length_alpha is not None:
            lambda_ = lambda_of_length(config.length_alpha, length)
        advantages.append(gae(last_token_rewards(reward, length), of_one, lambda_))
    advantages = normalised(advantages, [group for group, _ in keys], config.normalise)
    value_rows: list[dict[str, Any]] = []
    advantage_rows: list[dict[str, Any]] = []
    for i, (group, sample) in enumerate(keys):
        of_tokens = np.zeros(len(own[i]))
        of_tokens[own[i]] = advantages[i]
        written = [float(item) if mine else None for item, mine in zip(values[i], own[i], strict=True)]
        value_rows.append({"group": group, "sample": sample, "reward": rewards[i], "values": written})
        advantage_rows.append({"group": group, "sample": sample, "advantages": of_tokens.tolist()})
    return _Tables(
        as_table(value_rows, VALUES),
        as_table(advantage_rows, TOKEN_ADVANTAGES),
        _figures(own_values, rewards, advantages),
    )


def _figures(values: list[Floats], rewards: list[float], advantages: list[Floats]) -> dict[str, float | None]:
    """Returns the figures of the critic before it is trained on these rollouts."""
    filled = [i for i, of_one in enumerate(values) if of_one.size]
    returns = [np.full(len(values[i]), rewards[i]) for i in filled]
    shares = explained_variances([values[i] for i in filled], returns)
    all_values, all_returns = np.concatenate([np.zeros(0), *values]), np.concatenate([np.zeros(0), *returns])
    all_advantages = np.concatenate([np.zeros(0), *advantages])
    return {
        **{f"explained_variance/{name}": share for name, share in shares.items()},
        "value/mean": float(all_values.mean()) if all_values.size else None,
        "value/first_token_mean": float(np.mean([values[i][0] for i in filled])) if filled else None,
        "value/last_token_mean": float(np.mean([values[i][-1] for i in filled])) if filled else None,
        "value/error": float(((all_values - all_returns) ** 2).mean()) if all_values.size else None,
        "advantage/mean": float(all_advantages.mean()) if all_values.size else None,
        "advantage/std": float(all_advantages.std()) if all_values.size else None,
    }
