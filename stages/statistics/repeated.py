"""Chances that all or any of several answers to a puzzle are right, from the number of right samples."""

import math

import numpy as np
from numpy.typing import NDArray


def chance_all_right(right_P: NDArray[np.int64], samples: int, k: int) -> NDArray[np.float64]:
    """Returns the chance that k samples, drawn without replacement, are all right, [P].

    It is an unbiased estimate of the chance that k new answers are all right: C(c, k) / C(n, k) for c of n right.

    Args:
        right_P: Number of right samples of each puzzle, [P].
        samples: Number of samples of each puzzle.
        k: Number of samples that are drawn, 1 to `samples`.
    """
    chances = np.array([math.comb(right, k) / math.comb(samples, k) for right in range(samples + 1)])
    return chances[right_P]


def chance_any_right(right_P: NDArray[np.int64], samples: int, k: int) -> NDArray[np.float64]:
    """Returns the chance that at least one of k samples is right, [P]: pass@k (Chen et al., arXiv 2107.03374).

    Args:
        right_P: Number of right samples of each puzzle, [P].
        samples: Number of samples of each puzzle.
        k: Number of samples that are drawn, 1 to `samples`.
    """
    return 1.0 - chance_all_right(samples - right_P, samples, k)
