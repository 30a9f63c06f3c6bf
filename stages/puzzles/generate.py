"""Generates puzzles of any family: the config says which family and how hard."""

from typing import Annotated

from pydantic import Field

from stages.puzzles import environment
from stages.puzzles.puzzle import Puzzle
from stages.puzzles.temporal_clue.config import TIERS, PuzzleConfig
from stages.puzzles.zebra.config import ZebraConfig

__all__ = ["TIERS", "AnyPuzzleConfig", "PuzzleConfig", "ZebraConfig", "generate"]

AnyPuzzleConfig = Annotated[PuzzleConfig | ZebraConfig, Field(discriminator="environment")]
"""The config of any family, told apart by its `environment`."""


def generate(config: PuzzleConfig | ZebraConfig, seed: int) -> Puzzle:
    """A puzzle with exactly one solution and no clue to spare; the same for (config, seed) on every machine.

    A plain function of picklable arguments: callers that want many run it in as many processes as they like.

    Args:
        config: Family and difficulty; `TIERS` has named ones (`reduced`, `easy`, `small`, `large`, `full`).
        seed: Any integer. Different seeds of a small config may give one mystery twice: compare `Puzzle.digest`.
    """
    return environment.get(config.environment).generate(config, seed)
