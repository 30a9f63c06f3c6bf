"""Stages of a recipe: overlays that are resolved against the recipe's own sections."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from stages.advance import StageEnd
from stages.finetune import FinetuneConfig
from stages.grade import GradeConfig
from stages.grpo.packing import PackConfig
from stages.sample import SampleConfig

SECTIONS = ("sample", "grade", "pack", "finetune")
"""Sections that a stage may change. The others hold for the whole run; evaluations stay comparable."""


class StageConfig(StageEnd):
    """One stage of a run: when it ends, what it begins with, and the settings in which it differs from the recipe."""

    name: str = Field(min_length=1, max_length=40, description="Name of the stage, for people.")
    reference: Literal["kept", "stage_start"] = Field(
        default="kept",
        description="Reference model of the KL term: that of the stage before, or the checkpoint that this one begins "
        "with.",
    )
    optimizer: Literal["kept", "fresh"] = Field(
        default="kept",
        description="`fresh`: the stage begins from the published checkpoint with a new optimizer, as a new process "
        "does.",
    )
    may_shrink: bool = Field(
        default=False, description="Allow a lower limit of completion tokens than in the stage before."
    )
    sample: SampleConfig = Field(default_factory=SampleConfig)
    grade: GradeConfig = Field(default_factory=GradeConfig)
    pack: PackConfig = Field(default_factory=PackConfig)
    finetune: FinetuneConfig = Field(default_factory=FinetuneConfig)

    @model_validator(mode="after")
    def _named_in_one_line(self) -> Self:
        if not self.name.isprintable():
            raise ValueError(f"name must be one line of printable characters, got {self.name!r}")
        return self

    def check_after(self, before: "StageConfig | None", *, is_last: bool) -> None:
        """Refuses a stage that cannot follow the one before it.

        Raises:
            ValueError: It has no end, or is the last one and has an end; or its completions are shorter than before.
        """
        if is_last and not self.is_open:
            raise ValueError(f"the last stage, {self.name!r}, ends with the run: drop its iterations and until")
        if not is_last and self.is_open:
            raise ValueError(f"{self.name!r} has no end: set its iterations or until; only the last stage needs none")
        if before is None or self.may_shrink:
            return
        tokens, earlier = self.sample.sampling.max_tokens, before.sample.sampling.max_tokens
        if tokens < earlier:
            raise ValueError(
                f"sample.sampling.max_tokens of {self.name!r} is {tokens}, less than the {earlier} of {before.name!r}: "
                "let contexts grow, or set may_shrink = true"
            )


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
