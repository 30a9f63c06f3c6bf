"""Published figures of OpenPipe's Temporal Clue study, and learning curves like its own."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PublishedModel:
    """A model before training.

    Attributes:
        accuracy: Percent.
        cost: Dollars for an answer, from the token counts and prices of the study's notebook.
    """

    name: str
    accuracy: float
    cost: float


PUBLISHED_MODELS = (
    PublishedModel("Qwen 14B", 28.10, 0.0004194),
    PublishedModel("Qwen 32B", 37.26, 0.00189),
    PublishedModel("Sonnet 3.7", 51.7, 0.016644),
    PublishedModel("R1", 51.6, 0.029131),
    PublishedModel("o3-mini", 55.9, 0.067929),
    PublishedModel("o3-mini high", 56.7, 0.170041),
    PublishedModel("Sonnet 16k", 61.7, 0.221751),
    PublishedModel("Sonnet 64k", 69.5, 0.392469),
    PublishedModel("o1", 54.9, 0.900762),
)
PUBLISHED_CURVES = {"14B": (0.162, 0.283, 98), "32B": (0.114, 0.367, 168)}
"""Slope, accuracy at iteration 1 and published iteration of the study's power laws."""
ANSWERS = 128
"""Answers of an iteration: 64 puzzles, two samples each."""


def draw_power_laws(
    curves: int, slope: float, start: float, last: int, *, letters: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns iterations 1 to `last`, and accuracies of answers with `letters` letters, [curves, last]."""
    iterations = np.arange(1, last + 1)
    chances = start * iterations**slope
    right = np.random.default_rng(seed).binomial(ANSWERS * letters, chances, (curves, last))
    return iterations, right / (ANSWERS * letters)
