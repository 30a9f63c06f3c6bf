"""The figures of runs and benchmarked models: pictures for the report of a run, and the page of `deerstalker study`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from artifacts.store.store import Store
from flows.lookup.alarms import alarms_of
from flows.lookup.history import RunRecord
from flows.report.metrics import interval_text, makes_statements, without_empty
from flows.report.study.benchmark import BenchmarkModels
from flows.report.study.pictures import cost_plot, difficulty_plot, learning_plot, lengths_plot, reliability_plot
from flows.report.study.series import (
    Answered,
    LearningCurve,
    accuracy_by_size,
    read_answers,
    read_learning_curve,
    reliability,
)
from stages.answering.measured import BenchmarkedModel
from stages.environments.soundness import EXAMPLES, VERDICTS, Refuted, mean_statements, refuted_statements
from stages.promotion.reward_alarm import AlarmWindow
from stages.statistics.fits import Line, PowerLaw, PowerLawBand, fit_frontier, frontier


@dataclass(frozen=True)
class RunStudy:
    """The data of one run that the plots show.

    Attributes:
        name: Its name.
        curve: Its learning curve; None if fewer than two iterations were measured.
        fit: The power law of the curve with its interval; None if it would be meaningless.
        answered: The answers of its models, the latest model last.
        alarms: The beginnings of alarms (see `alarms_of`).
    """

    name: str
    curve: LearningCurve | None
    fit: tuple[PowerLaw, PowerLawBand | None] | None
    answered: list[Answered]
    alarms: list[AlarmWindow]


def read_run_study(record: RunRecord, store: Store) -> RunStudy:
    """Reads the reports of a run.

    Raises:
        IntegrityError: A stored file is damaged.
    """
    curve = read_learning_curve(record, store)
    return RunStudy(
        record.layout.run,
        curve,
        curve.power_law() if curve else None,
        read_answers(record, store),
        alarms_of(record.iterations),
    )


def pictures(runs: Sequence[RunStudy], benchmark: BenchmarkModels | None = None) -> dict[str, bytes]:
    """Returns the pictures for which there are data, by file name."""
    curves = {run.name: run.curve for run in runs if run.curve}
    fitted = {run.name: run.curve for run in runs if run.curve and run.fit}
    drawn: dict[str, bytes] = {}
    if fitted:
        drawn["learning.png"] = learning_plot(fitted, {run.name: run.fit for run in runs})
    if curves:
        drawn["lengths.png"] = lengths_plot(curves)
    shown = _shown_models(runs)
    sizes = {name: accuracy_by_size(model) for name, model in shown.items()}
    if any(sizes.values()):
        drawn["difficulty.png"] = difficulty_plot(sizes)
    chances = {name: reliability(model) for name, model in shown.items()}
    if any(chances.values()):
        drawn["reliability.png"] = reliability_plot(chances)
    if priced := _priced(benchmark):
        drawn["cost.png"] = cost_plot(priced, frontier_line(priced))
    return drawn


def frontier_line(models: Sequence[BenchmarkedModel]) -> Line | None:
    """Returns the least-squares line `accuracy = a + b ln(cost)` through the models that beat all cheaper ones.

    Args:
        models: Models with a cost above 0.

    Returns:
        The line; None if fewer than three models are on the frontier.
    """
    return fit_frontier([model.cost_per_answer or 0.0 for model in models], [model.accuracy.mean for model in models])


def figures(runs: Sequence[RunStudy], benchmark: BenchmarkModels | None) -> dict[str, Any]:
    """Returns the fits and alarms as JSON (see `docs/reference/json.md`)."""
    priced = _priced(benchmark)
    line = frontier_line(priced)
    on_frontier = {"models": _on_frontier(priced)}
    return {
        "runs": {
            run.name: {"power_law": _fit_json(run), "alarms": [vars(item) for item in run.alarms]} for run in runs
        },
        "frontier": {**vars(line), **on_frontier} if line else None,
    }


def page_values(runs: Sequence[RunStudy], benchmark: BenchmarkModels | None) -> dict[str, Any]:
    """Returns the values of the template `study.html`, without its pictures."""
    puzzles = benchmark.puzzles if benchmark else ""
    priced = _priced(benchmark)
    line = frontier_line(priced)
    head, rows = without_empty(
        ["", "accuracy", "cost of an answer, $", "tokens of an answer", *VERDICTS],
        [*_benchmark_rows(benchmark), *(row for run in runs for row in _run_rows(run))],
    )
    return {
        "title": "Deerstalker study",
        "heading": ", ".join(filter(None, [puzzles, *(run.name for run in runs)])) or "benchmark",
        "models": {"head": head, "rows": rows},
        "frontier": frontier_sentence(line, priced, benchmark),
        "fits": fit_table(runs),
        "alarms": [f"{run.name}: {alarm}" for run in runs for alarm in run.alarms],
        "refuted": refuted_table(runs, benchmark),
    }


def fit_table(runs: Sequence[RunStudy]) -> dict[str, Any] | None:
    """Returns the table of power laws; None if no curve has one."""
    rows = [_fit_row(run.name, *run.fit) for run in runs if run.fit]
    head = ["", "slope (95%)", "at iteration 1", "iterations", "residuals, s.d.", "AIC", "AIC, levels off", "level"]
    return dict(zip(("head", "rows"), without_empty(head, rows), strict=True)) if rows else None


def refuted_table(runs: Sequence[RunStudy], benchmark: BenchmarkModels | None = None) -> dict[str, Any] | None:
    """Returns the table of refuted statements of all models; None if there are none."""
    examples: list[tuple[str, list[Refuted]]] = [
        (model.name, model.refuted) for model in (benchmark.models if benchmark else [])
    ]
    for run in runs:
        for model in run.answered:
            shown = refuted_statements(model.results, model.puzzles, EXAMPLES)
            examples.append((f"{run.name}, {model.title}", shown))
    rows = [[name, item.prompt_id, item.text, item.words] for name, refuted in examples for item in refuted]
    return {"head": ["", "puzzle", "statement", "clues that refute it"], "rows": rows} if rows else None


def frontier_sentence(line: Line | None, priced: Sequence[BenchmarkedModel], benchmark: BenchmarkModels | None) -> str:
    """Returns the line through the frontier in words, and the models that it leaves out; empty without a benchmark."""
    if benchmark is None:
        return ""
    if line is None:
        words = "Fewer than three models with a price beat all cheaper ones, so there is no line."
    else:
        names = ", ".join(_on_frontier(priced))
        words = (
            f"Frontier, the models that beat all cheaper ones: {names}. Accuracy in percent = "
            f"{100.0 * line.intercept:.2f} {100.0 * line.slope:+.2f} ln(cost), "
            f"R\N{SUPERSCRIPT TWO} {line.r_squared:.3f}; the line is not shifted."
        )
    unpriced = ", ".join(model.name for model in benchmark.models if not model.cost_per_answer)
    return f"{words} Without a price: {unpriced}." if unpriced else words


def _shown_models(runs: Sequence[RunStudy]) -> dict[str, Answered]:
    """Returns all models of a single run, or the latest of each of several runs, by the name in a legend."""
    if len(runs) == 1:
        return {model.title: model for model in runs[0].answered}
    return {run.name: run.answered[-1] for run in runs if run.answered}


def _priced(benchmark: BenchmarkModels | None) -> list[BenchmarkedModel]:
    return [model for model in benchmark.models if model.cost_per_answer] if benchmark else []


def _on_frontier(priced: Sequence[BenchmarkedModel]) -> list[str]:
    """Returns the names of the models that beat all cheaper ones, from the cheapest."""
    best = frontier([model.cost_per_answer or 0.0 for model in priced], [model.accuracy.mean for model in priced])
    return [priced[index].name for index in best]


def _benchmark_rows(benchmark: BenchmarkModels | None) -> list[list[str]]:
    return [
        [
            model.name,
            interval_text(model.accuracy),
            "" if model.cost_per_answer is None else f"{model.cost_per_answer:.4g}",
            "" if model.completion_tokens is None else f"{model.completion_tokens:,.0f}",
            *_verdict_cells(model.statements),
        ]
        for model in (benchmark.models if benchmark else [])
    ]


def _run_rows(run: RunStudy) -> list[list[str]]:
    return [
        [
            f"{run.name}, {model.title}",
            interval_text(model.accuracy),
            "",
            f"{model.tokens:,.1f}",
            *_verdict_cells(mean_statements(model.results)),
        ]
        for model in run.answered
    ]


def _verdict_cells(statements: Mapping[str, float] | None) -> list[str]:
    return [f"{statements[name]:.2f}" if statements and makes_statements(statements) else "" for name in VERDICTS]


def _fit_row(name: str, fit: PowerLaw, interval: PowerLawBand | None) -> list[str]:
    level = fit.saturating
    bounds = f" ({interval.slope.low:.3f} to {interval.slope.high:.3f})" if interval else ""
    return [
        name,
        f"{fit.slope:.3f}{bounds}",
        f"{math.exp(fit.intercept):.3f}",
        f"{fit.first} to {fit.last}",
        f"{np.std(fit.residuals):.3f}",
        f"{fit.aic:.1f}",
        *((f"{level.aic:.1f}", f"{level.level:.1%}") if level.is_plausible else ("", "")),
    ]


def _fit_json(run: RunStudy) -> dict[str, Any] | None:
    if run.fit is None:
        return None
    fit, interval = run.fit
    return {
        "slope": fit.slope,
        "slope_low": interval.slope.low if interval else None,
        "slope_high": interval.slope.high if interval else None,
        "intercept": fit.intercept,
        "first": fit.first,
        "last": fit.last,
        "aic": fit.aic,
        "saturating": vars(fit.saturating) if fit.saturating.is_plausible else None,
    }
