"""Settings of tasks of reasoning-gym. Quick to import: the package is imported when a new recipe is checked."""

import json
from typing import Any, Self

from pydantic import Field, JsonValue, ModelWrapValidatorHandler, model_validator

from stages.environments.config import GeneratorConfig
from stages.environments.reasoning_gym.refused import REFUSED
from stages.environments.reasoning_gym.release import installed_release

PREFIX = "reasoning_gym"
INSTRUCTION = "Write your final answer between <answer> and </answer>."


class ReasoningGymConfig(GeneratorConfig):
    """Items of one generator of the package reasoning-gym, which the extra `reasoning-gym` installs."""

    environment: str = Field(
        pattern=rf"^{PREFIX}:[a-z][a-z0-9_]*$",
        max_length=100,
        examples=[f"{PREFIX}:TASK"],
        description="`reasoning_gym:` and the name of the generator, such as `reasoning_gym:knights_knaves`.",
    )
    level: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="Level of the generator's curriculum, from 0; null: the generator's own defaults.",
    )
    attributes: dict[str, JsonValue] = Field(
        default={},
        description="Settings of the generator by name, such as `{ n_people = 3 }`; they override those of `level`.",
    )
    instruction: str = Field(
        default=INSTRUCTION,
        description="Sentence below each question that says where to write the answer. The grader reads the text "
        "between the last `<answer>` and `</answer>`.",
    )
    partial_credit: bool = Field(
        default=False,
        description="Whether accuracy is the scorer's own score, which gives credit for parts of an answer, for its "
        "form or for a long answer that contains the right one. Otherwise only a full score counts.",
    )
    release: str | None = Field(
        default=None,
        max_length=40,
        description="Release of reasoning-gym that generates and grades; null: the installed one, whose number is then "
        "frozen with the recipe. Another release is refused, because it may ask and grade differently.",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _with_release(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Checks a new config against the installed release and freezes its number.

        One with a release is checked when its items are made, because reports read it without the package.
        """
        is_new = isinstance(data, dict) and data.get("release") is None
        config = handler({**data, "release": installed_release()} if is_new else data)
        if config.task in REFUSED:
            raise ValueError(f"environment: {config.environment} is refused: {REFUSED[config.task]}")
        if is_new:
            from stages.environments.reasoning_gym.generators import setting_problem

            if problem := setting_problem(config.task, config.level, json.dumps(config.attributes)):
                raise ValueError(problem)
        return config

    @property
    def task(self) -> str:
        """The name of the generator."""
        return self.environment.partition(":")[2]
