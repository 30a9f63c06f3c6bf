"""What a run did before its first iteration, in figures and in words: texts of a teacher, pass rates, pretraining."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.lookup.history import RunRecord

_TITLES = {"accuracy": "accuracy", "exact": "all answers right"}


def selection_line(facts: Mapping[str, Any]) -> str:
    """Returns how many texts of a teacher were kept, and why the others were not, from the facts of their artifact."""
    rejected = ", ".join(f"{count} {reason}" for reason, count in facts["rejected"].items())
    kept = f"{facts['kept']} of {facts['sampled']} texts kept, for {facts['puzzles']} puzzles"
    return kept + (f"; rejected: {rejected}" if rejected else "")


def dropped_line(facts: Mapping[str, Any]) -> str:
    """Returns how many overlong prompts were left out of a puzzle set, from the facts of the shorter set."""
    parts = [f"{number} of {facts[split] + number} {split}" for split, number in facts["dropped"].items() if number]
    return f"{', '.join(parts)} puzzles dropped: prompts of {facts['context_tokens']} tokens or more"


def newest_rates(record: RunRecord) -> dict[str, dict[str, Any]]:
    """Returns the newest figures of pass rates by model (see `stages.curriculum.pass_rates.rate_figures`).

    Empty if the run rates no puzzles.
    """
    updated = [rates for item in record.iterations if (rates := item.facts("update_rates").get("rates"))]
    if updated:
        return updated[-1]
    return {} if record.pass_rates is None else record.pass_rates.facts["rates"]


def rate_line(figures: Mapping[str, Any]) -> str:
    """Returns the figures of one model's pass rates in words."""
    rates = [
        f"{title} {figures[name]['mean']:.1%} (0 for {figures[name]['at_0']:.1%} of them, 1 for "
        f"{figures[name]['at_1']:.1%})"
        for name, title in _TITLES.items()
    ]
    return ", ".join([f"{figures['puzzles']} puzzles", *rates])


@dataclass(frozen=True)
class Pretraining:
    """The training of a critic on stored rollouts.

    Attributes:
        run: The run whose rollouts it learned from.
        first: First iteration of these rollouts.
        last: Last iteration of these rollouts.
        steps: Number of optimizer steps.
        explained_variance: Share of the variance of iteration 1's rewards that the values explain, before the critic
            learns from them; None if it is not measured yet, or if all rewards are equal.
    """

    run: str
    first: int
    last: int
    steps: int
    explained_variance: float | None = None

    def line(self, shown: Callable[[str], str] = str) -> str:
        """Returns it in words; `shown` marks or escapes the name of the run."""
        span = f"iteration {self.first}" if self.first == self.last else f"iterations {self.first} to {self.last}"
        words = f"pretrained in {self.steps} steps on the rollouts of {shown(self.run)}, {span}"
        share = self.explained_variance
        return words + ("" if share is None else f"; explained variance of the rewards in iteration 1: {share:.1%}")


def pretraining_of(record: RunRecord) -> Pretraining | None:
    """Returns the pretraining of a run's critic; None if the run has none, or before it is done."""
    chosen = (record.recipe["value"] or {}).get("pretrain")
    if chosen is None or record.first_critic is None:
        return None
    first = next((item.facts("value") for item in record.iterations if item.number == 1), {})
    steps = len(record.first_critic.facts["steps"])
    return Pretraining(chosen["run"], chosen["first"], chosen["last"], steps, first.get("explained_variance/all"))


def preparation_lines(record: RunRecord, shown: Callable[[str], str] = str) -> list[tuple[str, str]]:
    """Returns what a run did before its first iteration, as pairs of a title and a line; empty if it did nothing.

    Args:
        record: The run.
        shown: Marks or escapes names that people chose.
    """
    lines = [("Puzzles", dropped_line(record.shorter.facts))] if record.shorter else []
    lines += [("Texts of the teacher", selection_line(manifest.facts)) for manifest in record.texts]
    lines += [(f"Pass rates of {shown(name)}", rate_line(rates)) for name, rates in newest_rates(record).items()]
    if pretraining := pretraining_of(record):
        lines.append(("Critic", pretraining.line(shown)))
    return lines
