"""How far noise moves the gate of promotion, and how often intervals hold: `python -m tests.benchmarks.gate [--json]`.

Simulated runs of 64 puzzles x 4 samples, the chance of each puzzle uniform. The policy stays level for 98 iterations
(which rule rolls back by chance?) or falls once (how many iterations later is that noticed?). The coverage of 95%
intervals is exact for proportions, and simulated for means of four samples a puzzle, whose chances follow a beta
distribution with an intraclass correlation of 0.3.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.promotion.gate import RollbackConfig
from stages.statistics.estimates import Interval, estimate, estimate_difference
from tests.support.bars import Bar, parser_of, tell
from tests.support.noisy_curves import draw_curves, first_rollbacks, look, scores_and_noise

CANDIDATES = 98
DROPS = ((0.05, 10), (0.05, 49), (0.1, 10), (0.1, 49))
SIZES, CHANCES = (8, 24, 64, 512), (0.02, 0.3, 0.7)


def rollbacks(shares_RTP: NDArray[np.float64], rule: RollbackConfig) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rollbacks of each run and the candidate of the first (-1: none), both [runs].

    A fallen stretch is forgotten once the run went back (`stages.promotion.gate`).
    """
    first_R = first_rollbacks(shares_RTP, rule)
    number_R = np.zeros(len(first_R), int)
    for run in np.flatnonzero(first_R >= 0):
        scores_1T, noise_1T = scores_and_noise(shares_RTP[run : run + 1])
        curve: list[int] = []
        for candidate in range(shares_RTP.shape[1]):
            curve.append(candidate)
            falls = look(scores_1T[:, curve], noise_1T[:, curve], rule, shares_RTP.shape[2])
            if len(curve) > 1 and falls.certain[0]:
                number_R[run] += 1
                del curve[-int(falls.since[0]) :]
    return number_R, first_R


def level(runs: int, rule: RollbackConfig, seed: int) -> dict[str, float]:
    """The share of runs that go back although the policy never changes, and how often they do."""
    number_R, _ = rollbacks(draw_curves(runs, CANDIDATES, seed=seed), rule)
    return {"false_alarms": float((number_R > 0).mean()), "rollbacks_a_run": float(number_R.mean())}


def fallen(runs: int, rule: RollbackConfig, drop: float, drop_at: int, seed: int) -> dict[str, float]:
    """Iterations from a fall to the rollback, the first fallen one being 1, of runs without a false alarm."""
    first_R = first_rollbacks(draw_curves(runs, drop_at + 40, drop=drop, drop_at=drop_at, seed=seed), rule)
    delays = first_R[first_R >= drop_at] - drop_at + 1
    return {
        "mean": float(delays.mean()),
        "median": float(np.median(delays)),
        "nine_in_ten": float(np.quantile(delays, 0.9)),
        "false_alarm_before": float(((first_R >= 0) & (first_R < drop_at)).mean()),
        "not_in_40": float((first_R < 0).mean()),
    }


def gain_coverage(runs: int, seed: int) -> float:
    """How often the interval of the newest candidate's gain over the best of 97 holds 0, the true one."""
    shares_RTP = draw_curves(runs, CANDIDATES, seed=seed)
    highest_R = shares_RTP[:, :-1].mean(axis=2).argmax(axis=1)
    gains_RP = shares_RTP[:, -1] - shares_RTP[np.arange(runs), highest_R]
    return _held([estimate_difference(gains.tolist(), CANDIDATES - 1) for gains in gains_RP], 0.0)


def coverage_of_proportions(size: int, chance: float) -> float:
    """Exact coverage, of puzzles that are right or wrong."""
    weights = [math.comb(size, x) * chance**x * (1.0 - chance) ** (size - x) for x in range(size + 1)]
    intervals = [estimate([1.0] * x + [0.0] * (size - x)) for x in range(size + 1)]
    return sum(weight for weight, one in zip(weights, intervals, strict=True) if one.low <= chance <= one.high)


def coverage_of_means(runs: int, size: int, chance: float, correlation: float, seed: int) -> float:
    """Simulated coverage, of means of four samples a puzzle."""
    rng, strength = np.random.default_rng(seed), 1.0 / correlation - 1.0
    rows_RP = rng.binomial(4, rng.beta(chance * strength, (1.0 - chance) * strength, (runs, size))) / 4.0
    return _held([estimate(values.tolist()) for values in rows_RP], chance)


def _held(intervals: list[Interval], truth: float) -> float:
    return float(np.mean([interval.low <= truth <= interval.high for interval in intervals]))


def measure(runs: int, seed: int) -> dict[str, Any]:
    """All tables; shares of 1, delays in iterations."""
    rule = RollbackConfig()
    document: dict[str, Any] = {
        "runs": runs,
        "rule": rule.model_dump(),
        "level": level(runs, rule, seed),
        "fallen": [
            {"drop": drop, "after": at, **fallen(runs // 2, rule, drop, at, seed + 1)} for drop, at in DROPS
        ],
        "gain_coverage": gain_coverage(runs, seed),
        "proportions": [
            {"puzzles": n, "p": p, "coverage": coverage_of_proportions(n, p)} for n in SIZES for p in CHANCES
        ],
        "means": [
            {"puzzles": n, "p": p, "coverage": coverage_of_means(2 * runs, n, p, 0.3, seed)}
            for n in SIZES for p in CHANCES
        ],
    }  # fmt: skip
    return document


def bars(document: dict[str, Any]) -> list[Bar]:
    """What was promised, what was measured, and whether it is met; `value` and `bar` in the unit of the name."""
    alarms = document["level"]["false_alarms"]
    rows = [Bar("level runs that go back", alarms, "< 0.05", alarms < 0.05)]
    gain = document["gain_coverage"]
    rows.append(Bar("gain intervals that hold 0", gain, ">= 0.95", gain >= 0.95))
    for kind in ("proportions", "means"):
        for row in document[kind]:
            name = f"coverage of {kind}, {row['puzzles']} puzzles, p = {row['p']}"
            met = abs(row["coverage"] - 0.95) <= 0.015
            within = "0.935 to 0.965"
            if kind == "proportions" and not attainable(row["puzzles"], row["p"]):
                within += ", which no set of neighbouring counts reaches"
            rows.append(Bar(name, row["coverage"], within, met))
    return rows


def attainable(size: int, chance: float) -> bool:
    """Whether any set of neighbouring counts has a probability of 93.5 to 96.5%, as an interval's coverage would."""
    weights = [math.comb(size, x) * chance**x * (1.0 - chance) ** (size - x) for x in range(size + 1)]
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    between = np.subtract.outer(sums, sums)
    return bool(((between >= 0.935) & (between <= 0.965)).any())


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="simulated runs of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    document = measure(options.runs, options.seed)
    tell(document, bars(document), as_json=options.json)


if __name__ == "__main__":
    main()
