"""Surprise of a completion up to its last answer: how improbable it was for its model (OpenPipe/rl-experiments)."""

from bisect import bisect_left
from collections.abc import Callable, Sequence


def tokens_until(decode: Callable[[list[int]], str], token_ids: Sequence[int], characters: int) -> int:
    """Returns the smallest number of first tokens whose text has at least so many characters.

    Args:
        decode: Returns the text of token ids. More tokens must not give a shorter text.
        token_ids: The tokens.
        characters: Number of characters.

    Returns:
        The number of tokens; all of them if their text is shorter.
    """
    if not characters:
        return 0
    return min(
        len(token_ids),
        bisect_left(range(len(token_ids) + 1), characters, key=lambda count: len(decode(list(token_ids[:count])))),
    )


def surprise(logprobs: Sequence[float], tokens: int) -> float:
    """Returns the mean negative log-probability, in nats, of the first `tokens` tokens; 0 if `tokens` is 0."""
    return -sum(logprobs[:tokens]) / tokens if tokens else 0.0
