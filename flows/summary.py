"""A run in a few lines: before and after on the test split, what is promoted, and how to use it."""

import shlex
from typing import Any

from rich.console import Console
from rich.table import Table

from artifacts.store import Store
from flows.figures import Interval, Measurement, iteration_figures, measurement
from flows.history import RunRecord

MODES = ("sampled", "greedy")


def solve_command(record: RunRecord, store: Store) -> str:
    """The command that runs the promoted model of a run on a puzzle."""
    where = "" if store.url == _default_store_url() else f" --store {shlex.quote(store.url)}"
    return f"deerstalker solve --checkpoint {record.layout.run}{where} FILE"


def summary(record: RunRecord, store: Store) -> dict[str, Any]:
    """The run as one JSON document."""
    return {
        "run": record.layout.run,
        "title": record.recipe["title"],
        "store": store.url,
        "iterations": [_iteration(record, index) for index in range(len(record.iterations))],
        "test": {when: manifest.facts for when, manifest in record.evaluations.items()},
        "promoted": record.promoted,
        "report": f"{store.url}/{record.layout.summary}/report.html",
        "solve": solve_command(record, store),
    }


def print_summary(record: RunRecord, store: Store, console: Console) -> None:
    """Prints the before/after table, where the report lies, and the command that runs the promoted model."""
    if record.evaluations:
        console.print(before_after_table(record))
    if record.promoted:
        console.print(
            f"promoted: iteration {record.promoted['iteration']}, held-out {record.promoted['score']:.3f}", highlight=False
        )
    console.print(f"report:   {store.url}/{record.layout.summary}/report.html", highlight=False, soft_wrap=True)
    console.print(f"try it:   {solve_command(record, store)}", highlight=False, soft_wrap=True)


def before_after_table(record: RunRecord) -> Table:
    """Means on the test split with their 95% intervals, before the first update and of what stands promoted."""
    facts = {when: manifest.facts for when, manifest in record.evaluations.items()}
    puzzles = next(iter(facts.values()))["puzzles"]
    table = Table(title=f"{record.layout.run}: {puzzles} test puzzles, means with 95% intervals", title_justify="left")
    table.add_column("")
    for when in facts:
        table.add_column("before GRPO" if when == "before" else "promoted", justify="right")
    for title, cell in _ROWS:
        for mode in MODES:
            found = [measurement(part, mode) for part in facts.values()]
            if all(found):
                table.add_row(f"{mode} {title}", *(cell(item) for item in found if item))
    return table


def interval_text(interval: Interval) -> str:
    """`62.1% (58.0 to 66.2)`."""
    return f"{interval.mean:.1%} ({interval.low * 100:.1f} to {interval.high * 100:.1f})"


def _accuracy(item: Measurement) -> str:
    return interval_text(item.accuracy)


def _exact(item: Measurement) -> str:
    return interval_text(item.exact)


def _length(item: Measurement) -> str:
    return f"{item.completion_tokens:.1f}"


def _unfinished(item: Measurement) -> str:
    return f"{item.truncated_fraction:.1%}"


_ROWS = (
    ("accuracy", _accuracy),
    ("all answers right", _exact),
    ("completion tokens", _length),
    ("unfinished", _unfinished),
)


def _iteration(record: RunRecord, index: int) -> dict[str, Any]:
    figures = iteration_figures(record.iterations[index])
    return {
        "iteration": figures.number,
        "reward": figures.reward,
        "train_accuracy": figures.train_accuracy,
        "sampled_accuracy": figures.sampled.accuracy.mean if figures.sampled else None,
        "greedy_accuracy": figures.greedy.accuracy.mean if figures.greedy else None,
        "completion_tokens": figures.completion_tokens,
        "entropy": figures.entropy,
        "clip_fraction": figures.clip_fraction,
        "sampler_gap": figures.gap,
        "promoted": figures.promoted,
        "seconds": figures.seconds,
    }


def _default_store_url() -> str:
    from pathlib import Path

    from flows.surroundings import DEFAULT_STORE

    return Path(DEFAULT_STORE).resolve().as_uri()
