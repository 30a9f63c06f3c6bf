"""Detection of hopeless completions, in which the model has drawn tokens that it finds unlikely for a long time.

The measure is an exponentially weighted mean of the tokens' log-probabilities. It starts at 0, so a short run of
unlikely tokens does not end a completion. The Temporal Clue runs of OpenPipe stopped streams by the same measure.
"""

from collections.abc import Sequence


def next_average(average: float, logprob: float, alpha: float) -> float:
    """Returns the running mean in nats after one more token: alpha * average + (1 - alpha) * logprob."""
    return alpha * average + (1.0 - alpha) * logprob


def hopeless_at(logprobs: Sequence[float], alpha: float, threshold: float) -> int | None:
    """Returns the index of the first token after which the running mean is below the threshold; None if there is none.

    Args:
        logprobs: Log-probabilities of a completion's tokens in order, [T], nats.
        alpha: Share of the old mean in the new one, in [0, 1).
        threshold: In nats, negative.
    """
    average = 0.0
    for index, logprob in enumerate(logprobs):
        average = next_average(average, logprob, alpha)
        if average < threshold:
            return index
    return None
