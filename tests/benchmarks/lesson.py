"""What GRPO adds in the recipe `quickstart`, over fresh seeds: `python -m tests.benchmarks.lesson --json`.

With `--boards`, what the recipe `boards` solves of boards that it was not trained on; see `on_other_boards`.

A seed is a warm start of its own (other puzzles, another model). From it start two runs:

* `grpo`: the recipe;
* `supervised`: the control. The warm start goes on with the same texts for as long as GRPO took, with a rate that
  falls to 0 as that of GRPO does. It needs a solver that writes the proofs, which GRPO does not.

The measurement is the recipe's own: the warm-started model before and the promoted one after, on test puzzles that no
choice looked at. `vote` is the majority vote, letter by letter, over eight samples of the model before GRPO. The seeds
of the published table, 801 to 805, were used for nothing else. `--join FILE...` adds the rows of documents that earlier
calls printed.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from flows.config.recipes import load_recipe
from tests.support.bars import Bar, tell
from tests.support.boards import evaluated
from tests.support.scaled_recipes import as_toml
from tests.support.seeded import joined, over_seeds, parse, run_store, seeded_parser
from tests.support.whole_runs import figures_of, from_warm_start, train, warm_start_of

SEEDS = (801, 802, 803, 804, 805)
BOARD_SEEDS = (841, 842, 843)
UNSEEN = {"3-2-4": (3, 2, 4), "3-4-3": (3, 4, 3), "4-3-4": (4, 3, 4)}
"""Boards (suspects, weapons, rooms) on which `boards` is not trained. The bar is set on the first of them."""
UNSEEN_PUZZLES, UNSEEN_SAMPLES, UNSEEN_SEED, UNSEEN_BAR = 256, 4, 777, 30.0
FURTHER = ("warm_start.schedule=linear", "warm_start.warmup_share=0")
"""Settings by which the control goes on from the warm start."""
SAMPLED_BAR, GREEDY_BAR, AFTER_BAR, CONTRADICTED_BAR, WALL_BAR_S = 20.0, 8.0, 70.0, 1 / 3, 10 * 60


def measure(seed: int, options: argparse.Namespace, store: str) -> dict[str, dict[str, Any]]:
    """Trains one seed by GRPO, and its warm start further in as much time; returns the figures of both, and a curve.

    The curve has the percentages of validation puzzles with all answers right, before GRPO and after each iteration.
    """
    run, settings = f"lesson-{seed}", [f"seed={seed}", *options.settings]
    document = train(options.recipe, run, store, settings, options.profile)
    before, after = (document["test"][when] for when in ("before", "after"))
    grpo_s = sum(sum(point["seconds"].values()) for point in document["iterations"][1:])
    grpo = figures(before, "before") | figures(after, "after") | {"grpo_s": grpo_s}
    if not document["resumed"]:
        grpo["wall_s"] = document["wall_s"]
    warm_s = warm_start_of(run, store).manifest.provenance["seconds"]
    start = load_recipe(options.recipe, settings).warm_start
    assert start is not None
    epochs = max(1, round(grpo_s / warm_s * start.epochs))
    model, _ = from_warm_start(run, store)
    further = [model, "iterations=0", f"warm_start.epochs={epochs}", *FURTHER]
    control = train(options.recipe, f"{run}-supervised", store, [*settings, *further], options.profile)
    steps = {"steps": epochs * start.steps, "warm_start_steps": start.epochs * start.steps}
    curve = {mode: [100 * point[f"{mode}_exact"] for point in document["iterations"]] for mode in ("sampled", "greedy")}
    return {"grpo": grpo, "supervised": figures(control["test"]["before"], "after") | steps, "curve": curve}


def figures(test: dict[str, Any], when: str) -> dict[str, float]:
    """Percentages of puzzles with all answers right, and contradicted statements a completion, on the test puzzles."""
    votes = test["strategies"]["majority:letters"]["exact"]["mean"]
    return {
        f"sampled_{when}": 100 * test["sampled"]["exact"]["mean"],
        f"greedy_{when}": 100 * test["greedy"]["exact"]["mean"],
        f"vote_{when}": 100 * votes,
        f"contradicted_{when}": test["sampled"]["deductions"]["contradicted"],
        f"tokens_{when}": test["sampled"]["completion_tokens_mean"],
    }


def on_other_boards(seed: int, options: argparse.Namespace, store: str) -> dict[str, dict[str, float]]:
    """Trains one seed of `boards`; returns its figures on its own boards and on those that it was not trained on.

    Each is measured before GRPO and after it, on the same puzzles for every seed.
    """
    run = f"boards-{seed}"
    document = train("boards", run, store, [f"seed={seed}", *options.settings], options.profile)
    own = figures_of(document)
    if document["resumed"]:
        del own["wall_s"]
    return {"trained on": own, **{name: _on_board(run, board, options, store) for name, board in UNSEEN.items()}}


def _on_board(run: str, board: tuple[int, int, int], options: argparse.Namespace, store: str) -> dict[str, float]:
    things = dict(zip(("suspects", "weapons", "rooms"), ([number, number] for number in board), strict=True))
    puzzle = load_recipe("quickstart").puzzles.puzzle.model_dump(mode="json", exclude_defaults=True) | things
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / f"{'-'.join(map(str, board))}.toml"
        puzzles = {"train": 0, "val": 0, "test": UNSEEN_PUZZLES, "seed": UNSEEN_SEED, "puzzle": puzzle}
        suite.write_text(f'title = "Another board"\npuzzles = {as_toml(puzzles)}\n')
        for when, checkpoint in (("before", f"{run}@0"), ("after", run)):
            settings = ["--store", store, "--profile", options.profile, "--samples", str(UNSEEN_SAMPLES)]
            measured = evaluated(checkpoint, "--suite", str(suite), *settings)
            figures |= {f"{name}_{when}": value for name, value in measured.items()}
    return figures


def bars_of_boards(rows: list[dict[str, dict[str, float]]]) -> list[Bar]:
    """The bar of `boards`, of each seed."""
    board = next(iter(UNSEEN))
    least = min(row[board]["greedy_exact_after"] for row in rows)
    return [Bar.at_least(f"all right on {board}, greedy, after, least of the seeds, %", least, UNSEEN_BAR)]


def bars(rows: list[dict[str, float]]) -> list[Bar]:
    """The bars of the recipe, on the arm `grpo`."""
    sampled, greedy = ([row[f"{mode}_after"] - row[f"{mode}_before"] for row in rows] for mode in ("sampled", "greedy"))
    fewer = [1 - row["contradicted_after"] / row["contradicted_before"] for row in rows]
    above = [row["sampled_after"] - row["vote_before"] for row in rows]
    seconds = [row["wall_s"] for row in rows if "wall_s" in row]
    held = [
        Bar.at_least("gain of all right, sampled, mean, points", statistics.mean(sampled), SAMPLED_BAR),
        Bar.at_least("gain of all right, sampled, least of the seeds, points", min(sampled), 0.0),
        Bar.at_least("gain of all right, greedy, mean, points", statistics.mean(greedy), GREEDY_BAR),
        Bar.at_least("gain of all right, greedy, least of the seeds, points", min(greedy), 0.0),
        Bar.at_least("all right, greedy, after, mean, %", statistics.mean(r["greedy_after"] for r in rows), AFTER_BAR),
        Bar.at_least("contradicted statements, share that went, mean", statistics.mean(fewer), CONTRADICTED_BAR),
        Bar.at_least("all right, one sample after minus vote of 8 before, mean, points", statistics.mean(above), 0.0),
    ]
    if seconds:
        held.append(Bar.at_most("seconds of a whole run, longest", max(seconds), WALL_BAR_S))
    return held


def main() -> None:
    parser = seeded_parser(__doc__, SEEDS)
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--boards", action="store_true", help="measure the recipe `boards`, not `--recipe`")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    options = parse(parser)
    if options.boards:
        parser.set_defaults(seeds=list(BOARD_SEEDS))
        options = parse(parser)
    with run_store(options) as store:
        seeds = {seed: (on_other_boards if options.boards else measure)(seed, options, store) for seed in options.seeds}
    document = joined(options.join, {"seeds": seeds})
    rows = list(document["seeds"].values())
    if options.boards:
        document["means"], held = over_seeds(rows), bars_of_boards(rows)
    else:
        document["means"] = over_seeds([{arm: row[arm] for arm in ("grpo", "supervised")} for row in rows])
        held = bars([row["grpo"] for row in rows])
    tell(document, held, as_json=options.json)


if __name__ == "__main__":
    main()
