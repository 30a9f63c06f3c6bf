"""When a completion is given up, against numbers worked by hand."""

import math

import pytest

from stages.sampling.early_stop import EarlyStop


def hopeless_at(logprobs: list[float], alpha: float, threshold: float) -> int | None:
    """Index of the first token that ends a completion."""
    rule = EarlyStop(alpha, threshold)
    return next((index for index, logprob in enumerate(logprobs) if rule.ends_with(logprob)), None)


def test_a_constant_stream_stops_where_the_geometric_series_says() -> None:
    """After n tokens of -4 the mean is -4 (1 - 0.992^n): below -3 once 0.992^n < 1/4, so n > ln 4 / -ln 0.992."""
    assert math.log(4) / -math.log(0.992) == pytest.approx(172.59, abs=0.01)
    assert hopeless_at([-4.0] * 500, 0.992, -3.0) == 172  # the 173rd token
    assert hopeless_at([-4.0] * 172, 0.992, -3.0) is None
    assert hopeless_at([-3.0] * 5000, 0.992, -3.0) is None, "the mean comes near -3 but never below"


def test_the_mean_of_three_tokens_by_hand() -> None:
    """With alpha 1/2: -2 -> -1; -6 -> -3.5; 0 -> -1.75."""
    rule, means = EarlyStop(0.5, -3.0), list[float]()
    for logprob in (-2.0, -6.0, 0.0):
        rule.ends_with(logprob)
        means.append(rule.mean)
    assert means == [-1.0, -3.5, -1.75]
    assert hopeless_at([-2.0, -6.0, 0.0], 0.5, -3.4) == 1
    assert hopeless_at([-2.0, -6.0, 0.0], 0.5, -3.5) is None, "below, not at"
