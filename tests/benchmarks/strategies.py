"""Accuracy and tokens of strategies at test time: `python -m tests.benchmarks.strategies --json`.

The control of the recipe `answers_only`: how much of GRPO's gain does voting over 16 samples of the warm-started model
give, without training? Each seed has other puzzles and another model, which learns by the warm start only.

`--strategy` adds strategies that ask again, such as `think_twice` or `budget_forcing:waits=1`.
"""

import argparse
import statistics
from typing import Any

from artifacts.reading import Artifact
from artifacts.store.store import Store
from flows.config.recipes import load_recipe
from stages.statistics.records import ReportFigures, StrategyFigures
from tests.support.bars import Bar, tell
from tests.support.seeded import joined, parse, run_store, seeded_parser
from tests.support.whole_runs import deerstalker, train

SEEDS = (601, 602, 603, 604, 605)
GRPO_GAIN = 14.1
"""Mean gain in sampled accuracy of `answers_only` over these seeds, points (README)."""
LEAST_GAIN_BAR = 5.0
HALF_WIDTH = 1.96
"""Half width of a 95% interval in standard errors."""


def percent(figures: StrategyFigures) -> dict[str, float]:
    """Accuracy and all answers right in percent, and tokens a puzzle."""
    shares = {"accuracy": figures.accuracy, "exact": figures.exact}
    return {
        **{
            f"{name}{end}": 100 * getattr(value, bound)
            for name, value in shares.items()
            for end, bound in (("", "mean"), ("_low", "low"), ("_high", "high"))
        },
        "tokens": figures.tokens.mean,
    }


def measured(checkpoint: str, puzzles: str, options: argparse.Namespace, store: str, settings: list[str]) -> Artifact:
    """The report of a checkpoint."""
    extra = [word for text in options.strategy for word in ("--strategy", text)]
    words = ["--checkpoint", checkpoint, "--puzzles", puzzles, "--store", store, "--samples", str(options.samples)]
    document = deerstalker("evaluate", *words, "--profile", options.profile, *settings, *extra)
    opened = Store.open(store, writable=False)
    return Artifact.at(opened, document["report"].removeprefix(f"{opened.url}/"))


def row_of(report: Artifact) -> dict[str, Any]:
    """The figures of a report: its strategies by name, and the greedy answers."""
    figures = ReportFigures.of(report.manifest.facts, report.key)
    return {
        "strategies": {name: percent(item) for name, item in figures.strategies.items()},
        "pass_at": {k: 100 * item.pass_at.mean for k, item in figures.reliability.items()},
        "greedy": greedy_of(figures),
    }


def greedy_of(figures: ReportFigures) -> dict[str, float]:
    """Accuracy of the most likely answers, its standard error and all answers right, in percent."""
    greedy = figures.greedy
    assert greedy is not None  # the command takes them by default
    width = greedy.accuracy.high - greedy.accuracy.low
    return {
        "accuracy": 100 * greedy.accuracy.mean,
        "standard_error": 100 * width / 2 / HALF_WIDTH,
        "exact": 100 * greedy.exact.mean,
    }


def warm_started(seed: int, options: argparse.Namespace, store: str) -> dict[str, Any]:
    """The figures of a model after the warm start with one seed."""
    run, changes = f"strategies-{seed}", [f"seed={seed}", "iterations=0", *options.settings]
    train(options.recipe, run, store, changes, options.profile)
    final = load_recipe(options.recipe, changes).final
    settings = ["--count", str(final.puzzles), "--max-tokens", str(final.sampled.max_tokens)]
    return row_of(measured(f"{run}@0", f"{run}:test", options, store, settings))


def gain(row: dict[str, Any], strategy: str, figure: str = "accuracy") -> float:
    """Points by which a strategy is better than one sample."""
    return row["strategies"][strategy][figure] - row["strategies"]["single"][figure]


def control(rows: list[dict[str, Any]], grpo_gain: float) -> dict[str, Any]:
    """Mean gains over one sample without training, and the gain by voting as a share of GRPO's."""
    names = list(rows[0]["strategies"])
    gains = {name: statistics.mean(gain(row, name) for row in rows) for name in names}
    return {
        "gains": gains,
        "exact_gains": {name: statistics.mean(gain(row, name, "exact") for row in rows) for name in names},
        "grpo_gain": grpo_gain,
        "share_of_grpo_gain": gains["majority:letters"] / grpo_gain,
    }


def bars_of(rows: list[dict[str, Any]]) -> list[Bar]:
    """Voting by question beats one sample and reaches greedy answers; whole answers are all right more often."""
    voted = [row["strategies"]["majority:letters"] for row in rows]
    reached = sum(
        vote["accuracy"] >= row["greedy"]["accuracy"] - row["greedy"]["standard_error"]
        for vote, row in zip(voted, rows, strict=True)
    )
    whole = statistics.mean(
        row["strategies"]["majority"]["exact"] - vote["exact"] for vote, row in zip(voted, rows, strict=True)
    )
    least = min(gain(row, "majority:letters") for row in rows)
    return [
        Bar.at_least("majority by question minus one sample, least of all, points", least, LEAST_GAIN_BAR),
        Bar.at_least("cases in which it reaches greedy accuracy minus a standard error", reached, len(rows)),
        Bar.at_least("all right: majority of whole answers minus by question, mean, points", whole, 0.0),
    ]


def main() -> None:
    parser = seeded_parser(__doc__, SEEDS)
    parser.add_argument("--recipe", default="answers_only")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--strategy", action="append", default=[], help="a strategy that asks again; may be repeated")
    parser.add_argument("--grpo-gain", type=float, default=GRPO_GAIN, help="gain of training to compare with, points")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    options = parse(parser)
    with run_store(options) as store:
        by_seed = {seed: warm_started(seed, options, store) for seed in options.seeds}
    document = joined(options.join, {"samples": options.samples, "seeds": by_seed})
    rows = list(document["seeds"].values())
    tell(document | {"control": control(rows, options.grpo_gain)}, bars_of(rows), as_json=options.json)


if __name__ == "__main__":
    main()
