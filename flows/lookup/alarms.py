"""Where a run's reward rises while its held-out accuracy falls, by the recipe's rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stages.promotion.reward_alarm import AlarmPoint, AlarmWindow, RewardAlarm, alarm_windows

if TYPE_CHECKING:
    from flows.lookup.history import IterationRecord


def with_alarms(iterations: Sequence[IterationRecord], recipe: Mapping[str, Any]) -> list[IterationRecord]:
    """Returns iterations with the comparison of reward and held-out accuracy that the run's recipe asks for.

    Args:
        iterations: All iterations of a run so far, in order.
        recipe: The run's recipe, as JSON.
    """
    found = alarm_windows((alarm_point(item, recipe) for item in iterations), alarm_rule(recipe))
    return [replace(item, alarm=found.get(item.number)) for item in iterations]


def alarm_rule(recipe: Mapping[str, Any]) -> RewardAlarm | None:
    """Returns the rule by which a run compares reward with held-out accuracy; None if its recipe has none."""
    rule = recipe["alarm"]
    return RewardAlarm(**rule) if rule else None


def alarm_point(record: IterationRecord, recipe: Mapping[str, Any]) -> AlarmPoint:
    """Returns what the comparison of reward with held-out accuracy needs of an iteration.

    The accuracy is the one that decides on promotion.
    """
    measured, promote = record.facts("evaluate"), recipe["promote"]
    accuracy = measured[promote["mode"]][promote["metric"]]["mean"] if measured.get(promote["mode"]) else None
    return record.number, record.facts("grade").get("reward/mean"), accuracy


def alarms_of(iterations: Sequence[IterationRecord]) -> list[AlarmWindow]:
    """Returns the comparison at which each alarm (reward rises while held-out accuracy falls) begins."""
    certain = [item.alarm if item.alarm and item.alarm.certain else None for item in iterations]
    return [now for before, now in zip([None, *certain], certain, strict=False) if now and not before]
