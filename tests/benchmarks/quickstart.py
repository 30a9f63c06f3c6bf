"""What GRPO alone adds in the `quickstart` recipe, over fresh seeds: `python -m tests.benchmarks.quickstart`.

`--recipe` measures another recipe in the same way; `maths_small` has bars of its own, others have none.

Each seed is a whole `deerstalker train` of its own: other puzzles, another model, other samples. The measurement is the
recipe's own: the warm-started model before, the promoted one after, on test puzzles that no choice looked at.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.support.bars import Bar, add_json_option, tell
from tests.support.whole_runs import train

MODES, MOMENTS = ("sampled", "greedy"), ("before", "after")
SEEDS = (601, 602, 603, 604, 605)
GAIN_BARS = {"quickstart": (14.0, 9.0), "maths_small": (5.0, 0.0)}
"""The mean gain and the least of a recipe's seeds, points: of `quickstart` those that the README states."""


def accuracy(document: dict[str, Any], when: str, mode: str) -> float:
    """Mean accuracy on the test split, in percent."""
    return 100 * document["test"][when][mode]["accuracy"]["mean"]


def measured(options: argparse.Namespace, seed: int, store: str) -> dict[str, Any]:
    """Trains with one seed; returns its figures."""
    run, settings = f"{Path(options.recipe).stem}-seed-{seed}", [f"seed={seed}", *options.settings]
    document = train(options.recipe, run, store, settings)
    figures = {f"{mode}_{when}": accuracy(document, when, mode) for mode in ("sampled", "greedy") for when in MOMENTS}
    exact = {f"exact_{when}": 100 * document["test"][when]["sampled"]["exact"]["mean"] for when in MOMENTS}
    return {
        "seed": seed,
        **figures,
        **exact,
        "gain": figures["sampled_after"] - figures["sampled_before"],
        "greedy_gain": figures["greedy_after"] - figures["greedy_before"],
        "promoted_iteration": document["promoted"]["iteration"],
        "wall_s": document["wall_s"],
        "curve": [100 * point["sampled_accuracy"] for point in document["iterations"]],
    }


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """Prints the table and the five curves."""
    table = Table(title="test puzzles, percent of lettered answers right, before and after GRPO", title_justify="left")
    for name in ("seed", "sampled", "gain", "greedy", "gain", "all right", "promoted", "wall s"):
        table.add_column(name, justify="right")
    for one in rows:
        table.add_row(
            str(one["seed"]), f"{one['sampled_before']:.1f} -> {one['sampled_after']:.1f}", f"{one['gain']:+.1f}",
            f"{one['greedy_before']:.1f} -> {one['greedy_after']:.1f}", f"{one['greedy_gain']:+.1f}",
            f"{one['exact_before']:.1f} -> {one['exact_after']:.1f}", str(one["promoted_iteration"]),
            f"{one['wall_s']:.0f}",
        )  # fmt: skip
    console.print(table)
    for one in rows:
        console.print(f"seed {one['seed']}, held-out curve: " + " ".join(f"{point:.0f}" for point in one["curve"]))
    gains, greedy = [one["gain"] for one in rows], [one["greedy_gain"] for one in rows]
    console.print(
        f"gain in sampled accuracy: mean {statistics.mean(gains):+.1f}, least {min(gains):+.1f}; "
        f"greedy: mean {statistics.mean(greedy):+.1f}, least {min(greedy):+.1f}"
    )


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws the held-out curves of all seeds in one picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for one in rows:
        axes.plot(one["curve"], label=f"seed {one['seed']}")
    axes.set(xlabel="iteration", ylabel="held-out sampled accuracy, %")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--store", help="keep the runs here; by default they go with the benchmark")
    parser.add_argument("--plot", type=Path, help="write the curves to this PNG")
    add_json_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = [measured(options, seed, options.store or scratch) for seed in options.seeds]
    if options.plot:
        plot(rows, options.plot)
    gains = [one["gain"] for one in rows]
    figures = {"mean": statistics.mean(gains), "least": min(gains)}
    bars = [
        Bar.at_least(f"gain in sampled accuracy, {name} of the seeds, points", figures[name], bar)
        for name, bar in zip(figures, GAIN_BARS.get(options.recipe, ()), strict=False)
    ]
    tell({"seeds": rows}, bars, lambda: show(rows, Console()), as_json=options.json)


if __name__ == "__main__":
    main()
