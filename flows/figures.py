"""The figures that people follow, read from a run's manifests; the one place that knows what stages call them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from flows.history import IterationRecord
from stages.records import Measurement
from stages.grpo.clipping import clip_fraction


@dataclass(frozen=True)
class IterationFigures:
    """One iteration; what has not been measured is None."""

    number: int
    reward: float | None
    reward_spread: float | None
    train_accuracy: float | None
    sampled: Measurement | None
    greedy: Measurement | None
    completion_tokens: float | None
    truncated_fraction: float | None
    early_stopped_fraction: float | None
    uniform_fraction: float | None
    entropy: float | None
    clip_fraction: float | None
    gap: float | None
    kl: float | None
    kl_penalty: float | None
    learning_rate: float | None
    steps: int
    skipped_steps: int
    tokens_per_s: float | None
    promoted: bool
    reason: str
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def total_s(self) -> float:
        """Wall time of the iteration's stages."""
        return sum(self.seconds.values())


def kl_titles(iterations: Iterable[IterationFigures]) -> dict[str, str]:
    """Titles of the figures that only a run with a reference has, by field: those that any of the iterations has."""
    known = list(iterations)
    titles = {"kl": "KL", "kl_penalty": "KL penalty"}
    return {name: title for name, title in titles.items() if any(getattr(item, name) is not None for item in known)}


def skipped_title(iterations: Iterable[IterationFigures]) -> list[str]:
    """Title of the number of optimizer steps that were skipped, alone in a list; empty where none was."""
    return ["skipped"] if any(item.skipped_steps for item in iterations) else []


def measurement(facts: dict[str, Any], mode: str) -> Measurement | None:
    """Returns one mode, `sampled` or `greedy`, of an evaluation's facts; None where it was not measured."""
    return Measurement.of(facts[mode], f"report, {mode}") if facts.get(mode) is not None else None


def iteration_figures(record: IterationRecord) -> IterationFigures:
    """The figures of one iteration."""
    grades, report, decision = record.facts("grade"), record.facts("evaluate"), record.facts("promote")
    steps = record.steps
    return IterationFigures(
        number=record.number,
        reward=grades.get("reward/mean"),
        reward_spread=grades.get("reward/std_within_group"),
        train_accuracy=grades.get("accuracy/mean"),
        sampled=measurement(report, "sampled"),
        greedy=measurement(report, "greedy"),
        completion_tokens=grades.get("completion_tokens/mean"),
        truncated_fraction=grades.get("truncated/fraction"),
        early_stopped_fraction=grades.get("early_stopped/fraction"),
        uniform_fraction=grades.get("groups/uniform_fraction"),
        entropy=mean_known(step["entropy"] for step in steps),
        clip_fraction=mean_known(clip_fraction(step) for step in steps),
        gap=mean_known(step["sampler_gap_mean"] for step in steps),
        kl=mean_known(step.get("kl") for step in steps),
        kl_penalty=mean_known(step.get("kl_penalty") for step in steps),
        learning_rate=steps[0]["learning_rate"] if steps else None,
        steps=len(steps),
        skipped_steps=sum(step.get("skipped", False) for step in steps),
        tokens_per_s=record.facts("sample").get("tokens_per_s"),
        promoted=bool(decision.get("promoted", False)),
        reason=decision.get("reason", ""),
        seconds=record.seconds(),
    )


def mean_known(values: Iterable[float | None]) -> float | None:
    """The mean of what is not None; None where nothing is."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
