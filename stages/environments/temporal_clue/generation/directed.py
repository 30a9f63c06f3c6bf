"""Concept-directed puzzles: concepts are drawn first, then a puzzle is found whose derivation uses all of them.

PromptCoT (arXiv 2503.02324) draws concepts, lets a model write a rationale and a problem, and asks judges whether the
problem uses the concepts. Here the rationale is the derivation, and CP-SAT proves which concepts it uses. Concepts are
drawn by PromptCoT's rule with two changes. The similarity of embeddings is left out. Shares replace counts, because
they cannot overflow in the softmax and have a scale that suits a temperature of 0.2.
"""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from artifacts.errors import BadInputError
from stages.environments.temporal_clue.config import ConceptConfig, PuzzleConfig
from stages.environments.temporal_clue.formal import FormalPuzzle, Scenario
from stages.environments.temporal_clue.generation.generate import attempt_puzzle
from stages.environments.temporal_clue.generation.scenario import draw_scenario
from stages.environments.temporal_clue.proofs.concepts import Concepts, concepts_of
from stages.environments.temporal_clue.proofs.derivation import derive
from stages.environments.temporal_clue.worlds import World

TEMPERATURE = 0.2
ATTEMPTS = 12
"""Worlds of a scenario that are tried before board and concepts are drawn again."""
ROUNDS = 200
"""Number of times that board and concepts are drawn before a config counts as impossible."""


@dataclass(frozen=True)
class Directed:
    """A concept-directed puzzle.

    Attributes:
        puzzle: The puzzle.
        world: Its only solution.
        asked: Concepts that were drawn for it.
        concepts: Concepts that its derivation uses; they include `asked`.
    """

    puzzle: FormalPuzzle
    world: World
    asked: frozenset[str]
    concepts: Concepts


@lru_cache(maxsize=1)
def co_occurrence() -> dict[str, dict[str, float]]:
    """Returns the share of random puzzles that use two concepts, among puzzles whose board allows both, by concept.

    The entry of a concept with itself is its own share. `python -m tests.support.concept_proofs` measures them again.
    """
    return json.loads(Path(__file__).with_name("co_occurrence.json").read_text())


def draw_concepts(
    count: int, among: Sequence[str], shares: Mapping[str, Mapping[str, float]], rng: random.Random
) -> frozenset[str]:
    """Returns different concepts: the first by its share, each further one by how often it occurs with those drawn.

    The probability of a further concept is softmax(sum of its shares with the drawn ones / `TEMPERATURE`).

    Args:
        count: Number of concepts; at most all of `among` are returned.
        among: Concepts to draw from.
        shares: See `co_occurrence`.
    """
    drawn: list[str] = []
    while len(drawn) < min(count, len(among)):
        left = [one for one in among if one not in drawn]
        if not drawn:
            weights = [shares[one][one] + 1e-3 for one in left]
        else:
            scores = [sum(shares[one][other] for other in drawn) / TEMPERATURE for one in left]
            weights = [math.exp(score - max(scores)) for score in scores]
        drawn += rng.choices(left, weights)
    return frozenset(drawn)


def allowed(config: PuzzleConfig, directions: ConceptConfig, scenario: Scenario) -> list[str]:
    """Returns the concepts to draw from that a scenario allows."""
    here = config.model_copy(
        update={"times": (1, max(1, len(scenario.times))), "motives": (0, len(scenario.motives))}
    ).possible_concepts
    return [one for one in directions.among or here if one in here and _fits_level(one, directions)]


def _fits_level(concept: str, directions: ConceptConfig) -> bool:
    return concept != "case_split" or directions.case_splits[1] > 0


def generate_directed(config: PuzzleConfig, directions: ConceptConfig, seed: int) -> Directed:
    """Returns a puzzle whose derivation uses all concepts that were drawn for it, the same on every machine.

    If no puzzle is found with the drawn concepts, concepts are drawn again, so rare combinations are rarer than drawn.

    Raises:
        BadInputError: No puzzle was found in `ROUNDS` rounds.
    """
    rng = random.Random(f"temporal_clue:concepts:{seed}")
    for _ in range(ROUNDS):
        scenario = draw_scenario(config, rng)
        asked = draw_concepts(
            rng.randint(*directions.count), allowed(config, directions, scenario), co_occurrence(), rng
        )
        if len(asked) < directions.count[0]:
            continue
        for _ in range(ATTEMPTS):
            if (made := attempt_puzzle(config, scenario, rng, asked)) and (
                concepts := _suitable(made[0], asked, directions)
            ):
                return Directed(*made, asked, concepts)
    raise BadInputError(
        "puzzles.puzzle.concepts", f"no such puzzle in {ROUNDS * ATTEMPTS} attempts",
        "concepts and a level that the board allows", "widen its ranges, or enlarge the board",
    )  # fmt: skip


def _suitable(puzzle: FormalPuzzle, asked: frozenset[str], directions: ConceptConfig) -> Concepts | None:
    """Returns the concepts of a puzzle's derivation if they include `asked` and the level fits; else None."""
    kinds = {type(clue).__name__ for clue in puzzle.clues}
    if any(one[0].isupper() and one not in kinds for one in asked):
        return None  # checked before the derivation, which takes most of the time
    found = concepts_of(puzzle, derive(puzzle))
    low, high = directions.case_splits
    fewest, most = directions.steps
    fits = asked <= found.used and low <= found.case_splits <= high and fewest <= found.steps <= most
    return found if fits else None
