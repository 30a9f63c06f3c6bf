"""The registry of the figures of an evaluation: how tables show them, and their names in trackers.

To add one, let a stage store the number in its facts and add a line to `MEASURES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flows.report.metrics import interval_text, makes_statements, unfinished_text
from stages.statistics.estimates import Interval

MODES = ("sampled", "greedy")
"""How the answers of an evaluation are decoded: at the recipe's temperature, or as the most likely tokens."""


@dataclass(frozen=True)
class Measure:
    """One figure of an evaluation in one mode (sampled or greedy).

    Attributes:
        key: Its name in the mode's part of an evaluation's facts.
        title: Its title in tables of measurements; empty where it has no row of its own.
        words: Returns the text of a cell from the mode's facts; None for a mean with its interval.
        tracker: Its name in trackers, after the split and the mode; a value with several parts has a name for each.
        tracker_bounds: Whether trackers also get the bounds of its 95% interval.
        is_shown: Returns whether the facts of a mode have something to show.
    """

    key: str
    title: str = ""
    words: Callable[[Mapping[str, Any]], str] | None = None
    tracker: str = ""
    tracker_bounds: bool = False
    is_shown: Callable[[Mapping[str, Any]], bool] = lambda _: True

    def cell(self, mode_facts: Mapping[str, Any]) -> str:
        """Returns the text of its cell in a table."""
        return self.words(mode_facts) if self.words else interval_text(Interval(**mode_facts[self.key]))

    def tracked(self, mode_facts: Mapping[str, Any]) -> dict[str, float | None]:
        """Returns its numbers by tracker name."""
        value = mode_facts.get(self.key)
        if not isinstance(value, dict):
            return {self.tracker: value}
        if "mean" not in value:
            return {f"{self.tracker}/{part}": number for part, number in value.items()}
        bounds = {f"{self.tracker}_{end}": value[end] for end in ("low", "high")} if self.tracker_bounds else {}
        return {self.tracker: value["mean"], **bounds}


def _statements_cell(mode_facts: Mapping[str, Any]) -> str:
    """Returns the mean number of statements in a completion, and the mean number with each verdict."""
    if mode_facts["deductions"]["statements"] is None:
        return "not provable"
    return (
        "{statements:.1f}: {proved:.1f} proved, {restated:.1f} restated, {open:.1f} open, {contradicted:.1f} wrong"
    ).format(**mode_facts["deductions"])


MEASURES: tuple[Measure, ...] = (
    Measure("accuracy", "accuracy", tracker="accuracy", tracker_bounds=True),
    Measure("exact", "all answers right", tracker="exact"),
    Measure("completion_tokens_mean", "completion tokens", lambda facts: f"{facts['completion_tokens_mean']:.1f}",
            "mean_length"),
    Measure("truncated_fraction", "unfinished",
            lambda facts: unfinished_text(facts["truncated_fraction"], facts.get("early_stopped_fraction")),
            "clipped_ratio"),
    Measure("early_stopped_fraction", tracker="early_stopped_ratio"),
    Measure("deductions", "statements", _statements_cell, "statements",
            is_shown=lambda facts: makes_statements(facts["deductions"])),
)  # fmt: skip
"""The figures of an evaluation in one mode."""


def _tokens_cell(facts: Mapping[str, Any]) -> str:
    """Returns the tokens with their interval as `83.1 (79.5 to 86.7)`."""
    return "{mean:.1f} ({low:.1f} to {high:.1f})".format(**facts["tokens"])


STRATEGY_MEASURES: tuple[Measure, ...] = (
    Measure("accuracy", "accuracy"),
    Measure("exact", "all answers right"),
    Measure("tokens", "tokens a puzzle", _tokens_cell),
)
"""The figures of a strategy at test time."""

RELIABILITY_MEASURES: tuple[Measure, ...] = (
    Measure("pass_at", "pass@k"),
    Measure("best", "best@k"),
    Measure("majority", "majority@k"),
    Measure("majority_exact", "majority@k, all right"),
    Measure("majority_letters", "majority@k, by question"),
)
"""The figures of k samples of each puzzle."""
