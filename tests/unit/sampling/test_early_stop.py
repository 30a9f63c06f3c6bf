"""When a completion is given up, against numbers worked by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.sampling.early_stop import hopeless_at, next_average
from stages.sampling.server import EarlyStopWatch

logprob_lists = st.lists(st.floats(-30.0, 0.0), max_size=60)


def test_a_constant_stream_stops_where_the_geometric_series_says() -> None:
    """After n tokens of -4 the mean is -4 (1 - 0.992^n): below -3 once 0.992^n < 1/4, so n > ln 4 / -ln 0.992."""
    assert math.log(4) / -math.log(0.992) == pytest.approx(172.59, abs=0.01)
    assert hopeless_at([-4.0] * 500, 0.992, -3.0) == 172  # the 173rd token
    assert hopeless_at([-4.0] * 172, 0.992, -3.0) is None
    assert hopeless_at([-3.0] * 5000, 0.992, -3.0) is None, "the mean comes near -3 but never below"


def test_the_mean_of_three_tokens_by_hand() -> None:
    """With alpha 1/2: -2 -> -1; -6 -> -3.5; 0 -> -1.75."""
    averages = [0.0]
    for logprob in (-2.0, -6.0, 0.0):
        averages.append(next_average(averages[-1], logprob, 0.5))
    assert averages == [0.0, -1.0, -3.5, -1.75]
    assert hopeless_at([-2.0, -6.0, 0.0], 0.5, -3.4) == 1
    assert hopeless_at([-2.0, -6.0, 0.0], 0.5, -3.5) is None, "below, not at"


@given(logprob_lists, st.floats(0.0, 0.999), st.floats(-10.0, -0.01))
def test_what_was_cut_off_has_no_part_in_the_decision(logprobs: list[float], alpha: float, threshold: float) -> None:
    last = hopeless_at(logprobs, alpha, threshold)
    if last is not None:
        assert hopeless_at(logprobs[: last + 1], alpha, threshold) == last
        assert hopeless_at(logprobs[:last], alpha, threshold) is None


@given(logprob_lists, st.floats(0.0, 0.999), st.floats(-10.0, -0.01), st.integers(1, 4))
def test_the_engine_ends_a_request_with_the_token_that_the_client_cuts_at(
    logprobs: list[float], alpha: float, threshold: float, step: int
) -> None:
    """Also where several tokens come at once: then in the step that holds the token."""
    watch = EarlyStopWatch(lambda tokens, stopped: None, alpha, threshold)
    ended = None
    for start in range(0, len(logprobs), step):
        watch.observe(logprobs[start : start + step])
        if watch.update([0], False) == "early_stop":
            ended = start // step
            break
    last = hopeless_at(logprobs, alpha, threshold)
    assert ended == (None if last is None else last // step)


def test_a_stop_string_that_the_detokenizer_finds_still_counts() -> None:
    assert EarlyStopWatch(lambda tokens, stopped: "END", 0.5, -3.0).update([1], False) == "END"
