"""When a completion is hopeless: the model has been drawing tokens it finds unlikely for so long that it babbles.

The measure is an exponentially weighted mean of the tokens' log-probabilities that starts at 0, so that a short run of
unlikely tokens does no harm; it is the one that the Temporal Clue runs of OpenPipe stopped streams by.
"""

from collections.abc import Sequence


def next_average(average: float, logprob: float, alpha: float) -> float:
    """The running mean after one more token: alpha * average + (1 - alpha) * logprob, in nats; it starts at 0."""
    return alpha * average + (1.0 - alpha) * logprob


def hopeless_at(logprobs: Sequence[float], alpha: float, threshold: float) -> int | None:
    """Index of the first token after which the running mean is below the threshold; None where there is none.

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
