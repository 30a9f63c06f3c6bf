"""A run in a few lines: before and after on the test split, what is promoted, and how to use it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from artifacts.store import Store
from flows.figures import IterationFigures, iteration_figures, measurement
from flows.history import RunRecord
from flows.surroundings import DEFAULT_STORE
from flows.wrapping import print_command, print_labelled
from stages.records import Measurement
from stages.statistics import Interval

MODES = ("sampled", "greedy")


def solve_command(record: RunRecord, store: Store) -> str:
    """The command that runs the promoted model of a run on the first puzzle of its test split."""
    where = "" if store.url == Path(DEFAULT_STORE).resolve().as_uri() else f" --store {shlex.quote(store.url)}"
    run = record.layout.run
    return f"deerstalker solve --checkpoint {run}{where} {run}:test --index 0"


def summary(record: RunRecord, store: Store) -> dict[str, Any]:
    """The run as one JSON document."""
    return {
        "run": record.layout.run,
        "title": record.recipe["title"],
        "store": store.url,
        "iterations": [_iteration(record, index) for index in range(len(record.iterations))],
        "test": {when: manifest.facts for when, manifest in record.evaluations.items()},
        "suites": {
            suite: {number: manifest.facts for number, manifest in sorted(reports.items())}
            for suite, reports in record.suites.items()
        },
        "promoted": record.promoted,
        "report": f"{store.url}/{record.layout.summary}/report.html",
        "solve": solve_command(record, store),
    }


def print_summary(record: RunRecord, store: Store, console: Console) -> None:
    """Prints the before/after table, where the report lies, and the command that runs the promoted model."""
    if record.evaluations:
        console.print(before_after_table(record))
    if record.promoted:
        promoted = f"iteration {record.promoted['iteration']}, validation {record.promoted['score']:.1%}"
        print_labelled(console, "promoted: ", promoted)
    if record.promoted and (card := record.promoted.get("model_card")):
        print_labelled(console, "card:     ", f"{store.url}/{card}")
    print_labelled(console, "report:   ", f"{store.url}/{record.layout.summary}/report.html")
    print_command(console, "try it:   ", solve_command(record, store))


def before_after_table(record: RunRecord) -> Table:
    """The rows of `before_after_rows` as a table for the terminal."""
    puzzles = next(iter(record.evaluations.values())).facts["puzzles"]
    table = Table(title=f"{record.layout.run}: {puzzles} test puzzles, means with 95% intervals", title_justify="left")
    table.add_column("")
    for when in record.evaluations:
        table.add_column("before GRPO" if when == "before" else "promoted", justify="right")
    for row in before_after_rows(record):
        table.add_row(*row)
    return table


def before_after_rows(record: RunRecord) -> list[list[str]]:
    """Figures on the test split with their 95% intervals, before the first update and of what stands promoted."""
    return measure_rows([manifest.facts for manifest in record.evaluations.values()])


def measure_rows(columns: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A row a figure and mode, a column a report's facts.

    Modes that nothing was measured in are left out, and statements where no completion makes any.
    """
    rows: list[list[str]] = []
    for title, cell in MEASURES:
        for mode in MODES:
            found = [measurement(facts, mode) for facts in columns]
            silent = cell is _statements and all(item is None or item.deductions["statements"] == 0 for item in found)
            if any(found) and not silent:
                rows.append([f"{title}, {mode}", *(cell(item) if item else "" for item in found)])
    return rows


def interval_text(interval: Interval) -> str:
    """`62.1% (58.0 to 66.2)`; bounds outside 0 to 100, which older reports have, are cut."""
    low, high = max(0.0, interval.low), min(1.0, interval.high)
    return f"{interval.mean:.1%} ({low * 100:.1f} to {high * 100:.1f})"


def unfinished_text(item: Measurement | IterationFigures) -> str:
    """`3.1%` that were cut at the token limit; where `early_stop` cut any, `3.1% + 12.0% stopped early`."""
    if item.truncated_fraction is None:
        return ""
    early = f" + {item.early_stopped_fraction:.1%} stopped early" if item.early_stopped_fraction else ""
    return f"{item.truncated_fraction:.1%}{early}"


def _accuracy(item: Measurement) -> str:
    return interval_text(item.accuracy)


def _exact(item: Measurement) -> str:
    return interval_text(item.exact)


def _length(item: Measurement) -> str:
    return f"{item.completion_tokens_mean:.1f}"


def _statements(item: Measurement) -> str:
    """Means a completion: all statements, and of these how many the clues prove, state, leave open and contradict."""
    if item.deductions["statements"] is None:
        return "not provable"
    return (
        "{statements:.1f}: {proved:.1f} proved, {restated:.1f} restated, {open:.1f} open, {contradicted:.1f} wrong"
    ).format(**item.deductions)


MEASURES = (
    ("accuracy", _accuracy),
    ("all answers right", _exact),
    ("completion tokens", _length),
    ("unfinished", unfinished_text),
    ("statements", _statements),
)
"""What is shown of a measurement: title and text."""


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
        "kl": figures.kl,
        "kl_penalty": figures.kl_penalty,
        "skipped_steps": figures.skipped_steps,
        "promoted": figures.promoted,
        "seconds": figures.seconds,
    }
