"""Tables of accuracy by task and checkpoint for puzzle sets of several environments; pages show them as heat maps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from artifacts.layout import RunLayout
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.store.store import Store
from flows.lookup.history import RunRecord
from flows.lookup.rollouts import asked_puzzles
from flows.report.figures import measurement
from flows.report.measures import MODES
from flows.report.metrics import interval_text
from flows.report.paired import PairedResults
from flows.report.suites import OWN
from stages.statistics.estimates import Interval

_DARKEST = (15, 118, 110)
_SHARE = 0.6
"""Share of the darkest colour at an accuracy of 1, so that black text is legible."""


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
            "has_changes": any(row.change for row in self.rows),
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
        first, last = (
            Artifact(store, _key(record.layout, suite, number), measured[number])
            for number in (min(measured), max(measured))
        )
        changes = _changes(first, last)
        tables += [table for mode in MODES if (table := _table(suite, mode, measured, changes))]
    return tables


def _key(layout: RunLayout, suite: str, number: int) -> str:
    return layout.iteration(number, "report") if suite == OWN else layout.suite(suite, number)


def _changes(first: Artifact, last: Artifact) -> dict[tuple[str, str], Interval]:
    """Returns the paired difference between two reports by task and mode, where puzzles were measured in both.

    Empty if both are the same report, if they measured different sets, or if one was pruned.
    """
    one, same_set = first.key == last.key, first.manifest.inputs["puzzles"] == last.manifest.inputs["puzzles"]
    if one or not same_set or first.manifest.pruned or last.manifest.pruned:
        return {}
    results = PairedResults(first, last)
    gains = {
        (task, mode): results.gain(mode, among=prompt_ids)
        for task, prompt_ids in asked_puzzles(last).group_by("environment").agg("prompt_id").iter_rows()
        for mode in MODES
    }
    return {key: gain for key, gain in gains.items() if gain is not None}


def _table(
    suite: str, mode: str, measured: Mapping[int, Manifest], changes: Mapping[tuple[str, str], Interval]
) -> TaskTable | None:
    figures = [manifest.facts["tasks"] for manifest in measured.values()]
    names = sorted({task for tasks in figures for task in tasks})
    accuracies = {
        task: [found.accuracy if (found := measurement(tasks.get(task, {}), mode)) else None for tasks in figures]
        for task in names
    }
    if not any(item for row in accuracies.values() for item in row):
        return None
    rows = [TaskRow(task, row, changes.get((task, mode))) for task, row in accuracies.items()]
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
