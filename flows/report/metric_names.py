"""A run's figures under the names that trackers show (see `flows.report.metrics` and `flows.report.measures`)."""

import math
from collections.abc import Mapping
from typing import Any

from artifacts.manifest import Manifest
from flows.lookup.history import IterationRecord
from flows.report import measures, metrics
from flows.report.measures import MODES
from flows.report.metrics import number


def iteration_metrics(record: IterationRecord) -> dict[str, float]:
    """Returns the finite figures of one iteration by tracker name.

    These are the metrics of the registry, the mean of each reward term (`rewards/format/mean`), the held-out
    measurement (`eval/sampled/accuracy`) and the seconds of each stage (`timing_s/sample`).
    """
    known = (*metrics.METRICS, *metrics.own_metrics([record]))
    values = {item.tracker: number(item.read(record)) for item in known if item.tracker}
    terms = {
        f"rewards/{fact.removeprefix('reward/')}": value
        for fact, value in record.facts("grade").items()
        if fact.startswith("reward/") and fact.count("/") == 2
    }
    seconds = {f"timing_s/{stage}": value for stage, value in record.seconds().items()}
    return _finite({**values, **terms, **_measured(record.facts("evaluate"), "eval"), **seconds})


def before_after_metrics(evaluations: Mapping[str, Manifest]) -> dict[str, float]:
    """Returns the finite figures on the test split, before and after training, by tracker name."""
    parts = [_measured(manifest.facts, f"test/{when}") for when, manifest in evaluations.items()]
    return _finite({name: value for part in parts for name, value in part.items()})


def _measured(facts: Mapping[str, Any], split: str) -> dict[str, float | None]:
    return {
        f"{split}/{mode}/{name}": value
        for mode in MODES
        if facts.get(mode)
        for measure in measures.MEASURES
        if measure.tracker
        for name, value in measure.tracked(facts[mode]).items()
    }


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}
