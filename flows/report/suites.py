"""Learning curves on suites: sets of puzzles on which `backfill` evaluated a run's checkpoints after the run."""

from collections.abc import Mapping
from typing import Any

from flows.lookup.history import RunRecord
from flows.report.figures import measurement
from flows.report.measures import MODES
from flows.report.metrics import interval_text, without_empty
from stages.statistics.records import Measurement

OWN = "validation, in the run"

Curve = dict[str, list[tuple[int, Measurement]]]
"""Pairs of iteration and measurement, by mode."""


def curves(record: RunRecord) -> dict[str, Curve]:
    """Returns the run's own learning curve, then that of each suite, by title."""
    own = {item.number: item.facts("evaluate") for item in record.iterations}
    return {OWN: _curve(own)} | {
        suite: _curve({number: manifest.facts for number, manifest in reports.items()})
        for suite, reports in record.suites.items()
    }


def suites_section(record: RunRecord) -> dict[str, Any] | None:
    """Returns the values of the report's section on suites; None if the run has none."""
    if not record.suites:
        return None
    facts = {suite: next(iter(reports.values())).facts for suite, reports in record.suites.items()}
    titles = ["iteration", *(f"{title}, {mode}" for title in curves(record) for mode in MODES)]
    head, rows = without_empty(titles, suite_rows(record))
    return {
        "head": head,
        "rows": rows,
        "names": [
            {"name": suite, "puzzles": item["puzzles"], "split": item["split"], "grader": item["grader"]}
            for suite, item in facts.items()
        ],
    }


def suite_rows(record: RunRecord) -> list[list[str]]:
    """Returns a row for each iteration: its number, then accuracy with its 95% interval by suite and mode.

    A cell is empty if the iteration was not measured on the suite in this mode.
    """
    columns = [
        {number: interval_text(measured.accuracy) for number, measured in points}
        for curve in curves(record).values()
        for points in curve.values()
    ]
    return [[str(n), *(column.get(n, "") for column in columns)] for n in sorted(set().union(*columns))]


def _curve(facts: Mapping[int, dict[str, Any]]) -> Curve:
    return {
        mode: [(number, measured) for number, own in sorted(facts.items()) if (measured := measurement(own, mode))]
        for mode in MODES
    }
