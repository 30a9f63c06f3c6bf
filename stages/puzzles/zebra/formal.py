"""The zebra grid in formal terms: attributes with as many values as houses, and what can be said about them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Thing = tuple[int, int]
"""A value: (attribute, value), by index. It stands for the person it belongs to."""

Relation = Literal["same", "left", "before", "next"]


@dataclass(frozen=True, slots=True)
class Grid:
    """The words of a puzzle.

    Attributes:
        attributes: Names of the attributes, the first of which is `name`.
        values: Values of each attribute, one a house.
    """

    attributes: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]

    @property
    def houses(self) -> int:
        """Number of houses."""
        return len(self.values[0])


@dataclass(frozen=True, slots=True)
class InHouse:
    """`thing` is in `house` (from 0), or with `no` is not."""

    thing: Thing
    house: int
    no: bool = False


@dataclass(frozen=True, slots=True)
class Related:
    """`first` and `second` belong to one person (`same`), or their houses stand in a relation.

    `left`: directly to the left of; `before`: somewhere to the left of; `next`: beside. `no` denies it.
    """

    first: Thing
    relation: Relation
    second: Thing
    no: bool = False


Clue = InHouse | Related


@dataclass(frozen=True, slots=True)
class Asked:
    """A question: the house of `thing` (attribute None), or the value of `attribute` that goes with it."""

    thing: Thing
    attribute: int | None


@dataclass(frozen=True)
class ZebraPuzzle:
    """A whole puzzle without its text."""

    grid: Grid
    clues: tuple[Clue, ...]
    questions: tuple[Asked, ...]


Houses = NDArray[np.int8]
"""Worlds: the house of each value of each attribute, int8 [N, attributes, values]."""


def holds(clue: Clue, worlds: Houses) -> NDArray[np.bool_]:
    """Where `clue` is true, bool [N]."""
    if isinstance(clue, InHouse):
        truth = worlds[:, clue.thing[0], clue.thing[1]] == clue.house
        return truth ^ clue.no
    first, second = worlds[:, clue.first[0], clue.first[1]], worlds[:, clue.second[0], clue.second[1]]
    step = second - first
    truth = {"same": step == 0, "left": step == 1, "before": step > 0, "next": np.abs(step) == 1}[clue.relation]
    return truth ^ clue.no
