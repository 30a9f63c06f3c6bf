"""Lays the changes of a stage over the sections of its recipe: plain settings, before they are validated."""

from typing import Any

SECTIONS = ("sample", "grade", "pack", "finetune")
"""Sections that a stage may change. The others hold for the whole run; evaluations stay comparable."""


def with_base_sections(data: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe's plain settings in which each stage has whole sections: the recipe's own with its changes.

    A stage's `sample.seed` is the recipe's plus the number of the stage, unless the stage has its own.
    """
    stages = data.get("stages")
    if not isinstance(stages, list):
        return data
    return {**data, "stages": [_resolved(data, number, stage) for number, stage in enumerate(stages)]}


def _resolved(data: dict[str, Any], number: int, stage: Any) -> Any:
    if not isinstance(stage, dict):
        return stage
    sections = {name: _laid_over(data.get(name, {}), stage.get(name, {})) for name in SECTIONS}
    sample, own = sections["sample"], stage.get("sample", {})
    seed = sample.get("seed") if isinstance(sample, dict) else None
    if isinstance(own, dict) and "seed" not in own and isinstance(seed, int):
        sections["sample"] = {**sample, "seed": seed + number}
    return {**stage, **sections}


def _laid_over(base: Any, changes: Any) -> Any:
    """Returns a section with changes; a section of another kind (`by`) replaces the base."""
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return changes
    if "by" in changes and changes["by"] != base.get("by"):
        return changes
    return {**base, **{name: _laid_over(base.get(name), value) for name, value in changes.items()}}
