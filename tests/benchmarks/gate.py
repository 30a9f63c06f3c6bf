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
_Z95 = 1.959963984540054


def rollbacks_before(shares_RTP: NDArray[np.float64], rule: RollbackConfig) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rollbacks of each run and the candidate of the first (-1: none) by the rule before, both [runs].

    A candidate counted as degraded when it lay more than `drop_se` standard errors of the paired difference below the
    highest score so far; `patience` such candidates in a row brought the best back.
    """
    runs, candidates, puzzles = shares_RTP.shape
    best_RP = shares_RTP[:, 0].copy()
    row_R, number_R, first_R = np.zeros(runs, int), np.zeros(runs, int), np.full(runs, -1)
    for candidate in range(1, candidates):
        shares_RP = shares_RTP[:, candidate]
        gain_R = (shares_RP - best_RP).mean(axis=1)
        error_R = (shares_RP - best_RP).std(axis=1, ddof=1) / math.sqrt(puzzles)
        row_R = np.where((gain_R < 0) & (gain_R < -rule.drop_se * error_R), row_R + 1, 0)
        back_R = row_R >= rule.patience
        first_R[(first_R < 0) & back_R] = candidate
        number_R += back_R
        row_R[back_R] = 0
        best_RP[gain_R > 0] = shares_RP[gain_R > 0]
    return number_R, first_R


def rollbacks_now(shares_RTP: NDArray[np.float64], rule: RollbackConfig) -> tuple[NDArray[Any], NDArray[Any]]:
    """The same by the rule of `stages.promotion.gate`, which forgets a fallen stretch after it went back."""
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


RULES = {"before": rollbacks_before, "now": rollbacks_now}


def level(runs: int, rule: RollbackConfig, seed: int) -> dict[str, dict[str, float]]:
    """By rule: the share of runs that go back although the policy never changes, and how often they do."""
    shares_RTP = draw_curves(runs, CANDIDATES, seed=seed)
    rows: dict[str, dict[str, float]] = {}
    for name, rollbacks in RULES.items():
        number_R, _ = rollbacks(shares_RTP, rule)
        rows[name] = {"false_alarms": float((number_R > 0).mean()), "rollbacks_a_run": float(number_R.mean())}
    return rows


def fallen(runs: int, rule: RollbackConfig, drop: float, drop_at: int, seed: int) -> dict[str, dict[str, float]]:
    """By rule: iterations from a fall to the rollback, the first fallen one being 1, of runs without a false alarm."""
    shares_RTP = draw_curves(runs, drop_at + 40, drop=drop, drop_at=drop_at, seed=seed)
    rows: dict[str, dict[str, float]] = {}
    for name, first_R in (
        ("before", rollbacks_before(shares_RTP, rule)[1]),
        ("now", first_rollbacks(shares_RTP, rule)),
    ):
        delays = first_R[first_R >= drop_at] - drop_at + 1
        rows[name] = {
            "mean": float(delays.mean()),
            "median": float(np.median(delays)),
            "nine_in_ten": float(np.quantile(delays, 0.9)),
            "false_alarm_before": float(((first_R >= 0) & (first_R < drop_at)).mean()),
            "not_in_40": float((first_R < 0).mean()),
        }
    return rows


def normal(values: NDArray[np.float64]) -> Interval:
    """The interval of before: the normal distribution's, by the variance of the clusters."""
    half = _Z95 * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(float(values.mean()), float(values.mean()) - half, float(values.mean()) + half)


def shares(values: NDArray[np.float64]) -> Interval:
    """The interval of now."""
    return estimate(values.tolist())


INTERVALS = {"before": normal, "now": shares}


def gain_coverage(runs: int, seed: int) -> dict[str, float]:
    """How often the interval of the newest candidate's gain over the best of 97 holds 0, the true one, by method."""
    shares_RTP = draw_curves(runs, CANDIDATES, seed=seed)
    highest_R = shares_RTP[:, :-1].mean(axis=2).argmax(axis=1)
    gains_RP = shares_RTP[:, -1] - shares_RTP[np.arange(runs), highest_R]
    return {
        "before": _held([normal(gains) for gains in gains_RP], 0.0),
        "now": _held([estimate_difference(gains.tolist(), CANDIDATES - 1) for gains in gains_RP], 0.0),
    }


def coverage_of_proportions(size: int, chance: float) -> dict[str, float]:
    """Exact coverage by method, of puzzles that are right or wrong."""
    weights = [math.comb(size, x) * chance**x * (1.0 - chance) ** (size - x) for x in range(size + 1)]
    rows: dict[str, float] = {}
    for name, method in INTERVALS.items():
        intervals = [method(np.repeat([1.0, 0.0], [x, size - x])) for x in range(size + 1)]
        rows[name] = sum(weights[x] for x in range(size + 1) if intervals[x].low <= chance <= intervals[x].high)
    return rows


def coverage_of_means(runs: int, size: int, chance: float, correlation: float, seed: int) -> dict[str, float]:
    """Simulated coverage by method, of means of four samples a puzzle."""
    rng, strength = np.random.default_rng(seed), 1.0 / correlation - 1.0
    rows_RP = rng.binomial(4, rng.beta(chance * strength, (1.0 - chance) * strength, (runs, size))) / 4.0
    return {name: _held([method(values) for values in rows_RP], chance) for name, method in INTERVALS.items()}


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
            {"puzzles": n, "p": p, **coverage_of_proportions(n, p)} for n in SIZES for p in CHANCES
        ],
        "means": [
            {"puzzles": n, "p": p, **coverage_of_means(2 * runs, n, p, 0.3, seed)} for n in SIZES for p in CHANCES
        ],
    }  # fmt: skip
    return document


def bars(document: dict[str, Any]) -> list[Bar]:
    """What was promised, what was measured, and whether it is met; `value` and `bar` in the unit of the name."""
    alarms = document["level"]["now"]["false_alarms"]
    rows = [Bar("level runs that go back", alarms, "< 0.05", alarms < 0.05)]
    gain = document["gain_coverage"]["now"]
    rows.append(Bar("gain intervals that hold 0", gain, ">= 0.95", gain >= 0.95))
    for kind in ("proportions", "means"):
        for row in document[kind]:
            name = f"coverage of {kind}, {row['puzzles']} puzzles, p = {row['p']}"
            met = abs(row["now"] - 0.95) <= 0.015
            within = "0.935 to 0.965"
            if kind == "proportions" and not attainable(row["puzzles"], row["p"]):
                within += ", which no set of neighbouring counts reaches"
            rows.append(Bar(name, row["now"], within, met))
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
