"""Accuracy of each task by checkpoint, of puzzle sets that hold several environments: a heat map of tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from rich.table import Table

from artifacts.layout import RunLayout
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.refs import Puzzles, Ref
from artifacts.schemas import PUZZLES, RESULTS
from artifacts.store.store import Store
from flows.lookup.history import RunRecord
from flows.report.figures import measurement
from flows.report.metrics import MODES, interval_text
from flows.report.suites import OWN
from stages.statistics.estimates import Interval, estimate_gain

_DARKEST = (15, 118, 110)
_SHARE = 0.6
"""Share of the darkest colour at an accuracy of 1, so that black text stays legible."""


@dataclass(frozen=True)
class TaskRow:
    """One task.

    Attributes:
        task: Its environment.
        accuracies: Accuracy of each checkpoint; None if it was not measured.
        change: Accuracy of the last checkpoint minus that of the first, paired puzzle by puzzle; None if there are not
            two checkpoints with their results.
    """

    task: str
    accuracies: list[Interval | None]
    change: Interval | None


@dataclass(frozen=True)
class TaskTable:
    """Accuracy by task and checkpoint.

    Attributes:
        suite: Name of the suite, or `OWN` for the run's validation split.
        mode: `sampled` or `greedy`.
        iterations: Numbers of the checkpoints.
        rows: One for each task, sorted by its name.
    """

    suite: str
    mode: str
    iterations: list[int]
    rows: list[TaskRow]

    def for_terminal(self, run: str) -> Table:
        """Returns a table for the terminal with the first and the last checkpoint and the change."""
        title = f"{run}: {self.suite}, {self.mode}, accuracy of each task with 95% intervals"
        table = Table(title=title, title_justify="left")
        table.add_column("task")
        ends = dict.fromkeys((0, len(self.iterations) - 1))
        for place in ends:
            table.add_column(f"iteration {self.iterations[place]}", justify="right")
        table.add_column("change in points", justify="right")
        for row in self.rows:
            table.add_row(row.task, *(_text(row.accuracies[place]) for place in ends), _change(row.change))
        return table

    def for_page(self) -> dict[str, Any]:
        """Returns the values of the page's heat map."""
        return {
            "suite": self.suite,
            "mode": self.mode,
            "iterations": self.iterations,
            "rows": [
                {"task": row.task, "cells": [_cell(item) for item in row.accuracies], "change": _change(row.change)}
                for row in self.rows
            ],
        }


def task_tables(record: RunRecord, store: Store) -> list[TaskTable]:
    """Returns a table for each suite and mode that measured several environments, the run's own evaluation first.

    Raises:
        IntegrityError: A table of results is damaged.
    """
    own = {item.number: item.manifests["evaluate"] for item in record.iterations if "evaluate" in item.manifests}
    tables: list[TaskTable] = []
    for suite, reports in {OWN: own, **record.suites}.items():
        measured = {number: manifest for number, manifest in sorted(reports.items()) if manifest.facts.get("tasks")}
        if not measured:
            continue
        ends = [
            Artifact(store, _key(record.layout, suite, number), measured[number])
            for number in (min(measured), max(measured))
        ]
        pair = _Pair.of(ends, store)
        tables += [table for mode in MODES if (table := _table(suite, mode, measured, pair))]
    return tables


def _key(layout: RunLayout, suite: str, number: int) -> str:
    return layout.iteration(number, "report") if suite == OWN else layout.suite(suite, number)


@dataclass(frozen=True)
class _Pair:
    """Results of the first and of the last checkpoint, each with the task of its puzzle."""

    first: pl.DataFrame
    last: pl.DataFrame

    @classmethod
    def of(cls, reports: Sequence[Artifact], store: Store) -> "_Pair | None":
        """Returns the results of two reports; None if they are one report, or one was pruned."""
        first, last = reports
        if first.key == last.key or first.manifest.pruned or last.manifest.pruned:
            return None
        return cls(_with_tasks(first, store), _with_tasks(last, store))

    def change(self, task: str, mode: str) -> Interval | None:
        """Returns the paired difference of a task; None if no puzzle was measured in both."""
        last, first = (results.filter(pl.col("environment") == task) for results in (self.last, self.first))
        return estimate_gain(last, first, mode=mode)


def _with_tasks(report: Artifact, store: Store) -> pl.DataFrame:
    puzzles = Artifact.open(store, Ref[Puzzles](**report.manifest.inputs["puzzles"]))
    table = puzzles.read_table(f"{report.manifest.facts['split']}.parquet", PUZZLES)
    return report.read_table("results.parquet", RESULTS).join(
        table.select("puzzle_id", "environment"), on="puzzle_id", maintain_order="left"
    )


def _table(suite: str, mode: str, measured: Mapping[int, Manifest], pair: _Pair | None) -> TaskTable | None:
    figures = [manifest.facts["tasks"] for manifest in measured.values()]
    names = sorted({task for tasks in figures for task in tasks})
    accuracies = {
        task: [found.accuracy if (found := measurement(tasks.get(task, {}), mode)) else None for tasks in figures]
        for task in names
    }
    if not any(item for row in accuracies.values() for item in row):
        return None
    rows = [TaskRow(task, row, pair.change(task, mode) if pair else None) for task, row in accuracies.items()]
    return TaskTable(suite, mode, list(measured), rows)


def _text(accuracy: Interval | None) -> str:
    return "" if accuracy is None else interval_text(accuracy)


def _change(change: Interval | None) -> str:
    if change is None:
        return ""
    return f"{change.mean * 100:+.1f} ({change.low * 100:+.1f} to {change.high * 100:+.1f})"


def _cell(accuracy: Interval | None) -> dict[str, str]:
    if accuracy is None:
        return {"text": "", "interval": "not measured", "colour": "transparent"}
    share = _SHARE * accuracy.mean
    red, green, blue = (round(255 + (part - 255) * share) for part in _DARKEST)
    return {
        "text": f"{accuracy.mean * 100:.0f}",
        "interval": interval_text(accuracy),
        "colour": f"rgb({red}, {green}, {blue})",
    }
