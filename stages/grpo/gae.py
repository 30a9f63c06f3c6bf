"""Generalised advantage estimation (GAE, arXiv 1506.02438): advantages of tokens from the values of a critic.

The value V_t is the expected reward before token t, and the value after the last token is 0. Nothing is discounted
(gamma 1). With delta_t = r_t + V_{t+1} - V_t, the advantage is A_t = sum over k of lambda^k delta_{t+k}, and the target
of the critic is A_t + V_t.

Sources: VC-PPO (arXiv 2503.01491) for one lambda of the advantages and another one of the targets, VAPO (arXiv
2504.05118) for the lambda that depends on the length.

Shapes: T tokens of one completion that the model wrote, N completions.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

POSITIONS = 10
"""Number of equal parts of a completion for which the explained variance is measured."""


def gae(rewards_T: Floats, values_T: Floats, lambda_: float) -> Floats:
    """Returns the advantage of each token: [T].

    Args:
        rewards_T: Reward after each token.
        values_T: Value before each token.
        lambda_: From 0, where each token is judged by the next value only, to 1, where A_t is the return minus V_t.
    """
    if lambda_ == 1.0:  # the sum of all deltas telescopes
        return np.cumsum(rewards_T[::-1])[::-1] - values_T
    deltas = rewards_T + np.append(values_T[1:], 0.0) - values_T
    advantages: list[float] = []
    following = 0.0
    for delta in deltas[::-1].tolist():
        following = delta + lambda_ * following
        advantages.append(following)
    return np.array(advantages[::-1], dtype=np.float64)


def value_targets(rewards_T: Floats, values_T: Floats, lambda_: float) -> Floats:
    """Returns the targets of the critic before each token: [T]. With lambda 1 they are the returns."""
    return gae(rewards_T, values_T, lambda_) + values_T


def lambda_of_length(alpha: float, tokens: int) -> float:
    """Returns VAPO's lambda, 1 - 1 / (alpha tokens), for a completion; 0 if that would be negative."""
    return max(0.0, 1.0 - 1.0 / (alpha * tokens)) if tokens else 0.0


def last_token_rewards(reward: float, tokens: int) -> Floats:
    """Returns the reward after each token of a completion, [T]: all of it after the last token."""
    rewards_T = np.zeros(tokens)
    rewards_T[-1:] = reward
    return rewards_T


def normalised(
    advantages: Sequence[Floats], groups: Sequence[int], over: Literal["none", "batch", "group"], epsilon: float = 1e-8
) -> list[Floats]:
    """Returns advantages minus their mean, divided by their population standard deviation.

    Args:
        advantages: N arrays [T]; T differs.
        groups: [N] group of each completion.
        over: Tokens over which mean and deviation are taken: those of the batch, or of the completion's group; `none`
            returns the advantages themselves.
        epsilon: Added to the standard deviation.
    """
    if over == "none":
        return list(advantages)
    result = list(advantages)
    parts = {group if over == "group" else 0 for group in groups}
    for part in parts:
        members = [i for i, group in enumerate(groups) if over == "batch" or group == part]
        pooled = np.concatenate([advantages[i] for i in members])
        mean, deviation = (float(pooled.mean()), float(pooled.std())) if pooled.size else (0.0, 0.0)
        for i in members:
            result[i] = (advantages[i] - mean) / (deviation + epsilon)
    return result


def explained_variance(values: Floats, returns: Floats) -> float | None:
    """Returns 1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for a constant one.

    Args:
        values: [C].
        returns: [C].

    Returns:
        The share, or None if all returns are equal.
    """
    spread = float(returns.var()) if returns.size else 0.0
    return None if spread < 1e-12 else 1.0 - float((returns - values).var()) / spread


def explained_variances(values: Sequence[Floats], returns: Sequence[Floats]) -> dict[str, float | None]:
    """Returns the explained variance of the values of all tokens, of first tokens, of last tokens, and by position.

    Args:
        values: N arrays [T]; T differs and is at least 1.
        returns: N arrays of the same shapes.

    Returns:
        The shares by name: `all`, `first_token`, `last_token`, and `tenth_0` to `tenth_9` for equal parts of
        completions. None as for `explained_variance`.
    """
    shares = {
        "all": _pooled(values, returns, slice(None)),
        "first_token": _pooled(values, returns, slice(0, 1)),
        "last_token": _pooled(values, returns, slice(-1, None)),
    }
    tenths = [np.arange(len(values_T)) * POSITIONS // len(values_T) for values_T in values]
    for part in range(POSITIONS):
        chosen = [tenth_T == part for tenth_T in tenths]
        inside = [values_T[mask] for values_T, mask in zip(values, chosen, strict=True)]
        reached = [returns_T[mask] for returns_T, mask in zip(returns, chosen, strict=True)]
        shares[f"tenth_{part}"] = _pooled(inside, reached, slice(None))
    return shares


def _pooled(values: Sequence[Floats], returns: Sequence[Floats], tokens: slice) -> float | None:
    empty = np.zeros(0)
    return explained_variance(
        np.concatenate([empty, *(values_T[tokens] for values_T in values)]),
        np.concatenate([empty, *(returns_T[tokens] for returns_T in returns)]),
    )
