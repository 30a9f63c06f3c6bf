"""Puzzles of several environments in one stream, in fixed shares. Does not import Polars."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from pydantic import Field

from artifacts.config import Config
from stages.environments.config import GeneratorConfig
from stages.environments.tasks import TaskConfig


class MixturePart(Config):
    """One environment of a mixture."""

    puzzle: TaskConfig
    weight: int = Field(default=1, ge=1, le=1000, description="Share of the part, relative to the others.")


class MixtureConfig(GeneratorConfig):
    """Puzzles of several environments, which keep their own names: reports show the accuracy of each."""

    environment: Literal["mixture"] = Field(default="mixture", description="Name of the environment.")
    parts: list[MixturePart] = Field(
        min_length=1,
        max_length=200,
        description="The environments: `{ puzzle = { environment = ... }, weight = 2 }` each. The puzzles of a stream "
        "come from them in turn, by `weight` (1 to 1000, by default 1): of 3 successive puzzles, a part with weight "
        "2 gives 2 and a part with weight 1 gives 1. A part that repeats its puzzles gets a smaller share, because "
        "repeated puzzles are dropped.",
    )

    @property
    def tasks(self) -> tuple[TaskConfig, ...]:
        """The configs of the parts."""
        return tuple(part.puzzle for part in self.parts)

    def nth(self, number: int) -> TaskConfig:
        """Returns the config of puzzle `number` of a stream."""
        turns = _turns(tuple(part.weight for part in self.parts))
        return self.parts[turns[number % len(turns)]].puzzle


@lru_cache(maxsize=64)
def _turns(weights_P: Sequence[int]) -> tuple[int, ...]:
    """Returns the numbers of the parts in turn, [sum of weights], each as often as its weight and evenly spread.

    The rule is nginx's smooth weighted round robin. Each turn adds every part's weight to its credit, takes the part
    with the highest credit, and subtracts the sum of the weights from this credit.
    """
    credits_P, total = [0] * len(weights_P), sum(weights_P)
    turns: list[int] = []
    for _ in range(total):
        credits_P = [credit + weight for credit, weight in zip(credits_P, weights_P, strict=True)]
        part = credits_P.index(max(credits_P))
        credits_P[part] -= total
        turns.append(part)
    return tuple(turns)
