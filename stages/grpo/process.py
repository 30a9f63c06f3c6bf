"""Process supervision: advantages of single tokens, from a reward for each step of a completion.

A step is a statement or an answer and ends at its last token. A step's advantage is its reward minus a baseline
(DeepSeekMath, arXiv 2402.03300, section 4.1.3). A token's advantage is that of its completion plus those of the steps
that end at or after the token.

Shapes: P puzzles (groups), G completions of one puzzle, S steps of one completion, T tokens of one completion.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from artifacts.config import Config
from stages.grpo.advantages import AdvantageConfig, Rewards, divisor, is_uniform, leave_one_out_factor

_NOT_ENTAILED = ("open", "contradicted")
"""Verdicts of statements that the clues do not entail."""

_Reward = Annotated[float, Field(ge=-1e6, le=1e6)] | None


class StepRewards(Config):
    """Rewards of the steps of a completion, by their verdict.

    A step whose verdict has the reward null is ignored: it has no advantage and does not count in a baseline.
    """

    proved: _Reward = Field(default=1.0, description="A statement that the clues entail.")
    restated: _Reward = Field(default=0.0, description="A statement that is a clue, or that the rules alone entail.")
    repeated: _Reward = Field(
        default=0.0, description="A statement that the completion has asserted before, true or not."
    )
    open: _Reward = Field(default=-1.0, description="A statement that the clues neither entail nor contradict.")
    contradicted: _Reward = Field(default=-1.0, description="A statement that the clues contradict.")
    right: _Reward = Field(default=1.0, description="A right answer.")
    wrong: _Reward = Field(
        default=-1.0,
        description="A wrong answer. Set it to null if an answer that repeats a false statement should not be "
        "penalized again.",
    )
    until_first_false: bool = Field(
        default=False,
        description="Ignore all steps after the first statement that is open or contradicted: they may follow from it "
        "without a further error, and only that statement is to blame.",
    )

    def of(self, verdicts: Sequence[str]) -> list[float | None]:
        """Returns the rewards of the S steps of a completion, by their verdicts in order; None for an ignored step."""
        rewards = [getattr(self, verdict) for verdict in verdicts]
        if not self.until_first_false:
            return rewards
        first_false = next((i for i, verdict in enumerate(verdicts) if verdict in _NOT_ENTAILED), len(verdicts))
        return [reward if i <= first_false else None for i, reward in enumerate(rewards)]


def step_advantages(groups: Sequence[Sequence[Rewards]], config: AdvantageConfig) -> list[list[Rewards]]:
    """Returns the advantage of every step: its reward minus a baseline of its group, divided by the scale.

    Args:
        groups: P lists of G arrays [S] with the rewards of a completion's steps; S may differ and be 0. The reward of a
            step that is ignored is NaN.
        config: Baseline and scale. Deviations are those of the rewards of all steps of the group, or of the batch.

    Returns:
        Arrays of the same shapes. An advantage is 0 if the step is ignored, or if there is a baseline and all step
        rewards of the group are equal.
    """
    counted = [[rewards_S[~np.isnan(rewards_S)] for rewards_S in group] for group in groups]
    batch = [rewards_S for group in counted for rewards_S in group]
    advantages: list[list[Rewards]] = []
    for group, counted_of_group in zip(groups, counted, strict=True):
        group_advantages = [np.zeros_like(rewards_S) for rewards_S in group]
        for rewards_S, advantages_S, counted_S in zip(
            group, group_advantages, _in_group(counted_of_group, batch, config), strict=True
        ):
            advantages_S[~np.isnan(rewards_S)] = counted_S
        advantages.append(group_advantages)
    return advantages


def token_advantages(outcome: float, ends: Sequence[int], advantages: Rewards, tokens: int, discount: float) -> Rewards:
    """Returns the advantage of each token of a completion: [T].

    Args:
        outcome: Advantage of the whole completion.
        ends: [S] number of tokens up to the end of each step, ascending.
        advantages: [S] advantage of each step.
        tokens: T.
        discount: Factor of a step's advantage for every step between it and the token. With 1, the advantages of all
            steps that end at or after a token are added to `outcome`; with 0, only that of the token's own step. Steps
            that end at the same token count as one.
    """
    per_token_T = np.full(tokens, outcome, dtype=np.float64)
    following = 0.0
    for i in range(len(ends) - 1, -1, -1):
        shares_end = i + 1 < len(ends) and ends[i + 1] == ends[i]
        following = advantages[i] + (1.0 if shares_end else discount) * following
        per_token_T[ends[i - 1] if i else 0 : ends[i]] += following
    return per_token_T


def _in_group(group: Sequence[Rewards], batch: Sequence[Rewards], config: AdvantageConfig) -> list[Rewards]:
    """Returns the advantages of the steps of one group; `group` and `batch` hold no rewards of ignored steps."""
    pooled = np.concatenate([np.zeros(0), *group])
    if is_uniform(pooled, config):
        return [np.zeros_like(rewards_S) for rewards_S in group]
    scale = divisor(pooled, batch, config)
    return [centred_S / scale for centred_S in _centred(group, pooled, config)]


def _centred(group: Sequence[Rewards], pooled: Rewards, config: AdvantageConfig) -> list[Rewards]:
    """Returns rewards minus their baseline: the mean over all steps, or over the steps of the same number.

    Ignored steps are not in `group`, so they have no number.
    """
    match config.baseline:
        case "none":
            return list(group)
        case "batch_mean":
            raise AssertionError("AdvantageConfig refuses it for steps")
        case "group_mean" | "leave_one_out":
            pass
    if config.step_baseline == "all_steps":
        return [(rewards_S - pooled.mean()) * leave_one_out_factor(pooled.size, config) for rewards_S in group]
    centred = [np.zeros_like(rewards_S) for rewards_S in group]
    for number in range(max(len(rewards_S) for rewards_S in group)):
        with_step = [index for index, rewards_S in enumerate(group) if len(rewards_S) > number]
        rewards = np.array([group[index][number] for index in with_step])
        if is_uniform(rewards, config):
            continue  # their mean may differ from them by rounding
        factor = leave_one_out_factor(len(with_step), config)
        for index, centred_step in zip(with_step, (rewards - rewards.mean()) * factor, strict=True):
            centred[index][number] = centred_step
    return centred
