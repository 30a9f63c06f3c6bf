"""Surprise of a completion up to its last answer: how improbable it was for its model (OpenPipe/rl-experiments)."""

from bisect import bisect_left
from collections.abc import Sequence


def tokens_until(ends: Sequence[int], characters: int) -> int:
    """Returns the smallest number of first tokens whose text has at least so many characters.

    Args:
        ends: Number of characters up to the end of each token, ascending.
        characters: Number of characters.

    Returns:
        The number of tokens; all of them if their text is shorter.
    """
    return min(len(ends), bisect_left(ends, characters) + 1) if characters else 0


def surprise(logprobs: Sequence[float], tokens: int) -> float:
    """Returns the mean negative log-probability, in nats, of the first `tokens` tokens; 0 if `tokens` is 0."""
    return -sum(logprobs[:tokens]) / tokens if tokens else 0.0
