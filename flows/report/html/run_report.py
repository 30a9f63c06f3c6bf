"""The report of a run: an HTML page, its pictures and `summary.json`. Each call writes it again from the artifacts."""

import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from artifacts.documents.checksums import SUMS_NAME, write_files
from artifacts.identity import sha256_json
from artifacts.store.store import Store
from flows.lookup.history import RunRecord
from flows.lookup.preparation import preparation_lines
from flows.report.before_after import CheckedCompletion
from flows.report.derivation import statement_counts, text_pieces
from flows.report.example_group import Completion
from flows.report.figures import IterationFigures, measurement, page_columns
from flows.report.html.page import page
from flows.report.measures import RELIABILITY_MEASURES, STRATEGY_MEASURES
from flows.report.paired import PairedResults
from flows.report.pictures.batch_picture import describe_batch
from flows.report.prefect_pages.ui_text import (
    checked_title,
    completion_title,
    seconds_rows,
    statement_lines,
    store_keys,
)
from flows.report.study.study import fit_table
from flows.report.suites import suites_section
from flows.report.summary import (
    PHASE_HEAD,
    before_after_names,
    before_after_rows,
    phase_rows,
    reliability_rows,
    solve_command,
    strategy_rows,
    summary,
)
from flows.report.tasks import task_tables
from flows.report.text.markdown import shortened
from flows.report.text.visible import visible
from flows.report.timeline import HEAD, store_warning, worked_s
from stages.strategies.figures import StrategiesFigures

if TYPE_CHECKING:
    from flows.report.run_view import RunView

PAGE = "report.html"
_SHOWN = "shown.sha256"
"""The file of a report with the digest of what it shows."""
_COMPLETION_CHARACTERS = 20_000
"""Maximum number of characters of a completion on the page; a note replaces the middle of longer ones."""

_HEADLINES = (
    ("test accuracy, sampled", "sampled", "accuracy"),
    ("test accuracy, greedy", "greedy", "accuracy"),
    ("all answers right, sampled", "sampled", "exact"),
)
"""Title, mode and metric of the gains that the page shows in large type."""


def store_report(view: "RunView") -> str:
    """Writes the report into the store and returns the key of the page; works without Prefect.

    Raises:
        IntegrityError: A file that the report shows is damaged.
    """
    files = {**report_files(view), _SHOWN: _digest(view.record).encode()}
    write_files(view.store, view.record.layout.summary, files)
    return view.record.layout.page


def has_report(record: RunRecord, store: Store) -> bool:
    """Returns whether the store has the run's report whole, and it shows what the record has.

    To draw the pictures again would keep those waiting who only repeat the command of a run that has ended.
    """
    folder = record.layout.summary
    files = (f"{folder}/{name}" for name in (SUMS_NAME, PAGE, _SHOWN))
    return all(map(store.exists, files)) and store.read_bytes(f"{folder}/{_SHOWN}") == _digest(record).encode()


def _digest(record: RunRecord) -> str:
    """Returns a digest of what a report shows: of the run's artifacts, its recipe and the code that draws."""
    promoted = record.promoted and record.promoted.as_json()
    return sha256_json([version("deerstalker"), record.keys, record.recipe, promoted])


def report_files(view: "RunView") -> dict[str, bytes]:
    """Returns the report's files by name: the pictures, `summary.json` and the page.

    Raises:
        IntegrityError: A file that the report shows is damaged.
    """
    pictures = {**view.plots, **view.study_plots}
    if view.batch_picture:
        pictures["batch.png"] = view.batch_picture
    if view.timeline_picture:
        pictures["timeline.png"] = view.timeline_picture
    pair, example = view.before_after, view.example
    values = {
        **_values(view.record, view.store, view.figures),
        "pictures": pictures,
        "strategies": [_strategies(name, item) for name, item in view.strategies.items()],
        "alarms": [str(alarm) for alarm in view.study.alarms],
        "fits": fit_table([view.study]),
        "pair": pair,
        "derivations": [_derivation(item) for item in (pair.before, pair.after)] if pair else [],
        "example": example,
        "completions": [_completion(item, example.makes_statements) for item in example.completions] if example else [],
        "batch": describe_batch(view.batch[1]) if view.batch else None,
        "timeline": view.timeline,
        "timeline_head": HEAD,
        "timeline_warning": store_warning(view.timeline, view.store.url) if view.timeline else None,
    }
    return {
        **pictures,
        "summary.json": _json(summary(view.record, view.store)),
        PAGE: page("report.html", **values).encode(),
    }


def _values(record: RunRecord, store: Store, iterations: Sequence[IterationFigures]) -> dict[str, Any]:
    """Returns the values of the page's template that come from the manifests."""
    trained = [item for item in record.iterations if item.number]
    each_s = worked_s(trained) / max(1, len(trained))
    return {
        "title": f"{record.layout.run}: Deerstalker report",
        "run": record.layout.run,
        "recipe_title": record.recipe["title"],
        "progress": f"{len(trained)} of {record.planned_iterations} iterations of GRPO in "
        f"{_duration(worked_s(record.iterations))}, {each_s:.1f} s each",
        "cards": _cards(record, store, iterations),
        "test": _before_after(record),
        "preparation": preparation_lines(record, visible),
        "suites": suites_section(record),
        "phases": {"head": PHASE_HEAD, "rows": phases} if (phases := phase_rows(record)) else None,
        "tasks": [table.for_page() for table in task_tables(record, store)],
        "iterations": _iteration_table(iterations),
        "seconds": _seconds_table(iterations),
        "solve_command": solve_command(record, store),
        "addresses": _addresses(record, store),
        "recipe": json.dumps(record.recipe, indent=2, ensure_ascii=False),
    }


def _strategies(name: str, measured: StrategiesFigures) -> dict[str, Any]:
    """Returns the tables of strategies and of numbers of samples of one report."""
    figures = measured.as_json()
    return {
        "name": name,
        "head": ["", *(item.title for item in STRATEGY_MEASURES)],
        "rows": strategy_rows(figures["strategies"]),
        "samples_head": ["samples", *(item.title for item in RELIABILITY_MEASURES)],
        "samples_rows": reliability_rows(figures["reliability"]),
    }


def _before_after(record: RunRecord) -> dict[str, Any] | None:
    if not record.evaluations:
        return None
    facts = next(iter(record.evaluations.values())).facts
    return {
        "head": ["", *before_after_names(record)],
        "rows": before_after_rows(record),
        "puzzles": facts["puzzles"],
        "grader": facts["grader"],
    }


def _cards(record: RunRecord, store: Store, iterations: Sequence[IterationFigures]) -> list[tuple[str, str, str, str]]:
    """Returns the figures that the page shows in large type: label, value, note, and `up`, `down` or nothing."""
    cards: list[tuple[str, str, str, str]] = []
    tests = record.tests(store)
    results = PairedResults(tests["before"], tests["after"]) if tests.keys() == {"before", "after"} else None
    for title, mode, metric in _HEADLINES:
        measured = {when: measurement(manifest.facts, mode) for when, manifest in record.evaluations.items()}
        before, after = measured.get("before"), measured.get("after")
        gain = results.gain(mode, metric) if results else None
        if before and after and gain:
            low, high = (item.accuracy.mean if metric == "accuracy" else item.exact.mean for item in (before, after))
            value = f"{low:.1%} \N{RIGHTWARDS ARROW} {high:.1%}"
            note = f"{gain.mean * 100:+.1f} points ({gain.low * 100:.1f} to {gain.high * 100:.1f})"
            direction = "up" if gain.mean >= 0 else "down"
            cards.append((title, value, note, direction))
    if record.promoted:
        cards.append(("promoted", f"iteration {record.promoted.iteration}", _standing(record, len(iterations)), ""))
    return cards


def _standing(record: RunRecord, candidates: int) -> str:
    """Returns the score of the promoted checkpoint and why it is promoted, by the run's rule of promotion.

    `stages.promotion.gate.PromoteConfig` describes the rules.
    """
    assert record.promoted is not None
    rule, score = record.recipe["promote"], f"{record.promoted.score:.1%} on the validation split"
    if rule["tolerance_se"]:
        return f"{score}, within {rule['tolerance_se']:g} standard error of the best of {candidates}"
    if rule["min_gain"]:
        return f"{score}; none since has beaten the best before it by more than {rule['min_gain'] * 100:g} points"
    return f"{score}, the best of {candidates}"


def _iteration_table(iterations: Sequence[IterationFigures]) -> dict[str, Any]:
    columns = page_columns(iterations)
    return {
        "head": ["", *(metric.column for metric in columns), "s"],
        "rows": [
            [str(item.number), *(metric.page_text(item.values) for metric in columns), f"{item.total_s:.1f}"]
            for item in iterations
        ],
        "promoted": [item.promoted for item in iterations],
    }


def _seconds_table(iterations: Sequence[IterationFigures]) -> dict[str, Any]:
    rows = seconds_rows(iterations)
    cells = [["" if cell is None else str(cell) for cell in row.values()] for row in rows]
    return {"head": list(rows[0]) if rows else [], "rows": cells}


def _derivation(item: CheckedCompletion) -> dict[str, Any]:
    statements = item.derivation.statements
    return {
        "title": checked_title(item),
        "pieces": text_pieces(item.derivation.text, statements, _COMPLETION_CHARACTERS),
        "answers": item.answers,
        "statements": {"counts": statement_counts(statements), "lines": ""},
        "conclusions": item.derivation.conclusions,
    }


def _completion(item: Completion, makes_statements: bool) -> dict[str, Any]:
    statements = item.statements or []
    summary_of_statements = {
        "counts": statement_counts(statements),
        "lines": shortened(statement_lines(statements)),
    }
    return {
        "title": completion_title(item),
        "pieces": text_pieces(item.text, statements, _COMPLETION_CHARACTERS),
        "answers": item.answers,
        "statements": summary_of_statements if makes_statements else None,
        "conclusions": [],
    }


def _addresses(record: RunRecord, store: Store) -> list[tuple[str, str]]:
    """Returns names with the addresses of the run and its parts, and with the digest of the promoted checkpoint."""
    addresses = [("store", store.url), ("run", f"{store.url}/{record.layout.root}")]
    addresses += [(name, f"{store.url}/{key}") for name, key in store_keys(record).items()]
    if record.promoted:
        addresses.append(("its content", record.promoted.checkpoint.digest))
    return addresses


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
