"""Generates puzzles of any family: the config says which family and how hard."""

from stages.puzzles import environment
from stages.puzzles.puzzle import Puzzle
from stages.puzzles.temporal_clue.config import TIERS, PuzzleConfig

__all__ = ["TIERS", "PuzzleConfig", "generate"]


def generate(config: PuzzleConfig, seed: int) -> Puzzle:
    """A puzzle with exactly one solution and no clue to spare; the same for (config, seed) on every machine.

    A plain function of picklable arguments: callers that want many run it in as many processes as they like.

    Args:
        config: Family and difficulty; `TIERS` has named ones (`reduced`, `easy`, `small`, `large`, `full`).
        seed: Any integer. Different seeds of a small config may give one mystery twice: compare `Puzzle.digest`.
    """
    return environment.get(config.environment).generate(config, seed)
