"""Applies the changes of each phase to the recipe's sections: plain settings, before they are validated."""

from typing import Any

SECTIONS = ("sample", "grade", "pack", "finetune")
"""Sections that a phase may change. All others hold for the whole run, so that evaluations are comparable."""


def with_base_sections(data: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe's plain settings with whole sections in each phase: the recipe's, changed by the phase.

    A phase's `sample.seed` is the recipe's plus the number of the phase, unless the phase has its own.
    """
    phases = data.get("phases")
    if not isinstance(phases, list):
        return data
    return {**data, "phases": [_resolved(data, number, phase) for number, phase in enumerate(phases)]}


def _resolved(data: dict[str, Any], number: int, phase: Any) -> Any:
    if not isinstance(phase, dict):
        return phase
    sections = {name: _laid_over(data.get(name, {}), phase.get(name, {})) for name in SECTIONS}
    sample, own = sections["sample"], phase.get("sample", {})
    seed = sample.get("seed") if isinstance(sample, dict) else None
    if isinstance(own, dict) and "seed" not in own and isinstance(seed, int):
        sections["sample"] = {**sample, "seed": seed + number}
    return {**phase, **sections}


def _laid_over(base: Any, changes: Any) -> Any:
    """Returns a section with changes; a section of another kind (`by`) replaces the base."""
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return changes
    if "by" in changes and changes["by"] != base.get("by"):
        return changes
    return {**base, **{name: _laid_over(base.get(name), value) for name, value in changes.items()}}
