"""Published algorithms on one small task: `python -m tests.benchmarks.curves --recipes grpo,dapo,dr_grpo`.

Every curve is a whole `deerstalker train` of the base recipe (`quickstart`): its model, puzzles, sizes, reward,
optimizer and learning rate, from one shared warm start and one seed. The settings of the algorithm are those of a
published recipe, by the rule of `flows/compare/algorithm.py`. So the curves show how the algorithms differ here, not
the results of their authors' recipes.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from artifacts.store.store import Store
from flows.compare import algorithm as rule
from flows.config.recipe import Recipe
from flows.config.recipe_diff import differences
from flows.config.recipes import load_recipe
from flows.lookup.history import read_run
from flows.report.figures import IterationFigures, iteration_figures
from flows.report.html.page import TEMPLATES, page
from tests.support.bars import add_json_option, tell
from tests.support.scaled_recipes import settings_of
from tests.support.whole_runs import from_warm_start, train

WARM_START = "warm-start"
_PAGE = """{% extends "page.html" %}
{% from "parts.html" import picture, table %}
{% block body %}
<header><span class="kicker">Deerstalker &middot; curves</span><h1>{{ title }}</h1></header>
<div class="plots" style="display:block">{{ picture(png, "reward and held-out accuracy by recipe") }}</div>
<h2>Figures</h2><div class="panel">{{ table(head, rows) }}</div>
<h2>What was laid over</h2><div class="panel">{{ table(settings_head, settings) }}</div>
<h2>The rule</h2><div class="panel">{% for part in words %}<p class="note">{{ part }}</p>{% endfor %}</div>
{% endblock %}"""


def shared_start(options: argparse.Namespace, store: str, base: Recipe, settings: Sequence[str]) -> list[str]:
    """Warm-starts the base recipe's model once; returns the settings by which other runs begin with it."""
    if base.warm_start is None:
        return []
    settings = [*settings, "iterations=0", "evaluate.puzzles=1", "final.puzzles=1"]
    train(options.base, WARM_START, store, settings, options.profile)
    return from_warm_start(WARM_START, store)


def _points(iterations: Sequence[IterationFigures], key: str) -> list[list[float]]:
    return [[item.number, value] for item in iterations if (value := item.value(key)) is not None]


def curve(store: str, run: str) -> dict[str, Any]:
    """A run's figures by iteration, and its accuracy on the test split before and after, in shares of 1."""
    record = read_run(Store.open(store, writable=False), run)
    iterations = [iteration_figures(iteration) for iteration in record.iterations]
    sampled = {item.number: item.sampled.accuracy for item in iterations if item.sampled}
    test = {when: manifest.facts["sampled"]["accuracy"]["mean"] for when, manifest in record.evaluations.items()}
    return {
        "reward": _points(iterations, "reward"),
        "uniform": _points(iterations, "uniform_fraction"),
        "held_out": [[number, accuracy.mean] for number, accuracy in sampled.items()],
        "held_out_band": [[accuracy.low, accuracy.high] for accuracy in sampled.values()],
        "held_out_greedy": [[item.number, item.greedy.accuracy.mean] for item in iterations if item.greedy],
        "test_before": test.get("before"),
        "test_after": test.get("after"),
    }


def measure(options: argparse.Namespace, store: str) -> list[dict[str, Any]]:
    """A row a recipe: what was laid over the base, the curves, and the wall time."""
    common = [f"iterations={options.iterations}", f"seed={options.seed}", *options.settings]
    base = load_recipe(options.base, common)
    over = {name: settings_of(base, name) for name in options.recipes}
    laid = {
        name: {
            change.setting: change.values.get("b")
            for change in differences(base, load_recipe(options.base, [*common, *changes]))
        }
        for name, changes in over.items()
    }  # before any run, so that what does not fit together costs nothing
    start = shared_start(options, store, base, common)
    rows: list[dict[str, Any]] = []
    for name, changes in over.items():
        run = f"curve-{Path(name).stem}"
        seconds = train(options.base, run, store, [*common, *changes, *start], options.profile)["wall_s"]
        rows.append({"recipe": name, "laid_over": laid[name], "seconds": seconds, **curve(store, run)})
    return rows


HEAD = ("recipe", "reward", "held-out", "best", "test before", "test after", "uniform groups", "seconds")


def text_rows(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The table's cells: first and last reward and held-out accuracy, best held-out, test accuracy, time."""

    def ends(points: Sequence[Sequence[float]], form: str) -> str:
        return f"{points[0][1]:{form}} -> {points[-1][1]:{form}}" if points else ""

    return [
        [
            row["recipe"], ends(row["reward"], ".3f"), ends(row["held_out"], ".1%"),
            f"{max((value for _, value in row['held_out']), default=0.0):.1%}", f"{row['test_before']:.1%}",
            f"{row['test_after']:.1%}", ends(row["uniform"], ".0%"), f"{row['seconds']:.0f}",
        ]
        for row in rows
    ]  # fmt: skip


def draw(rows: Sequence[dict[str, Any]]) -> bytes:
    """Reward and held-out accuracy of all recipes, as PNG; the line of a recipe has the same colour in both."""
    from matplotlib.figure import Figure

    figure, png = Figure(figsize=(11.2, 3.6), dpi=150, layout="constrained"), BytesIO()
    reward, held_out = figure.subplots(1, 2)
    for number, row in enumerate(rows):
        for axes, points in ((reward, row["reward"]), (held_out, row["held_out"])):
            axes.plot(*zip(*points, strict=True), color=f"C{number}", label=row["recipe"], marker="o", markersize=4)
        numbers = [iteration for iteration, _ in row["held_out"]]
        held_out.fill_between(numbers, *zip(*row["held_out_band"], strict=True), color=f"C{number}", alpha=0.1)
    reward.set_title("mean reward of the rollouts")
    held_out.set_title("held-out accuracy, sampled, with its 95% interval")
    for axes in (reward, held_out):
        axes.set_xlabel("iteration")
        axes.legend()
    figure.savefig(png, format="png")
    return png.getvalue()


def document(rows: Sequence[dict[str, Any]], png: bytes, title: str) -> str:
    """Everything in one HTML file."""
    settings = dict.fromkeys(setting for row in rows for setting in row["laid_over"])
    cells = [
        [setting, *("" if setting not in row["laid_over"] else json.dumps(row["laid_over"][setting]) for row in rows)]
        for setting in settings
    ]
    return page(
        TEMPLATES.from_string(_PAGE),
        title=title,
        png=png,
        head=HEAD,
        rows=text_rows(rows),
        settings_head=["setting", *(row["recipe"] for row in rows)],
        settings=cells,
        words=[*(__doc__ or "").split("\n\n")[1:], *(rule.__doc__ or "").split("\n\n")[1:]],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", type=lambda text: text.split(","), default=["grpo", "dapo", "dr_grpo"])
    parser.add_argument("--base", default="quickstart", help="recipe, or path of a TOML file, that they are laid over")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE", help="of the base")
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--store", help="keep the runs here, and go on with those begun; else they go at the end")
    parser.add_argument("--out", type=Path, default=Path("curves"), help="folder for curves.png and curves.html")
    add_json_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="curves-") as scratch:
        rows = measure(options, options.store or scratch)
    png, title = draw(rows), f"{', '.join(options.recipes)} over {Path(options.base).stem}, seed {options.seed}"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "curves.png").write_bytes(png)
    (options.out / "curves.html").write_text(document(rows, png, title), encoding="utf-8")
    tell({"rows": rows}, [], lambda: show(rows, title, options.out), as_json=options.json)
    return 0


def show(rows: list[dict[str, Any]], title: str, out: Path) -> None:
    """Prints the table and the names of the files."""
    shown, console = Table(title=title, title_justify="left"), Console()
    for name in HEAD:
        shown.add_column(name, justify="left" if name == "recipe" else "right")
    for cells in text_rows(rows):
        shown.add_row(*cells)
    console.print(shown)
    console.print(f"{out / 'curves.png'}, {out / 'curves.html'}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
