"""How well the fits of a study recover known curves, how often the alarm is false, and how well prose is read.

python -m tests.benchmarks.study [--draws N] [--runs N] [--val PATH] [--json]

Curves follow the published power laws from iteration 1 to the published checkpoints (98 and 168). An iteration has 128
answers, 64 puzzles x 2 samples; each of an answer's letters is right or wrong by itself. `letters` 7 is the number of
questions of a puzzle; 1 is the harder case in which an answer is right or wrong as a whole.
"""

from pathlib import Path
from typing import Any

import numpy as np

from stages.promotion.reward_alarm import RewardAlarm
from stages.statistics.fits import fit_frontier, power_law_slopes
from tests.support.alarm_curves import alarm_delays, false_alarms
from tests.support.bars import Bar, parser_of, tell
from tests.support.prose_labels import VAL, measure_reader
from tests.support.published_study import PUBLISHED_CURVES, PUBLISHED_MODELS, draw_power_laws

WITHIN = 0.03
LETTERS = (7, 1)
ALARM_LENGTHS = (98, 600)


def measure_slopes(draws: int) -> list[dict[str, Any]]:
    """By published curve and number of letters: the share of slopes within .03 of the true one, mean and deviation."""
    rows: list[dict[str, Any]] = []
    for name, (slope, start, last) in PUBLISHED_CURVES.items():
        for letters in LETTERS:
            iterations, curves = draw_power_laws(draws, slope, start, last, letters=letters, seed=0)
            slopes, _ = power_law_slopes(iterations, curves)
            rows.append(
                {
                    "curve": name,
                    "slope": slope,
                    "letters": letters,
                    "within": float((np.abs(slopes - slope) <= WITHIN).mean()),
                    "mean": float(np.nanmean(slopes)),
                    "deviation": float(np.nanstd(slopes)),
                }
            )
    return rows


def measure_frontier() -> dict[str, float]:
    """The line through the published frontier, in percent."""
    line = fit_frontier([model.cost for model in PUBLISHED_MODELS], [model.accuracy for model in PUBLISHED_MODELS])
    assert line is not None
    return vars(line)


def measure_alarm(runs: int) -> dict[str, Any]:
    """Shares of runs with a false alarm, and the delay of true ones, for the default rule."""
    rule = RewardAlarm()
    return {
        "rule": rule.model_dump(),
        "false": [
            {"iterations": length, "reward": reward, "share": false_alarms(runs, length, rule, rises=rises, seed=1)}
            for length in ALARM_LENGTHS
            for reward, rises in (("rises", True), ("level", False))
        ],
        "true": [{"fall": fall, **alarm_delays(runs, fall, rule, seed=2)} for fall in (0.05, 0.1)],
    }


def bars(document: dict[str, Any]) -> list[Bar]:
    """What was promised beside what was measured."""
    line = document["frontier"]
    rows = [
        Bar("frontier, intercept", line["intercept"], "70.86 within 0.01", abs(line["intercept"] - 70.86) <= 0.01),
        Bar("frontier, slope", line["slope"], "5.40 within 0.01", abs(line["slope"] - 5.40) <= 0.01),
    ]
    for row in document["slopes"]:
        if row["letters"] == LETTERS[0]:
            rows.append(Bar.at_least(f"slopes of {row['curve']} within {WITHIN}, share", row["within"], 0.95))
    for row in document["alarm"]["false"]:
        if row["iterations"] == ALARM_LENGTHS[0]:
            rows.append(Bar.at_most(f"false alarms, reward {row['reward']}, share", row["share"], 0.05))
    if reader := document["reader"]:
        rows.append(Bar.at_least("statements labelled by hand", reader["statements"], 100))
        rows.append(Bar.at_least("precision of the reader on prose", reader["precision"], 0.95))
        rows.append(Bar.at_least("recall of the reader on prose", reader["recall"], 0.5))
    return rows


def main() -> None:
    """Measures and prints."""
    parser = parser_of(__doc__)
    parser.add_argument("--draws", type=int, default=2000, help="synthetic curves of each kind")
    parser.add_argument("--runs", type=int, default=1000, help="simulated runs of each kind")
    parser.add_argument("--val", type=Path, default=VAL, help="the published validation puzzles")
    options = parser.parse_args()
    present = options.val.exists()
    document: dict[str, Any] = {
        "draws": options.draws,
        "runs": options.runs,
        "frontier": measure_frontier(),
        "slopes": measure_slopes(options.draws),
        "alarm": measure_alarm(options.runs),
        "reader": measure_reader(options.val) if present else None,
        "reader_skipped": "" if present else f"{options.val} is not on this machine",
    }
    tell(document, bars(document), as_json=options.json)


if __name__ == "__main__":
    main()
