"""The order in which iterations take the train puzzles, and the filter before it: pure functions.

The puzzles of an iteration depend only on the seed, the iteration and the pass rates that were measured before it.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, Self

import polars as pl
from pydantic import Field, model_validator

from artifacts.config import Config
from stages.curriculum.pass_rates import RUN, Column, column_values, rated_name


class Shuffled(Config):
    """Passes over all puzzles, each in a random order of its own."""

    by: Literal["shuffled"] = "shuffled"


class Ascending(Config):
    """Passes over all puzzles from the lowest to the highest value of a column; equal ones in random order."""

    by: Literal["ascending"] = "ascending"
    column: Column = Field(description="Column to sort by, such as num_clues or tokens:NAME of a rated model.")

    @model_validator(mode="after")
    def _values_stay(self) -> Self:
        if rated_name(self.column) == RUN:
            raise ValueError(
                f"{self.column} changes while the run measures it, so a pass could skip puzzles: use a rate of a "
                "rated model, or by = 'pools'"
            )
        return self


class Pools(Config):
    """A random draw in which the weight of a puzzle depends on its pass rate (prime-rl's difficulty pools).

    Each iteration draws anew and takes no puzzle twice. The default weights are those of prime-rl's example.
    """

    by: Literal["pools"] = "pools"
    column: Column = Field(default=f"accuracy:{RUN}", description="Column with the rates.")
    bounds: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        default=(0.25, 0.75, 1.0),
        min_length=1,
        max_length=100,
        description="Highest rate of each pool, ascending; a higher rate belongs to the last pool.",
    )
    weights: tuple[Annotated[float, Field(gt=0, le=1e6)], ...] = Field(
        default=(0.2, 1.0, 0.2), description="Weight of a puzzle of each pool."
    )
    unseen_weight: float = Field(default=1.0, gt=0, le=1e6, description="Weight of a puzzle without a rate.")

    @model_validator(mode="after")
    def _one_weight_each(self) -> Self:
        if len(self.weights) != len(self.bounds):
            raise ValueError(f"{len(self.bounds)} bounds, but {len(self.weights)} weights: give one weight to each")
        if list(self.bounds) != sorted(set(self.bounds)):
            raise ValueError(f"bounds must ascend, got {list(self.bounds)}")
        return self

    def weight(self, rate: float | None) -> float:
        """Returns the weight of a puzzle with this rate."""
        if rate is None:
            return self.unseen_weight
        return self.weights[min(bisect_left(self.bounds, rate), len(self.bounds) - 1)]


Order = Shuffled | Ascending | Pools


class Condition(Config):
    """Bounds of a column. A puzzle without a rate satisfies every condition on the rate, so that it is tried."""

    column: Column = Field(description="Column that is compared.")
    above: float | None = Field(default=None, description="The value must be greater than this.")
    at_least: float | None = Field(default=None, description="The value must be this or greater.")
    below: float | None = Field(default=None, description="The value must be less than this.")
    at_most: float | None = Field(default=None, description="The value must be this or less.")

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if {self.above, self.at_least, self.below, self.at_most} == {None}:
            raise ValueError("a condition needs one of above, at_least, below, at_most")
        return self

    def expression(self) -> pl.Expr:
        """Returns the condition as an expression on a frame with the column."""
        value = pl.col(self.column)
        bounds = (
            (self.above, value.__gt__),
            (self.at_least, value.__ge__),
            (self.below, value.__lt__),
            (self.at_most, value.__le__),
        )
        tests = [compare(bound) for bound, compare in bounds if bound is not None]
        return pl.all_horizontal(tests).fill_null(True)


class Selection(Config):
    """Puzzles that satisfy all conditions, or a random share of them."""

    all: tuple[Condition, ...] = Field(max_length=20, description="Conditions that must all hold.")
    share: float = Field(default=1.0, gt=0, le=1, description="Share of these puzzles that is taken, chosen by seed.")

    @model_validator(mode="after")
    def _has_conditions(self) -> Self:
        if not self.all:
            raise ValueError("all is empty: name a condition, or drop the selection")
        return self


def columns_of(order: Order, where: Sequence[Selection]) -> list[str]:
    """Returns the columns that an order and a filter read, each once."""
    ordered = [] if isinstance(order, Shuffled) else [order.column]
    return list(dict.fromkeys([*ordered, *(condition.column for item in where for condition in item.all)]))


def eligible(
    train: pl.DataFrame, pass_rates: pl.DataFrame | None, where: Sequence[Selection], *, seed: int
) -> pl.DataFrame:
    """Returns the puzzles that at least one selection takes, in order; all of them if there is no selection.

    Args:
        train: Rows of the `puzzles` schema.
        pass_rates: Rows of the `pass_rates` schema; None if nothing was rated.
        where: The selections.
        seed: Seed of the shares. Whether a share includes a puzzle depends only on this seed, the puzzle's id and the
            number of the selection, so it is the same in every iteration.

    Raises:
        BadInputError: A column is missing.
    """
    if not where:
        return train
    columns = columns_of(Shuffled(), where)
    values = pl.DataFrame({column: column_values(train, pass_rates, column) for column in columns})
    taken = pl.repeat(False, len(train), eager=True)
    for number, selection in enumerate(where):
        meets = values.select(pl.all_horizontal([item.expression() for item in selection.all])).to_series()
        if selection.share < 1.0:
            lucky = [random.Random(f"{seed}/{number}/{name}").random() < selection.share for name in train["prompt_id"]]
            meets &= pl.Series(lucky)
        taken |= meets
    return train.filter(taken)


def take(
    puzzles: pl.DataFrame, pass_rates: pl.DataFrame | None, order: Order, count: int, position: int, seed: int
) -> pl.DataFrame:
    """Returns the puzzles of one iteration in the order in which they are sampled, each once.

    Args:
        puzzles: The puzzles to choose from.
        pass_rates: Rows of the `pass_rates` schema; None if nothing was rated.
        order: The order.
        count: Number of puzzles, at most `len(puzzles)`.
        position: Number of the iteration since the order began, from 1.
        seed: Seed of the order.

    Raises:
        BadInputError: A column is missing.
    """
    if isinstance(order, Shuffled):
        return stride(puzzles, count, position, seed)
    values = column_values(puzzles, pass_rates, order.column).to_list()
    if isinstance(order, Pools):
        chance = random.Random(f"{seed}/{position}")
        # The puzzles with the smallest of exponential times with these rates are a weighted draw without replacement
        # (Efraimidis and Spirakis, 2006).
        times = [-math.log(1.0 - chance.random()) / order.weight(value) for value in values]
        return puzzles[sorted(range(len(times)), key=times.__getitem__)[:count]]

    def ascending(indices: list[int]) -> None:
        indices.sort(key=lambda index: math.inf if values[index] is None else values[index])

    return stride(puzzles, count, position, seed, ascending)


def stride(
    puzzles: pl.DataFrame, count: int, position: int, seed: int, rearrange: Callable[[list[int]], None] = lambda _: None
) -> pl.DataFrame:
    """Returns the puzzles of one iteration, each once.

    Iterations take consecutive strides of an endless sequence of passes. Each pass has every puzzle once, in an
    order of its own. A stride that crosses the end of a pass may contain a puzzle twice; then it has fewer than `count`
    different ones.

    Args:
        puzzles: The puzzles of a pass, after the filter.
        count: Length of a stride, at most `len(puzzles)`.
        position: Number of the stride since the order began, from 1.
        seed: Seed of the passes' orders.
        rearrange: Sorts the shuffled indices of a pass in place; the sort must be stable.
    """
    total, first = len(puzzles), (position - 1) * count
    order: list[int] = []
    for epoch in range(first // total, (first + count - 1) // total + 1):
        indices = list(range(total))
        random.Random(f"{seed}/{epoch}").shuffle(indices)
        rearrange(indices)
        order += indices[max(0, first - epoch * total) : first + count - epoch * total]
    return puzzles[list(dict.fromkeys(order))]
