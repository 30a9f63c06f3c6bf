"""What GRPO adds in the recipe `deduce`, by supervision, over fresh seeds: `python -m tests.benchmarks.deduce --json`.

A seed is a warm start of its own (other puzzles, another model), from which three runs learn with equal samples:

* `process`: the recipe, in which every statement has a reward of its own, beside that of wholly right answers;
* `outcome`: the same reward for all tokens of a completion: the share of right answers, and whether all are right;
* `rejection`: cross-entropy on the completions whose answers are all right (rejection-sampled fine-tuning).

The measurement is the recipe's own: the warm-started model before and the promoted one after, on test puzzles that no
choice looked at. The seeds of the published table, 701 to 705, were used for nothing else. The first arm of `--arms`
makes the warm start of the others; the same seed makes the same one on machines with the same instructions.

`--transfer` also measures the promoted model of `process` on boards that it was not trained on: one suspect more, one
room more, and zebra puzzles. `--join FILE...` adds the rows of documents that earlier calls printed, so that the table
can be measured in several sessions; `docs/data/deduce.json` has those measured so far (`--seeds --join FILE`).
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.config.recipes import load_recipe
from stages.environments.generate import PuzzleConfig, ZebraConfig
from stages.environments.zebra.config import TIERS as ZEBRA_TIERS
from tests.support.bars import Bar, tell
from tests.support.boards import on_boards
from tests.support.seeded import joined, over_seeds, parse, run_store, seeded_parser
from tests.support.whole_runs import figures_of, from_warm_start, train

SEEDS = (701, 702, 703, 704, 705)
ARMS: dict[str, list[str]] = {
    "process": [],
    "outcome": [
        "grade.advantage.level=outcome",
        "grade.advantage.baseline=group_mean",
        "grade.reward.step_rewards={}",
        "grade.reward.accuracy_weight=0.5",
        "grade.reward.exact_weight=0.5",
    ],
    "rejection": [
        "grade.advantage.level=outcome",
        "grade.advantage.baseline=group_mean",
        "grade.reward.step_rewards={}",
        "pack.completions=right",
        "pack.uniform_groups=kept",
        "finetune.loss.kind=cross_entropy",
    ],
}
TRANSFER_PUZZLES = 128
SHOWN = ("sampled_exact", "greedy_exact", "sampled_accuracy", "sampled_contradicted", "sampled_proved")
"""Figures whose gains are compared."""
EXACT_BAR, GAIN_BAR, CONTRADICTED_BAR, WALL_BAR_S = 60.0, 10.0, 1 / 3, 25 * 60


def measure(seed: int, arms: Sequence[str], options: argparse.Namespace, store: str) -> dict[str, dict[str, float]]:
    """Trains one seed in each arm, from the warm start of the first; returns the figures of each arm."""
    rows: dict[str, dict[str, float]] = {}
    name = f"{Path(options.recipe).stem}-{seed}"
    for arm in arms:
        start = [] if arm == arms[0] else from_warm_start(f"{name}-{arms[0]}", store)
        settings = [f"seed={seed}", *options.settings, *start, *ARMS[arm]]
        run = f"{name}-{arm}"
        rows[arm] = figures(train(options.recipe, run, store, settings, options.profile))
    return rows


def transfer(seed: int, options: argparse.Namespace, store: str) -> dict[str, dict[str, float]]:
    """Measures the promoted model of the arm `process` on other boards; returns the figures of each board."""
    recipe = load_recipe(options.recipe, options.settings)
    own = recipe.puzzles.puzzle
    assert isinstance(own, PuzzleConfig)
    boards: dict[str, PuzzleConfig | ZebraConfig] = {
        "its own board": own,
        "one suspect more": own.model_copy(update={"suspects": tuple(size + 1 for size in own.suspects)}),
        "one room more": own.model_copy(update={"rooms": tuple(size + 1 for size in own.rooms)}),
        "zebra, easy": ZEBRA_TIERS["easy"],
    }
    return on_boards(
        f"{Path(options.recipe).stem}-{seed}-process",
        boards,
        store,
        options.profile,
        seed=seed,
        puzzles=TRANSFER_PUZZLES,
        max_tokens=2 * recipe.final.sampled.max_tokens,
    )


def figures(document: dict[str, Any]) -> dict[str, float]:
    """The figures of one run: percentages, statements an answer, and its wall time in seconds if it ran in one go."""
    row = figures_of(document) | {"promoted": document["promoted"]["iteration"]}
    if document["resumed"]:
        del row["wall_s"]
    for when in ("before", "after"):
        for mode in ("sampled", "greedy"):
            for verdict in ("proved", "contradicted"):
                row[f"{mode}_{verdict}_{when}"] = document["test"][when][mode]["deductions"][verdict]
        row[f"tokens_{when}"] = document["test"][when]["sampled"]["completion_tokens_mean"]
    return row


def gains(rows: Sequence[dict[str, float]], key: str) -> list[float]:
    """What each run gained in a figure."""
    return [row[f"{key}_after"] - row[f"{key}_before"] for row in rows]


def gains_over_seeds(seeds: dict[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Returns what each arm gained in each figure, and how much more the first arm did than each other one."""
    rows: list[dict[str, dict[str, float]]] = []
    for arms in seeds.values():
        gained = {arm: {key: gains([row], key)[0] for key in SHOWN} for arm, row in arms.items()}
        first, *others = gained
        more = {f"{first} minus {arm}": {key: gained[first][key] - gained[arm][key] for key in SHOWN} for arm in others}
        rows.append(gained | more)
    return over_seeds(rows)


def bars(rows: dict[str, dict[str, dict[str, float]]]) -> list[Bar]:
    """The bars of the recipe, on the arm `process`."""
    process = [arms["process"] for arms in rows.values() if "process" in arms]
    if not process:
        return []
    sampled, greedy = gains(process, "sampled_exact"), gains(process, "greedy_exact")
    fewer = [1 - row["sampled_contradicted_after"] / row["sampled_contradicted_before"] for row in process]
    after = statistics.mean(row["greedy_exact_after"] for row in process)
    seconds = [row["wall_s"] for row in process if "wall_s" in row]
    held = [
        Bar.at_least("all right, greedy, after, mean, %", after, EXACT_BAR),
        Bar.at_least("gain of all right, sampled, mean, points", statistics.mean(sampled), GAIN_BAR),
        Bar.at_least("gain of all right, sampled, least of the seeds, points", min(sampled), 0.0),
        Bar.at_least("gain of all right, greedy, mean, points", statistics.mean(greedy), 0.0),
        Bar.at_least(
            "contradicted statements an answer, share that went, mean", statistics.mean(fewer), CONTRADICTED_BAR
        ),
    ]
    if seconds:
        held.append(Bar.at_most("seconds of a whole run, longest", max(seconds), WALL_BAR_S))
    return held


def main() -> None:
    parser = seeded_parser(__doc__, SEEDS)
    parser.add_argument("--recipe", default="deduce")
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS))
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--transfer", action="store_true", help="also measure the model of `process` on other boards")
    options = parse(parser)
    if options.transfer and "process" not in options.arms:
        parser.error("--transfer measures the model of the arm `process`: add it to --arms")
    with run_store(options) as store:
        rows = {seed: measure(seed, options.arms, options, store) for seed in options.seeds}
        boards = {seed: transfer(seed, options, store) for seed in options.seeds} if options.transfer else {}
    document = joined(options.join, {"seeds": rows, "transfer": boards})
    document["gains"] = gains_over_seeds(document["seeds"])
    tell(document, bars(document["seeds"]), as_json=options.json)


if __name__ == "__main__":
    main()
