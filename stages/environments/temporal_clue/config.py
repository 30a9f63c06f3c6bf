"""Settings of Temporal Clue puzzles: sizes, kinds of clues and questions, and names."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

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

Range = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]


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

    @model_validator(mode="after")
    def _within_the_game(self) -> Self:
        limits = {"suspects": (2, 10), "weapons": (1, 8), "rooms": (2, 17), "times": (1, 24), "motives": (0, 10)}
        for name, (low, high) in limits.items():
            least, most = getattr(self, name)
            if not low <= least <= most <= high:
                raise ValueError(f"{name}: found {least} to {most}, expected a range within {low} to {high}")
        if self.questions == "placements" and 2 + self.suspects[1] + self.weapons[1] > 26:
            raise ValueError("questions: more questions than letters")
        return self


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
