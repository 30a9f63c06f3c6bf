"""Settings of a merge."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from artifacts.config import Config

Method = Literal["arcee_fusion", "average", "task_arithmetic", "ties"]
StoredName = Annotated[str, Field(pattern=r"^[^\s:]+$", max_length=500)]
"""A run, RUN@ITERATION or the key of a checkpoint."""


class MergeConfig(Config):
    """How models of one shape become one."""

    method: Method = Field(
        default="arcee_fusion",
        description="`arcee_fusion`: the base, with the elements of one model that differ from it most where the "
        "distributions of their rows differ; `average`: the mean; `task_arithmetic`: the base plus the sum of all "
        "differences from it; `ties`: the base plus the mean of the largest differences that agree in sign.",
    )
    weight: float = Field(
        default=1.0,
        ge=-100.0,
        le=100.0,
        description="Factor of the differences in `task_arithmetic`, and of their mean in `ties`.",
    )
    density: float = Field(
        default=0.5, gt=0.0, le=1.0, description="Share of each difference, its largest elements, that `ties` keeps."
    )

    @model_validator(mode="after")
    def _all_are_read(self) -> Self:
        for name in self.changed("weight", "density"):
            if name not in self.settings:
                raise ValueError(f"{name} has no effect on the method {self.method}: drop it, or choose another method")
        return self

    @property
    def settings(self) -> dict[str, str | float]:
        """The settings that have an effect on this method's result."""
        read = {"arcee_fusion": (), "average": (), "task_arithmetic": ("weight",), "ties": ("weight", "density")}
        return {name: getattr(self, name) for name in ("method", *read[self.method])}


class MergedModel(MergeConfig):
    """A merge of checkpoints of the run's store. Runs with the same merge share its result."""

    source: Literal["merged"] = "merged"
    models: tuple[StoredName, ...] = Field(
        min_length=1,
        max_length=64,
        description="The models, each a run (its promoted checkpoint), RUN@ITERATION or the key of a checkpoint.",
    )
    base: StoredName | None = Field(
        default=None,
        description="The model that the others are compared with, named in the same way: the second model of "
        "`arcee_fusion`, or the model that the others were trained from; null for `average`.",
    )

    @model_validator(mode="after")
    def _fit_the_method(self) -> Self:
        named = len(self.models)
        if self.method == "average":
            if self.base is not None or named < 2:
                raise ValueError(f"average takes two or more models and no base, not {named} and base {self.base!r}")
        elif self.base is None:
            raise ValueError(f"{self.method} needs a base")
        elif self.method == "arcee_fusion" and named != 1:
            raise ValueError(f"arcee_fusion takes a base and one model, not {named}; merge the result with the next")
        names = [*self.models, *([self.base] if self.base else [])]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"{twice!r} is named twice")
        return self
