"""Generates Temporal Clue puzzles as `Puzzle` objects, with text and solution."""

from stages.environments.puzzle import Puzzle
from stages.environments.temporal_clue.config import PuzzleConfig
from stages.environments.temporal_clue.generation.directed import generate_directed
from stages.environments.temporal_clue.generation.generate import difficulty, generate_formal
from stages.environments.temporal_clue.language.text import formal_digest, write_prompt
from stages.environments.temporal_clue.proofs.steps import answers_in


def generate(config: PuzzleConfig, seed: int) -> Puzzle:
    """Returns a puzzle with exactly one solution and a minimal set of clues, the same for (config, seed) everywhere.

    Args:
        config: The difficulty.
        seed: Any integer. With a small config, different seeds may give the same formal puzzle (the same digest).
    """
    level: dict[str, int] = {}
    if config.concepts is None:
        formal, world = generate_formal(config, seed)
    else:
        directed = generate_directed(config, config.concepts, seed)
        formal, world = directed.puzzle, directed.world
        level = {"steps": directed.concepts.steps, "case_splits": directed.concepts.case_splits}
    digest = formal_digest(formal)
    return Puzzle(
        prompt_id=f"temporal-clue-{seed}-{digest[:8]}",
        environment="temporal_clue",
        prompt=write_prompt(formal),
        solution=answers_in(formal.scenario, world, formal.questions + formal.bonus),
        num_clues=len(formal.clues),
        seed=seed,
        digest=digest,
        difficulty={**difficulty(formal.scenario), **level},
    )
