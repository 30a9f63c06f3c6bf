"""Surprise of a completion: mean negative log-probability up to its last answer (OpenPipe/rl-experiments)."""

from bisect import bisect_left
from collections.abc import Sequence


def tokens_until(ends: Sequence[int], characters: int) -> int:
    """Returns the number of leading tokens whose text covers `characters` characters; all of them if it is shorter.

    Args:
        ends: Number of characters up to the end of each token, ascending.
        characters: Number of characters to cover.
    """
    return min(len(ends), bisect_left(ends, characters) + 1) if characters else 0


def surprise(logprobs: Sequence[float], tokens: int) -> float:
    """Returns the mean negative log-probability, in nats, of the first `tokens` tokens; 0 if `tokens` is 0."""
    return -sum(logprobs[:tokens]) / tokens if tokens else 0.0
