"""Learning curves of a policy that stays level, or falls once, and the rollbacks that they cause."""

import numpy as np
from numpy.typing import NDArray

from stages.promotion.fall import Falls, find_falls
from stages.promotion.gate import RollbackConfig
from stages.statistics.estimates import variance_of_mean

PUZZLES, SAMPLES = 64, 4


def draw_curves(
    runs: int, candidates: int, *, puzzles: int = PUZZLES, drop: float = 0.0, drop_at: int = 0, seed: int = 0
) -> NDArray[np.float64]:
    """Returns shares of right samples, [runs, candidates, puzzles]; the chance of each puzzle is drawn uniformly.

    Args:
        drop: How much lower the mean chance is from the candidate `drop_at` on, at most 0.5.
    """
    rng = np.random.default_rng(seed)
    chances_RTP = np.repeat(rng.random((runs, 1, puzzles)), candidates, axis=1)
    chances_RTP[:, drop_at:] *= 1.0 - drop / 0.5
    return rng.binomial(SAMPLES, chances_RTP) / SAMPLES


def scores_and_noise(shares_RTP: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the scores of curves and their variances as in `stages.promotion.gate`, both [runs, candidates]."""
    noise_RT = np.full(shares_RTP.shape[:2], np.nan)
    noise_RT[:, 1:] = variance_of_mean(np.diff(shares_RTP, axis=1)) / 2.0
    return shares_RTP.mean(axis=2), noise_RT


def look(
    scores_RT: NDArray[np.float64], noise_RT: NDArray[np.float64], rule: RollbackConfig, puzzles: int = PUZZLES
) -> Falls:
    """Returns the falls that the rule finds in curves after their newest candidate."""
    return find_falls(scores_RT, noise_RT, puzzles, rule.drop_se, rule.patience)


def first_rollbacks(shares_RTP: NDArray[np.float64], rule: RollbackConfig) -> NDArray[np.int64]:
    """Returns the number (from 0) of the candidate after which a run first rolls back, -1 if it never does: [runs]."""
    scores_RT, noise_RT = scores_and_noise(shares_RTP)
    first_R = np.full(len(scores_RT), -1)
    for count in range(2, scores_RT.shape[1] + 1):
        falls = look(scores_RT[:, :count], noise_RT[:, :count], rule, shares_RTP.shape[2])
        first_R[(first_R < 0) & falls.certain] = count - 1
    return first_R
