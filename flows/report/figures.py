"""The figures of one iteration and one evaluation, read from a run's manifests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from flows.report import metrics
from flows.report.metrics import INTERVAL, OWN, Metric, MetricValue, Presence, named_own, number, values_of
from stages.statistics.records import Measurement

if TYPE_CHECKING:
    from flows.lookup.history import IterationRecord


@dataclass(frozen=True)
class IterationFigures:
    """The figures of one iteration.

    Attributes:
        number: Its number.
        values: Its metrics by key (see `flows.report.metrics.METRICS`); None if not measured.
        sampled: Held-out measurement of answers at the recipe's temperature; None if not measured.
        greedy: Held-out measurement of the most likely answers; None if not measured.
        promoted: Whether its checkpoint was promoted.
        seconds: Wall time of each stage that has published.
    """

    number: int
    values: dict[str, MetricValue]
    sampled: Measurement | None
    greedy: Measurement | None
    promoted: bool
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def value(self, key: str) -> float | None:
        """Returns a metric as one number, an interval as its mean; None if it was not measured.

        Raises:
            KeyError: The registry has no such metric.
        """
        return number(self.values.get(key) if key.startswith(OWN) else self.values[key])

    @property
    def total_s(self) -> float:
        """Wall time of all stages of the iteration."""
        return sum(self.seconds.values())


def measurement(facts: dict[str, Any], mode: str) -> Measurement | None:
    """Returns the measurement of one mode, `sampled` or `greedy`, from an evaluation's facts; None if it has none."""
    return Measurement.of(facts[mode], f"report, {mode}") if facts.get(mode) is not None else None


def iteration_figures(record: IterationRecord) -> IterationFigures:
    """Returns the figures of one iteration."""
    report = record.facts("evaluate")
    return IterationFigures(
        number=record.number,
        values=values_of(record),
        sampled=measurement(report, "sampled"),
        greedy=measurement(report, "greedy"),
        promoted=bool(record.facts("promote").get("promoted", False)),
        seconds=record.seconds(),
    )


def phase_starts(iterations: Sequence[IterationFigures]) -> list[int]:
    """Returns the first iteration of each phase of the run after the first phase; empty if the run has no phases."""
    staged = [(item.number, phase) for item in iterations if (phase := item.value("phase")) is not None]
    return [number for (_, before), (number, now) in pairwise(staged) if now != before]


def terminal_columns(iterations: Sequence[IterationFigures]) -> list[Metric]:
    """Returns the metrics of the terminal's table of iterations, in the order of its columns."""
    return _columns(iterations, lambda item: item.terminal != "")


def page_columns(iterations: Sequence[IterationFigures]) -> list[Metric]:
    """Returns the metrics of the HTML report's table of iterations that have values, in the order of its columns."""
    return measured(_columns(iterations, lambda item: item.page != ""), iterations)


def prefect_columns(iterations: Sequence[IterationFigures]) -> list[Metric]:
    """Returns the metrics of Prefect's table of iterations that have values, in the order of its columns."""
    return measured(_columns(iterations, lambda item: item.prefect is not None), iterations)


def plotted(iterations: Sequence[IterationFigures]) -> list[Metric]:
    """Returns the metrics that have a panel in the plot of a run's health: those that are not 0 throughout."""
    panels = _columns(iterations, lambda item: item.plotted)
    return [metric for metric in panels if any(item.value(metric.key) for item in iterations)]


def measured(columns: Sequence[Metric], iterations: Sequence[IterationFigures]) -> list[Metric]:
    """Returns the metrics that at least one iteration has."""
    return [metric for metric in columns if any(item.value(metric.key) is not None for item in iterations)]


def summary_metrics() -> list[Metric]:
    """Returns the metrics of an iteration in `summary.json`, in the order of its fields."""
    return sorted((item for item in metrics.METRICS if item.summary), key=lambda item: item.presence)


def compared() -> list[Metric]:
    """Returns the metrics of a comparison of recipes in the order of its rows; held-out results come last."""
    return sorted((item for item in metrics.METRICS if item.compare), key=lambda item: item.compare == INTERVAL)


def _columns(iterations: Sequence[IterationFigures], is_shown: Callable[[Metric], bool]) -> list[Metric]:
    own = named_own(key.removeprefix(OWN) for item in iterations for key in item.values if key.startswith(OWN))
    columns = [item for item in (*metrics.METRICS, *own) if is_shown(item) and _has_column(item, iterations)]
    return sorted(columns, key=lambda item: item.presence)


def _has_column(metric: Metric, iterations: Sequence[IterationFigures]) -> bool:
    values = [item.value(metric.key) for item in iterations]
    if metric.presence is Presence.WHERE_KNOWN:
        return any(value is not None for value in values)
    return any(values) if metric.presence is Presence.WHERE_NONZERO else True
