"""Summaries of a run: as JSON, and as a few lines for the terminal."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from artifacts.store.location import DATA_FOLDER
from artifacts.store.store import Store
from flows.lookup.history import RunRecord
from flows.lookup.preparation import newest_rates, preparation_lines, pretraining_of
from flows.report import measures
from flows.report.figures import iteration_figures, measurement, summary_metrics
from flows.report.measures import MODES
from flows.report.metrics import OWN, interval_text
from flows.report.text.visible import visible
from flows.report.text.wrapping import print_command, print_labelled
from flows.report.timeline import run_timeline
from stages.statistics.estimates import Interval

_SELECTION = ("sampled", "kept", "rejected", "puzzles")
"""Facts of a teacher's texts in the summary."""
PHASE_HEAD = ["phase", "iterations", "its end"]
"""Names of the columns of `phase_rows`."""


def solve_command(record: RunRecord, store: Store) -> str:
    """Returns the shell command that asks the promoted model the first puzzle of the run's test split."""
    where = "" if store.url == Path(DATA_FOLDER).resolve().as_uri() else f" --store {shlex.quote(store.url)}"
    run = record.layout.run
    return f"deerstalker solve --checkpoint {run}{where} {run}:test --index 0"


def summary(record: RunRecord, store: Store) -> dict[str, Any]:
    """Returns the run as one JSON document (see `docs/reference/json.md`)."""
    return {
        "run": record.layout.run,
        "title": record.recipe["title"],
        "store": store.url,
        "iterations": [_iteration(record, index) for index in range(len(record.iterations))],
        "dropped": record.shorter.facts["dropped"] if record.shorter else {},
        "texts": [{name: manifest.facts[name] for name in _SELECTION} for manifest in record.texts],
        "rates": newest_rates(record),
        "pretraining": (pretraining := pretraining_of(record)) and vars(pretraining),
        "test": {when: manifest.facts for when, manifest in record.evaluations.items()},
        "suites": {
            suite: {number: manifest.facts for number, manifest in sorted(reports.items())}
            for suite, reports in record.suites.items()
        },
        "phases": [dict(zip(("name", "iterations", "end"), row, strict=True)) for row in phase_rows(record)],
        "promoted": record.promoted and record.promoted.as_json(),
        "report": f"{store.url}/{record.layout.page}",
        "solve": solve_command(record, store),
    }


def print_summary(record: RunRecord, store: Store, console: Console) -> None:
    """Prints results before and after training, an alarm that lasts, where the report is, and how to use the model."""
    if record.evaluations:
        console.print(before_after_table(record))
    for name, line in preparation_lines(record):
        print_labelled(console, f"{name}: ", line)
    if record.promoted:
        promoted = f"iteration {record.promoted.iteration}, validation {record.promoted.score:.1%}"
        print_labelled(console, "promoted: ", promoted)
    for name, iterations, end in phase_rows(record):
        print_labelled(console, "phase:    ", f"{name}, iterations {iterations}: {end}")
    if record.iterations and (alarm := record.iterations[-1].alarm) and alarm.certain:
        print_labelled(console, "alarm:    ", str(alarm))
    if record.promoted:
        print_labelled(console, "card:     ", f"{store.url}/{record.promoted.model_card}")
    if line := run_timeline(record, store):
        note = "" if line.whole else "; several attempts made it, this is the last one"
        print_labelled(console, "time:     ", line.line() + note)
    print_labelled(console, "report:   ", f"{store.url}/{record.layout.page}")
    print_command(console, "try it:   ", solve_command(record, store))


def phase_rows(record: RunRecord) -> list[list[str]]:
    """Returns a row for each phase of the run that has begun: name, iterations, and why it ended; [] without phases."""
    decisions = [(item.number, facts) for item in record.iterations if (facts := item.facts("advance"))]
    rows: list[list[str]] = []
    for number, of_phase in groupby(decisions, key=lambda item: item[1]["phase"]):
        members = list(of_phase)
        last, decision = members[-1]
        open_end = "with the run" if last >= record.recipe["iterations"] else "it goes on"
        end = decision["reason"] if decision["ended"] else open_end
        name = visible(record.recipe["phases"][number - 1]["name"])
        rows.append([f"{number}. {name}", f"{members[0][0]} to {last}", end])
    return rows


def before_after_table(record: RunRecord) -> Table:
    """Returns `before_after_rows` as a table for the terminal."""
    puzzles = next(iter(record.evaluations.values())).facts["puzzles"]
    title = f"{record.layout.run}: {puzzles} test puzzles, means with 95% intervals"
    return figures_table(title, before_after_names(record), before_after_rows(record))


def figures_table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Returns a table for the terminal with a column for each name; each row begins with the name of its figure."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def before_after_names(record: RunRecord) -> list[str]:
    """Returns the names of the columns of figures in `before_after_rows`."""
    return ["before GRPO" if when == "before" else "promoted" for when in record.evaluations]


def before_after_rows(record: RunRecord) -> list[list[str]]:
    """Returns rows of figures on the test split, with 95% intervals: before training and of the promoted model."""
    return measure_rows([manifest.facts for manifest in record.evaluations.values()])


def measure_rows(columns: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Returns a row for each figure and mode, with a cell for each evaluation's facts.

    Rows without a measurement are left out, and so is the row of statements if no completion makes any.
    """
    rows: list[list[str]] = []
    for measure in measures.MEASURES:
        for mode in MODES:
            measured = [facts.get(mode) for facts in columns]
            if measure.title and any(item and measure.is_shown(item) for item in measured):
                rows.append([f"{measure.title}, {mode}", *(measure.cell(item) if item else "" for item in measured)])
    return rows


def task_rows(tasks: Mapping[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Returns the modes that were measured, and a row for each task: its name, then its accuracy with its interval.

    Args:
        tasks: Figures by task (see `stages.statistics.records.ReportFigures.tasks`).
    """
    modes = [mode for mode in MODES if any(facts.get(mode) for facts in tasks.values())]
    cells = {
        task: [interval_text(item.accuracy) if (item := measurement(facts, mode)) else "" for mode in modes]
        for task, facts in tasks.items()
    }
    return modes, [[task, *row] for task, row in cells.items()]


def strategy_rows(strategies: Mapping[str, dict[str, Any]]) -> list[list[str]]:
    """Returns a row for each strategy and for each of its intermediate answers: its name, then its figures."""
    rows: list[list[str]] = []
    for name, facts in strategies.items():
        for title, figures in {name: facts, **{f"- {p}": item for p, item in facts.get("points", {}).items()}}.items():
            rows.append([title, *(measure.cell(figures) for measure in measures.STRATEGY_MEASURES)])
        if notes := facts.get("faithfulness"):
            invented = interval_text(Interval(**notes["invented"])) if "invented" in notes else "none made"
            restated = interval_text(Interval(**notes["restated"]))
            rows.append(["- notes", f"of the clues: {restated}", f"invented: {invented}", ""])
    return rows


def reliability_rows(reliability: Mapping[str, dict[str, Any]]) -> list[list[str]]:
    """Returns a row for each number of samples: the number, then its figures."""
    return [[k, *(item.cell(facts) for item in measures.RELIABILITY_MEASURES)] for k, facts in reliability.items()]


def _iteration(record: RunRecord, index: int) -> dict[str, Any]:
    figures = iteration_figures(record.iterations[index])
    return {
        "iteration": figures.number,
        **{item.key: figures.value(item.key) for item in summary_metrics()},
        "own": {key.removeprefix(OWN): figures.value(key) for key in figures.values if key.startswith(OWN)},
        "promoted": figures.promoted,
        "seconds": figures.seconds,
    }
