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

from tests.support.bars import Bar, parser_of, tell
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
    parser = parser_of(__doc__)
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--store", help="keep the runs here; by default they go with the benchmark")
    parser.add_argument("--plot", type=Path, help="write the curves to this PNG")
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
    tell({"seeds": rows}, bars, as_json=options.json)


if __name__ == "__main__":
    main()
