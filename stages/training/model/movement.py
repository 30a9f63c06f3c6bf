"""The share of a job's movement of the weights that is lost when they are published in bf16."""

from collections.abc import Mapping

import torch
from torch import Tensor

SAMPLE = 1 << 16
"""Number of weights that are sampled from a matrix; from a larger one, evenly spaced rows of about this total."""


PUBLISHED = "@published"
"""Suffix of the name of rows as an engine computes with them, if that is not their rounding to bf16."""


def sampled_rows(shape: torch.Size) -> Tensor:
    """Returns the rows (int64, ascending) of a weight that are sampled; a vector is sampled whole."""
    rows = shape[0]
    wanted = rows if len(shape) == 1 else min(rows, max(1, SAMPLE // max(1, shape[1:].numel())))
    return torch.arange(wanted) * rows // max(1, wanted)


def movement_lost(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float | None:
    """Returns the share of the movement of the weights that rounding to bf16 lost.

    With weights w before and w' after the job, and r the rounding to bf16, the share is
    1 - sum((r(w') - r(w)) (w' - w)) / sum((w' - w)^2): 0 if all of the movement is published, 1 if none is. To first
    order, log-probabilities change by the product of the movement with the gradient that it follows, so the share is
    also that of the change in log-probability. It is below 0 where rounding catches up with the movement of earlier
    jobs.

    An engine with an adapter rounds A and B instead of the sum W + B A. The movement is then that of B A, and what is
    published of it has a name of its own (`PUBLISHED`).

    Args:
        before: Weights that would be published without the job, in float32, by name.
        after: The same weights after the job.

    Returns:
        The share; None if no weight has moved.
    """
    published, moved = 0.0, 0.0

    def rounded(weights: Mapping[str, Tensor], name: str) -> Tensor:
        return weights.get(name + PUBLISHED, weights[name].bfloat16()).double()

    for name in sorted(before):  # one order, or a job that was resumed would differ in the last digits
        if name.endswith(PUBLISHED):
            continue
        step = (after[name] - before[name]).double()
        published += float(((rounded(after, name) - rounded(before, name)) * step).sum())
        moved += float(step.square().sum())
    return 1.0 - published / moved if moved else None
