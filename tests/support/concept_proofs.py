"""Proofs about concept-directed puzzles, from their text alone, and the table of concepts that occur together.

`python -m tests.support.concept_proofs` writes `generation/co_occurrence.json` again, from 400 random puzzles.
"""

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.environments.puzzle import Puzzle
from stages.environments.temporal_clue.config import PuzzleConfig
from stages.environments.temporal_clue.environment import TEMPORAL_CLUE
from stages.environments.temporal_clue.generation import directed as directed_module
from stages.environments.temporal_clue.generation.directed import generate_directed
from stages.environments.temporal_clue.generation.generate import generate_formal
from stages.environments.temporal_clue.language.reader import read_formal
from stages.environments.temporal_clue.proofs.concepts import concepts_of
from stages.environments.temporal_clue.proofs.derivation import derive
from stages.environments.temporal_clue.proofs.solver import needless_clues, solve

TABLE = Path(directed_module.__file__).with_name("co_occurrence.json")
MEASURED = PuzzleConfig(suspects=(3, 3), weapons=(2, 2), rooms=(3, 4), times=(1, 2), motives=(0, 3))
"""A board on which every concept occurs."""


@dataclass(frozen=True)
class Proof:
    """The proved properties of one concept-directed puzzle.

    Attributes:
        unique: The clues of its text allow one world, and the stored answers are those of this world.
        minimal: None of the clues can be dropped.
        uses_all: The derivation, found again from the text, uses every concept that was asked for.
        level: Steps and case splits that are stored are those of that derivation.
        used: The concepts that it uses.
        asked: The concepts that were asked for.
    """

    unique: bool
    minimal: bool
    uses_all: bool
    level: bool
    used: frozenset[str]
    asked: frozenset[str]


def prove(config: PuzzleConfig, seed: int) -> Proof:
    """Proves the properties of a puzzle from its text; only the concepts drawn for it come from the generator."""
    assert config.concepts is not None
    puzzle, asked = TEMPORAL_CLUE.generate(config, seed), generate_directed(config, config.concepts, seed).asked
    reading = read_formal(puzzle.prompt)
    assert not reading.unread
    solved = solve(reading.puzzle)
    assert solved.world is not None
    found = concepts_of(reading.puzzle, derive(reading.puzzle))
    return Proof(
        unique=solved.world_unique and solved.answers == puzzle.solution,
        minimal=not needless_clues(reading.puzzle, solved.world),
        uses_all=asked <= found.used,
        level=(puzzle.difficulty["steps"], puzzle.difficulty["case_splits"]) == (found.steps, found.case_splits),
        used=found.used,
        asked=asked,
    )


def used_concepts(puzzle: Puzzle) -> frozenset[str]:
    """The concepts of a puzzle's derivation."""
    formal = read_formal(puzzle.prompt).puzzle
    return concepts_of(formal, derive(formal)).used


def entropy(sets: Iterable[frozenset[str]]) -> float:
    """Returns the entropy, in bits, of the set of concepts that a puzzle uses."""
    counts = Counter(sets)
    total = sum(counts.values())
    return -sum(count / total * math.log2(count / total) for count in counts.values())


def pair_counts(first: int, count: int) -> tuple[Counter[str], Counter[str]]:
    """Returns, for each pair "a b" of concepts, the numbers of random puzzles that use both and that allow both."""
    both, possible = Counter[str](), Counter[str]()
    for seed in range(first, first + count):
        formal, _ = generate_formal(MEASURED, seed)
        shape = formal.scenario.shape
        here = MEASURED.model_copy(update={"times": (1, shape.times), "motives": (0, len(shape.motive_counts))})
        used = concepts_of(formal, derive(formal)).used
        for pair in itertools.combinations_with_replacement(sorted(here.possible_concepts), 2):
            possible[" ".join(pair)] += 1
            both[" ".join(pair)] += set(pair) <= used
    return both, possible


def as_table(both: Counter[str], possible: Counter[str]) -> dict[str, dict[str, float]]:
    """Returns the shares in the form of the file."""
    names: Sequence[str] = sorted(MEASURED.possible_concepts)
    return {
        a: {b: round(both[pair] / max(1, possible[pair]), 3) for b in names if (pair := " ".join(sorted((a, b))))}
        for a in names
    }


if __name__ == "__main__":
    shares = as_table(*pair_counts(0, 400))
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in shares.items())
    TABLE.write_text("{" + ",\n".join(lines) + "}\n")
