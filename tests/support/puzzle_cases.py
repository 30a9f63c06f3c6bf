"""Puzzles that several tests use."""

from pathlib import Path

from stages.environments.puzzle import Puzzle
from stages.environments.temporal_clue.formal import (
    At,
    Beside,
    FormalPuzzle,
    HasMotive,
    KilledWith,
    MurderedAt,
    Question,
    Ref,
    SameRoom,
    Scenario,
)
from stages.environments.temporal_clue.language.text import formal_digest, write_prompt

VAL = Path(__file__).parents[2].parent / "shared" / "data" / "temporal-clue" / "val.json"

TWO_ROOMS = FormalPuzzle(
    Scenario(("Miss Peach", "Mrs. White"), ("Lead Pipe", "Rope"), ("Billiard Room", "Lounge"), columns=2),
    (KilledWith(0), SameRoom(Ref("weapon", 1), Ref("boddy")), Beside(Ref("suspect", 0), "west", Ref("boddy"))),
    (Question("murderer"), Question("room")),
    tuple(Question("where", Ref(kind, i)) for kind in ("suspect", "weapon") for i in (0, 1)),  # type: ignore[arg-type]
)
"""Solved by hand: Mr. Boddy is east of Miss Peach, so in the Lounge with Mrs. White and both weapons."""

_FIVE = FormalPuzzle(
    Scenario(
        ("Miss Peach", "Miss Scarlet"),
        ("Rope", "Knife"),
        ("Lounge", "Hall"),
        columns=1,
        times=("11:30 PM", "12:00 AM"),
        motives=("Fear", "Greed"),
        motive_counts=(1, 1),
    ),
    (MurderedAt(0), At(Ref("suspect", 0), 0, 0), HasMotive(0, 0)),
    (Question("murderer"), Question("weapon"), Question("room"), Question("time"), Question("motive")),
)

FIVE_LETTERS = Puzzle(
    prompt_id="five-letters",
    environment="temporal_clue",
    prompt=write_prompt(_FIVE),
    solution={"A": "Miss Peach", "B": "Rope", "C": "Lounge", "D": "11:30 PM", "E": "Fear"},
    num_clues=3,
    seed=None,
    digest=formal_digest(_FIVE),
    difficulty={},
)
"""The puzzle of the table of ten strings: one answer of each type."""
