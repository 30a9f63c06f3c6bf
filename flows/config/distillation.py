"""The section `distil` of a recipe: supervised fine-tuning on the texts of a teacher."""

from typing import Self

from pydantic import Field, model_validator

from artifacts.config import Config
from stages.environments.capabilities import ChecksFormat, WritesAnswers, WritesDerivations
from stages.environments.corruption import NEEDED
from stages.environments.puzzle import Taught
from stages.grade import NeededCapability
from stages.optional.sft import SftConfig
from stages.sample import SampleConfig
from stages.texts.selection import DistilConfig

STUDENT = "student"
SOLVER = "solver"
ANSWERS = "answers/"
"""First part of the keys of a benchmark's stored answers."""


class DistillationConfig(Config):
    """Supervised fine-tuning on the selected texts of a teacher, in rounds."""

    teacher: str = Field(
        default=STUDENT,
        description="The teacher: `student`, the model itself, as in rejection sampling; `solver`, the environment's "
        "solver; the key of a benchmark's stored answers, `answers/...`; or a checkpoint: a key, RUN@ITERATION, a "
        "folder, hub:ID or gguf:PACKAGE/FILE.",
    )
    rounds: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Rounds of sampling, selection and training, each on the next train puzzles; more than one only "
        "for the teacher `student`, which changes.",
    )
    sample: SampleConfig = Field(default_factory=SampleConfig, description="Sampling of a teacher that is a model.")
    texts: DistilConfig = Field(default_factory=DistilConfig, description="Selection of the texts.")
    sft: SftConfig = Field(default_factory=SftConfig, description="Training on the texts.")

    @property
    def taught(self) -> Taught | None:
        """Style of the derivations to train on; None if the solver writes none."""
        return None if self.teacher != SOLVER or self.texts.written == "answers" else self.texts.written

    @property
    def samples(self) -> bool:
        """Whether the teacher is a model that is sampled from."""
        return self.teacher != SOLVER and not self.teacher.startswith(ANSWERS)

    @property
    def puzzles_per_round(self) -> int:
        """The number of train puzzles that a round asks for."""
        if self.teacher.startswith(ANSWERS):
            return 0
        return (self.texts.puzzles or 0) if self.teacher == SOLVER else self.sample.stride

    def needs(self) -> list[NeededCapability]:
        """Returns the capabilities of the environment that the settings need."""
        required: list[NeededCapability] = []
        if self.teacher == SOLVER and self.texts.written != "answers":
            required.append(
                NeededCapability(
                    "distil.teacher = 'solver'", WritesDerivations, "set distil.texts.written to 'answers'"
                )
            )
        if self.teacher == SOLVER:
            required.append(NeededCapability("distil.teacher = 'solver'", WritesAnswers, "choose another teacher"))
        if self.texts.well_formed:
            required.append(NeededCapability("distil.texts.well_formed", ChecksFormat, "set it to false"))
        if self.texts.corruption is not None:
            kind = self.texts.corruption.kind
            where, other = f"distil.texts.corruption.kind = '{kind}'", "choose another corruption, or none"
            required += [NeededCapability(where, ability, other) for ability in NEEDED[kind]]
        return required

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.rounds > 1 and self.teacher != STUDENT:
            raise ValueError(f"rounds is {self.rounds}, but the teacher {self.teacher!r} does not change: set it to 1")
        if self.teacher != SOLVER:
            self.texts.refuse_unread(("written", "puzzles"), f"on the teacher {self.teacher!r}, only on 'solver'")
        if self.sample.sampling.tool_calls:
            raise ValueError("sample.sampling.tool_calls adds words of the solver to the teacher's: set it to 0")
        if self.sample.resample is not None:
            raise ValueError("sample.resample replaces groups for GRPO, not for texts: set it to null")
        return self
