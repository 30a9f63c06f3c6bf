"""What GRPO alone adds in the `answers_only` recipe, over fresh seeds: `python -m tests.benchmarks.answers_only`.

`--recipe` measures another recipe in the same way; `maths_small` has bars of its own, others have none.

Each seed is a whole `deerstalker train` of its own: other puzzles, another model, other samples. The measurement is the
recipe's own: the warm-started model before, the promoted one after, on test puzzles that no choice looked at.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from tests.support.bars import Bar, tell
from tests.support.seeded import joined, over_seeds, parse, run_store, seeded_parser
from tests.support.whole_runs import figures_of, train

SEEDS = (601, 602, 603, 604, 605)
GAIN_BARS = {"answers_only": (14.0, 9.0), "maths_small": (5.0, 0.0)}
"""The mean gain and the least of a recipe's seeds, points: of `answers_only` those that the README states."""


def measured(options: argparse.Namespace, seed: int, store: str) -> dict[str, Any]:
    """Trains with one seed; returns its figures."""
    run, settings = f"{Path(options.recipe).stem}-seed-{seed}", [f"seed={seed}", *options.settings]
    document = train(options.recipe, run, store, settings, options.profile)
    figures = figures_of(document)
    gains = {
        f"{mode}_gain": figures[f"{mode}_accuracy_after"] - figures[f"{mode}_accuracy_before"]
        for mode in ("sampled", "greedy")
    }
    curve = [100 * point["sampled_accuracy"] for point in document["iterations"]]
    return {**figures, **gains, "promoted_iteration": document["promoted"]["iteration"], "curve": curve}


def plot(seeds: dict[str, dict[str, Any]], path: Path) -> None:
    """Draws the held-out curves of all seeds in one picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for seed, one in seeds.items():
        axes.plot(one["curve"], label=f"seed {seed}")
    axes.set(xlabel="iteration", ylabel="held-out sampled accuracy, %")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = seeded_parser(__doc__, SEEDS)
    parser.add_argument("--recipe", default="answers_only")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--plot", type=Path, help="write the curves to this PNG")
    options = parse(parser)
    with run_store(options) as store:
        rows = {seed: measured(options, seed, store) for seed in options.seeds}
    document = joined(options.join, {"seeds": rows})
    seeds = document["seeds"]
    if options.plot:
        plot(seeds, options.plot)
    gains = [one["sampled_gain"] for one in seeds.values()]
    figures = {"mean": statistics.mean(gains), "least": min(gains)}
    bars = [
        Bar.at_least(f"gain in sampled accuracy, {name} of the seeds, points", figures[name], bar)
        for name, bar in zip(figures, GAIN_BARS.get(options.recipe, ()), strict=False)
    ]
    numbers = [{name: value for name, value in row.items() if name != "curve"} for row in seeds.values()]
    tell(document | {"means": over_seeds(numbers)}, bars, as_json=options.json)


if __name__ == "__main__":
    main()
