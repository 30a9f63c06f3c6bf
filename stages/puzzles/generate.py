"""Generates puzzles of any family: the config says which family and how hard."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from stages.puzzles import environment
from stages.puzzles.puzzle import Puzzle
from stages.puzzles.temporal_clue.config import TIERS, PuzzleConfig
from stages.puzzles.zebra.config import ZebraConfig

__all__ = ["TIERS", "AnyPuzzleConfig", "PuzzleConfig", "ZebraConfig", "generate"]


def _family(config: Any) -> str:
    if isinstance(config, dict):
        return config.get("environment", "temporal_clue")
    return getattr(config, "environment", "temporal_clue")  # what is no config at all is refused as one of these


AnyPuzzleConfig = Annotated[
    Annotated[PuzzleConfig, Tag("temporal_clue")] | Annotated[ZebraConfig, Tag("zebra")], Discriminator(_family)
]
"""The config of any family, told apart by its `environment`; Temporal Clue where none is named."""


def generate(config: PuzzleConfig | ZebraConfig, seed: int) -> Puzzle:
    """A puzzle with exactly one solution and no clue to spare; the same for (config, seed) on every machine.

    A plain function of picklable arguments: callers that want many run it in as many processes as they like.

    Args:
        config: Family and difficulty; `TIERS` has named ones (`reduced`, `easy`, `small`, `large`, `full`).
        seed: Any integer. Different seeds of a small config may give one mystery twice: compare `Puzzle.digest`.
    """
    return environment.get(config.environment).generate(config, seed)
