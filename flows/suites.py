"""Suites that checkpoints of a run were evaluated on afterwards, beside the validation that went with the run."""

from collections.abc import Mapping
from typing import Any

from flows.figures import measurement
from flows.history import RunRecord
from flows.page import escape, picture, table
from flows.summary import interval_text
from stages.records import Measurement

OWN = "validation, in the run"
_MODES = ("sampled", "greedy")

Curve = dict[str, list[tuple[int, Measurement]]]
"""Measurements after each iteration, by mode."""


def curves(record: RunRecord) -> dict[str, Curve]:
    """The run's own learning curve, then that of each suite, by title."""
    own = {item.number: item.facts("evaluate") for item in record.iterations}
    return {OWN: _curve(own)} | {
        suite: _curve({number: manifest.facts for number, manifest in reports.items()})
        for suite, reports in record.suites.items()
    }


def suites_section(record: RunRecord, pictures: Mapping[str, bytes]) -> list[str]:
    """The part of a run's page on its suites; nothing where there are none."""
    if not record.suites:
        return []
    words = "; ".join(
        f"{escape(suite)}: {facts['puzzles']} puzzles of split {escape(facts['split'])}, read by the "
        f"{escape(facts['grader'])} grader"
        for suite, reports in record.suites.items()
        for facts in [next(iter(reports.values())).facts]
    )
    head = ["iteration", *(f"{title}, {mode}" for title in curves(record) for mode in _MODES)]
    return [
        "<h2>Suites</h2>",
        picture(pictures["suites.png"], "learning curve on each suite, with 95% intervals"),
        f'<div class="panel long">{table(head, suite_rows(record))}</div>',
        f'<p class="note">The same checkpoints, evaluated afterwards. {words}.</p>',
    ]


def suite_rows(record: RunRecord) -> list[list[str]]:
    """A row an iteration: accuracy with its 95% interval, by suite and mode; empty where it was not measured."""
    cells: dict[int, dict[tuple[str, str], str]] = {}
    titles = curves(record)
    for title, curve in titles.items():
        for mode, points in curve.items():
            for number, found in points:
                cells.setdefault(number, {})[title, mode] = interval_text(found.accuracy)
    return [
        [str(number), *(found.get((title, mode), "") for title in titles for mode in _MODES)]
        for number, found in sorted(cells.items())
    ]


def _curve(facts: Mapping[int, dict[str, Any]]) -> Curve:
    return {
        mode: [(number, found) for number, own in sorted(facts.items()) if (found := measurement(own, mode))]
        for mode in _MODES
    }
