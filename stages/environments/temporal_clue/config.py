"""Settings of Temporal Clue puzzles: sizes, kinds of clues and questions, and names."""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from artifacts.config import Config
from stages.environments.config import GeneratorConfig

SUSPECTS = (
    "Miss Scarlet",
    "Mr. Green",
    "Mrs. White",
    "Mrs. Peacock",
    "Colonel Mustard",
    "Professor Plum",
    "Miss Peach",
    "Sgt. Gray",
    "Monsieur Brunette",
    "Madame Rose",
)
WEAPONS = ("Candlestick", "Knife", "Lead Pipe", "Revolver", "Rope", "Wrench", "Horseshoe", "Poison")
ROOMS = (
    "Hall",
    "Lounge",
    "Dining Room",
    "Kitchen",
    "Ballroom",
    "Conservatory",
    "Billiard Room",
    "Library",
    "Study",
    "Carriage House",
    "Cloak Room",
    "Trophy Room",
    "Drawing Room",
    "Gazebo",
    "Courtyard",
    "Fountain",
    "Studio",
)
MOTIVES = ("Revenge", "Jealousy", "Greed", "Power", "Hatred", "Anger", "Fear", "Ambition", "Betrayal", "Pride")

CASE_SPLIT = "case_split"
Concept = Literal[
    "At", "SameRoom", "Together", "Beside", "Moved", "Carried", "HasMotive", "MurderedBy", "KilledWith",
    "MurderedIn", "MurderedAt", "Either", "Iff",
    "elimination", "scene", "alone", "stays", "moves", "carrying", "motives", "case_split",
]  # fmt: skip
"""A kind of clue (its class in `formal`), a rule of the game (see `proofs.rules.Rule`), or `case_split`."""

Range = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]


class ConceptConfig(Config):
    """Concepts that the derivation of each puzzle must use, drawn for each puzzle, and its level."""

    count: Range = Field(default=(2, 3), description="Number of concepts that are drawn for a puzzle.")
    among: tuple[Concept, ...] = Field(
        default=(), description="Concepts to draw from; none: all that the puzzle's board and settings allow."
    )
    case_splits: Range = Field(
        default=(0, 1000), description="Number of steps of the derivation that need cases to be tried."
    )
    steps: Range = Field(default=(0, 1000), description="Number of steps of the derivation that restate no clue.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for name in ("count", "case_splits", "steps"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: found {low} to {high}, expected the smaller number first")
        if self.among and self.count[1] > len(set(self.among)):
            raise ValueError(f"count: {self.count[1]} concepts of the {len(set(self.among))} in among")
        if CASE_SPLIT in self.among and self.case_splits[1] == 0:
            raise ValueError("case_splits: at most 0, but case_split is among the concepts")
        return self


class PuzzleConfig(GeneratorConfig):
    """Difficulty of generated puzzles. Sizes are drawn uniformly from their ranges, which are inclusive."""

    environment: Literal["temporal_clue"] = Field(default="temporal_clue", description="Name of the environment.")
    suspects: Range = Field(default=(2, 2), description="Number of suspects, 2 to 10.")
    weapons: Range = Field(default=(2, 2), description="Number of weapons, 1 to 8.")
    rooms: Range = Field(default=(2, 2), description="Number of rooms, 2 to 17.")
    times: Range = Field(default=(1, 1), description="Number of times, 1 to 24; with 1 there is no time dimension.")
    motives: Range = Field(default=(0, 0), description="Number of motives, at most 10; with 0 or 1 there are none.")
    shared_motives: bool = Field(
        default=False,
        description="Whether several suspects may have the same motive. If not, there are as many motives as suspects, "
        "or none.",
    )
    connectives: bool = Field(
        default=True, description="Whether clues may join two placements by `or` and `if and only if`."
    )
    referents: bool = Field(
        default=True,
        description="Whether clues may refer to the murderer, the murder weapon or a suspect with a given motive.",
    )
    fixed_cast: bool = Field(
        default=False, description="Whether all puzzles have the same suspects and weapons, in the same order."
    )
    fixed_rooms: bool = Field(
        default=False,
        description="Whether all puzzles have the same rooms in the same order; the number of columns still varies.",
    )
    questions: Literal["published", "placements"] = Field(
        default="published",
        description="Questions of a puzzle. `published`: at most eight that no clue answers directly. `placements`: "
        "murderer, room, and where every suspect and weapon was at the first time, always in this order.",
    )

    concepts: ConceptConfig | None = Field(
        default=None,
        description="Kinds of clues and deduction rules that the derivation of a puzzle must use, and its level; null: "
        "no requirement.",
    )

    @model_validator(mode="after")
    def _within_the_game(self) -> Self:
        limits = {"suspects": (2, 10), "weapons": (1, 8), "rooms": (2, 17), "times": (1, 24), "motives": (0, 10)}
        for name, (low, high) in limits.items():
            least, most = getattr(self, name)
            if not low <= least <= most <= high:
                raise ValueError(f"{name}: found {least} to {most}, expected a range within {low} to {high}")
        if self.questions == "placements" and 2 + self.suspects[1] + self.weapons[1] > 26:
            raise ValueError("questions: more questions than letters")
        if self.concepts and (absent := [one for one in self.concepts.among if one not in self.possible_concepts]):
            raise ValueError(f"concepts.among: {absent[0]!r} occurs in no puzzle of these sizes and settings")
        return self

    @property
    def possible_concepts(self) -> tuple[Concept, ...]:
        """The concepts that some puzzle of these sizes and settings can use."""
        asked = self.questions == "placements"
        timed, motives = self.times[1] > 1, self.motives[1] > 1
        absent: set[str] = set() if self.connectives else {"Either", "Iff"}
        absent |= set() if timed else {"Together", "Moved", "Carried", "MurderedAt", "stays", "moves", "carrying"}
        absent |= set() if motives else {"HasMotive", "motives"}
        absent |= {"MurderedIn"} if asked else set()
        absent |= {"MurderedBy"} if asked and not motives else set()
        return tuple(one for one in get_args(Concept) if one not in absent)


TIERS: dict[str, PuzzleConfig] = {
    "reduced": PuzzleConfig(
        connectives=False, referents=True, fixed_cast=True, fixed_rooms=True, questions="placements"
    ),
    "easy": PuzzleConfig(suspects=(2, 3), weapons=(2, 3), rooms=(2, 3)),
    "small": PuzzleConfig(suspects=(3, 5), weapons=(2, 4), rooms=(4, 6), times=(1, 3), motives=(0, 5)),
    "large": PuzzleConfig(suspects=(8, 8), weapons=(6, 6), rooms=(10, 10), times=(9, 9), motives=(8, 8)),
    "full": PuzzleConfig(suspects=(10, 10), weapons=(8, 8), rooms=(17, 17), times=(11, 11), motives=(10, 10)),
}
"""Named difficulties, easiest first: `reduced`, for models without any skill, to `full`, the whole board."""
