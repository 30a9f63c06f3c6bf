"""Formal data classes of zebra grids: attributes with one value for each house, clues about them, and questions."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Thing = tuple[int, int]
"""A value as a pair of indices (attribute, value). It represents the person that it belongs to."""

Relation = Literal["same", "left", "before", "next"]


@dataclass(frozen=True, slots=True)
class Grid:
    """The words of a puzzle.

    Attributes:
        attributes: Names of the attributes; the first one is `name`.
        values: Values of each attribute, one for each house.
    """

    attributes: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]

    @property
    def houses(self) -> int:
        """The number of houses."""
        return len(self.values[0])


@dataclass(frozen=True, slots=True)
class InHouse:
    """`thing` is in `house` (from 0); with `no` it is not."""

    thing: Thing
    house: int
    no: bool = False


@dataclass(frozen=True, slots=True)
class Related:
    """A relation between the persons of `first` and `second`; with `no` it is denied.

    `same`: they are one person. The other relations say where the house of `first` is: `left`: directly to the left of
    the house of `second`; `before`: somewhere to its left; `next`: next to it.
    """

    first: Thing
    relation: Relation
    second: Thing
    no: bool = False


Clue = InHouse | Related


@dataclass(frozen=True, slots=True)
class ZebraQuestion:
    """A question about the person of `thing`: the value of `attribute`, or the house if `attribute` is None."""

    thing: Thing
    attribute: int | None


@dataclass(frozen=True)
class ZebraPuzzle:
    """A whole puzzle without its text."""

    grid: Grid
    clues: tuple[Clue, ...]
    questions: tuple[ZebraQuestion, ...]


Houses = NDArray[np.int8]
"""N worlds: the house of each value of each attribute, int8 [N, attributes, values]."""


def holds(clue: Clue, worlds: Houses) -> NDArray[np.bool_]:
    """Returns for each world whether a clue is true in it, bool [N]."""
    if isinstance(clue, InHouse):
        truth = worlds[:, clue.thing[0], clue.thing[1]] == clue.house
        return truth ^ clue.no
    first, second = worlds[:, clue.first[0], clue.first[1]], worlds[:, clue.second[0], clue.second[1]]
    return related(clue, second - first)


def related(clue: Related, step: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Returns whether a clue is true, if `step` is the house of `second` minus that of `first`; both of any shape."""
    truth = {"same": step == 0, "left": step == 1, "before": step > 0, "next": np.abs(step) == 1}[clue.relation]
    return truth ^ clue.no
