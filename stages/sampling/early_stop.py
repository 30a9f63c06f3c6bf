"""Detection of hopeless completions, in which the model has drawn tokens that it finds unlikely for a long time.

The measure is an exponentially weighted mean of the tokens' log-probabilities. It starts at 0, so a short run of
unlikely tokens does not end a completion. The Temporal Clue runs of OpenPipe stopped completions by the same measure.
"""

from __future__ import annotations


class EarlyStop:
    """The running mean of one completion, in nats.

    Args:
        alpha: Share of the old mean in the new one, in [0, 1).
        threshold: Mean below which the completion is hopeless, in nats, negative.
    """

    def __init__(self, alpha: float, threshold: float) -> None:
        self._alpha, self._threshold, self.mean = alpha, threshold, 0.0

    def ends_with(self, logprob: float) -> bool:
        """Takes the log-probability of the next token; returns whether the mean is below the threshold after it."""
        self.mean = self._alpha * self.mean + (1.0 - self._alpha) * logprob
        return self.mean < self._threshold
