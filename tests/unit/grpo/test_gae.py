"""Generalised advantage estimation: numbers worked by hand, and parity with two other forms of the definition."""

import numpy as np
import pytest
from numpy.typing import NDArray

from stages.grpo.gae import (
    explained_variance,
    explained_variances,
    gae,
    lambda_of_length,
    last_token_rewards,
    normalised,
    value_targets,
)

VALUES = np.array([0.2, 0.4, 0.6, 0.8])
WON = last_token_rewards(1.0, 4)


@pytest.mark.parametrize(
    ("lambda_", "advantages"),
    [
        (1.0, [0.8, 0.6, 0.4, 0.2]),
        (0.95, [0.741975, 0.5705, 0.39, 0.2]),
        (0.5, [0.375, 0.35, 0.3, 0.2]),
        (0.0, [0.2, 0.2, 0.2, 0.2]),
    ],
)
def test_advantages_of_a_won_completion(lambda_: float, advantages: list[float]) -> None:
    np.testing.assert_allclose(gae(WON, VALUES, lambda_), advantages)


def test_targets_are_the_return_whatever_lambda_the_advantages_have() -> None:
    """Decoupled: lambda 0.5 for the policy leaves the critic's targets at 1; lambda 0 takes the next value."""
    np.testing.assert_allclose(value_targets(WON, VALUES, 1.0), [1, 1, 1, 1])
    np.testing.assert_allclose(value_targets(WON, VALUES, 0.0), [0.4, 0.6, 0.8, 1.0])
    np.testing.assert_allclose(gae(last_token_rewards(0.0, 4), VALUES, 1.0), -VALUES)


def by_definition(rewards: NDArray[np.float64], values: NDArray[np.float64], lambda_: float) -> NDArray[np.float64]:
    """The exponentially weighted mean of n-step advantages, with the whole weight that is left on the last of them.

    It is the first form of the paper (arXiv 1506.02438, equation 16), not the recursion.
    """
    tokens = len(rewards)
    advantages = np.zeros(tokens)
    for t in range(tokens):
        left = 1.0
        for steps in range(1, tokens - t + 1):
            after = values[t + steps] if t + steps < tokens else 0.0
            estimate = rewards[t : t + steps].sum() + after - values[t]
            weight = left if t + steps == tokens else (1 - lambda_) * lambda_ ** (steps - 1)
            advantages[t] += weight * estimate
            left -= weight
    return advantages


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.95, 0.999, 1.0])
@pytest.mark.parametrize("tokens", [1, 2, 17])
def test_the_recursion_is_the_weighted_mean_of_n_step_estimates(lambda_: float, tokens: int) -> None:
    draw = np.random.default_rng(tokens)
    rewards, values = draw.normal(size=tokens), draw.normal(size=tokens)
    np.testing.assert_allclose(gae(rewards, values, lambda_), by_definition(rewards, values, lambda_), atol=1e-12)


def by_kernel(
    rewards: NDArray[np.float64], values: NDArray[np.float64], own: NDArray[np.bool_], lambda_: float
) -> NDArray[np.float64]:
    """Advantages of the tokens that the model wrote itself, as one product of matrices: K (r + N v - v).

    K holds (gamma lambda)^(j - i), with gamma 1, for own tokens j >= i, and 0 elsewhere; tokens of a tool do not count
    in the distance. N moves a value to the own token before it. There is neither a recursion nor a loop.
    """
    place, both = np.cumsum(own), np.outer(own, own)
    distance = place[None, :] - place[:, None]
    kernel = np.where(both & (distance >= 0), lambda_ ** np.maximum(distance, 0).astype(np.float64), 0.0)
    following = (both & (distance == 1)).astype(np.float64)
    return (kernel @ (rewards + following @ values - values))[own]


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.95, 0.999, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_recursion_is_the_product_with_the_kernel_of_discounts(lambda_: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    tokens = int(draw.integers(1, 200))
    own = draw.random(tokens) < 0.7
    rewards, values = draw.normal(size=tokens), draw.normal(size=tokens)
    expected = by_kernel(rewards, values, own, lambda_)
    np.testing.assert_allclose(gae(rewards[own], values[own], lambda_), expected, rtol=0, atol=1e-10)
    targets = expected + values[own]
    np.testing.assert_allclose(value_targets(rewards[own], values[own], lambda_), targets, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("alpha", "tokens", "lambda_"),
    [
        (0.05, 12, 0.0), (0.05, 32, 0.375), (0.05, 64, 0.6875), (0.05, 200, 0.9),
        (0.2, 12, 0.583333), (0.2, 32, 0.84375), (0.2, 64, 0.921875), (0.2, 200, 0.975),
        (1.0, 12, 0.916667), (1.0, 32, 0.96875), (1.0, 64, 0.984375), (1.0, 200, 0.995),
        (1.5, 12, 0.944444), (1.5, 32, 0.979167), (1.5, 64, 0.989583), (1.5, 200, 0.996667),
        (0.05, 10, 0.0), (0.05, 20, 0.0), (0.05, 40, 0.5), (0.05, 100, 0.8), (0.05, 1000, 0.98), (0.05, 10_000, 0.998),
        (0.5, 4, 0.5), (1.0, 0, 0.0),
    ],
)  # fmt: skip
def test_lambda_depends_on_the_length_and_is_never_negative(alpha: float, tokens: int, lambda_: float) -> None:
    assert lambda_of_length(alpha, tokens) == pytest.approx(lambda_, abs=1e-6)


def test_the_lambda_of_a_length_leaves_the_targets_at_the_return() -> None:
    np.testing.assert_allclose(gae(WON, VALUES, lambda_of_length(0.5, 4)), [0.375, 0.35, 0.3, 0.2])
    np.testing.assert_allclose(value_targets(WON, VALUES, 1.0), [1, 1, 1, 1])


def test_advantages_are_normalised_over_the_tokens_of_the_batch_or_of_a_group_or_not_at_all() -> None:
    advantages = [np.array([1.0, 3.0]), np.array([5.0]), np.array([3.0])]
    assert normalised(advantages, [0, 0, 1], "none")[0] is advantages[0]
    # Mean of 1, 3, 5, 3 is 3; deviation sqrt((4 + 0 + 4 + 0) / 4) = sqrt 2.
    batch = normalised(advantages, [0, 0, 1], "batch", epsilon=0.0)
    np.testing.assert_allclose(np.concatenate(batch), np.array([-2, 0, 2, 0]) / np.sqrt(2))
    # Group 0: mean 3, deviation sqrt(8 / 3). Group 1 has one token, whose advantage becomes 0.
    group = normalised(advantages, [0, 0, 1], "group")
    np.testing.assert_allclose(np.concatenate(group), [*(np.array([-2, 0, 2]) / np.sqrt(8 / 3)), 0.0], atol=1e-7)


def test_explained_variance_by_hand() -> None:
    returns = np.array([0.0, 0.0, 1.0, 1.0])  # variance 1/4
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(4, 0.7), returns) == 0.0
    # Errors -0.5, 0, 0, 0.5: mean 0, variance 1/8.
    assert explained_variance(np.array([0.5, 0.0, 1.0, 0.5]), returns) == pytest.approx(0.5)
    assert explained_variance(np.zeros(3), np.ones(3)) is None


def test_explained_variance_is_told_apart_by_position() -> None:
    """The model knows nothing before the first token and everything before the last one."""
    values = [np.array([0.5, 0.5, 0.0]), np.array([0.5, 1.0])]
    returns = [np.zeros(3), np.ones(2)]
    shares = explained_variances(values, returns)
    assert (shares["first_token"], shares["last_token"]) == (0.0, 1.0)
    assert (shares["tenth_0"], shares["tenth_1"]) == (0.0, None)
    # Of the five returns 0, 0, 0, 1, 1 the variance is 0.24; errors -.5, -.5, 0, .5, 0: mean -0.1, variance 0.14.
    assert shares["all"] == pytest.approx(1 - 0.14 / 0.24)
