"""How surprising a completion was to the model that wrote it, up to its last answer (OpenPipe/rl-experiments)."""

from bisect import bisect_left
from collections.abc import Callable, Sequence


def tokens_until(decode: Callable[[list[int]], str], token_ids: Sequence[int], characters: int) -> int:
    """The fewest first tokens whose text holds so many characters; all of them where the text is shorter.

    Args:
        decode: Token ids to text; the text of more tokens is not shorter.
    """
    if not characters:
        return 0
    return min(
        len(token_ids),
        bisect_left(range(len(token_ids) + 1), characters, key=lambda count: len(decode(list(token_ids[:count])))),
    )


def surprise(logprobs: Sequence[float], tokens: int) -> float:
    """The mean of the first tokens' negative log-probabilities, nats; 0 where there are none."""
    return -sum(logprobs[:tokens]) / tokens if tokens else 0.0
