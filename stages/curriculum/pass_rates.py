"""Tables of pass rates, and the columns by which a curriculum sorts and filters puzzles."""

import json
import re
from collections.abc import Collection
from typing import Annotated, Any

import polars as pl
from pydantic import AfterValidator

from artifacts.errors import BadInputError
from artifacts.schemas import PASS_RATES, as_table

RUN = "run"
"""Name of the rates of the run's own policy: the newest that an iteration measured for a puzzle."""
RATES = ("accuracy", "exact", "tokens", "truncated")
SHARES = ("accuracy", "exact", "truncated")
"""Rates from 0 to 1."""
PLAIN = ("num_clues", "prompt_characters")
FORMS = f"{', '.join(PLAIN)}, difficulty:SIZE, or one of {', '.join(RATES)} with :{RUN} or :NAME of a rated model"
_COLUMN = re.compile(rf"(?:{'|'.join(PLAIN)}|(?:{'|'.join(RATES)}|difficulty):[A-Za-z0-9._-]{{1,40}})")


def _checked(column: str) -> str:
    if not _COLUMN.fullmatch(column):
        raise ValueError(f"no such column {column!r}: expected {FORMS}")
    return column


Column = Annotated[str, AfterValidator(_checked)]
"""Name of a number that every puzzle has: a size, or a pass rate."""


def rated_name(column: str) -> str | None:
    """Returns the name of the model whose rates a column holds, `RUN` for the run's own; None for other columns."""
    kind, _, name = column.partition(":")
    return name if kind in RATES else None


def is_share(column: str) -> bool:
    """Returns whether the values of a column are shares from 0 to 1."""
    return column.partition(":")[0] in SHARES


def rates(graded: pl.DataFrame, *, name: str, iteration: int, weights_digest: str) -> pl.DataFrame:
    """Returns the pass rate of each puzzle: rows of the `pass_rates` schema, sorted by puzzle.

    Args:
        graded: A row for each completion: `prompt_id`, `accuracy`, `exact`, `truncated`, and `tokens`, its length.
        name: Name of the model that wrote the completions.
        iteration: Number of the iteration that sampled them; 0 for none.
        weights_digest: Content digest of the model.
    """
    by_puzzle = graded.group_by("prompt_id").agg(
        pl.len().cast(pl.Int32).alias("samples"),
        pl.col("accuracy").mean(),
        pl.col("exact").cast(pl.Float64).mean(),
        pl.col("tokens").cast(pl.Float64).mean(),
        pl.col("truncated").cast(pl.Float64).mean(),
    )
    named = by_puzzle.with_columns(
        pl.lit(name).alias("name"),
        pl.lit(iteration, pl.Int32).alias("iteration"),
        pl.lit(weights_digest).alias("weights_digest"),
    )
    return named.select(*PASS_RATES.columns).sort("prompt_id")


def updated(pass_rates: pl.DataFrame | None, newer: pl.DataFrame) -> pl.DataFrame:
    """Returns pass rates in which newer ones replace those of the same puzzle and name."""
    if pass_rates is None:
        return newer
    kept = pass_rates.join(newer, on=["prompt_id", "name"], how="anti")
    return pl.concat([kept, newer]).sort("name", "prompt_id")


def rate_figures(pass_rates: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Returns figures of the pass rates by model, which people read in the facts of an artifact.

    They are the number of `puzzles` and, for the rates `accuracy` and `exact`, their `mean` and the shares of the
    puzzles whose rate is 0 (`at_0`) and 1 (`at_1`).
    """
    return {
        rated["name"][0]: {
            "puzzles": len(rated),
            **{column: _spread(rated[column]) for column in ("accuracy", "exact")},
        }
        for rated in pass_rates.partition_by("name")
    }


def _spread(values: pl.Series) -> dict[str, float]:
    totals = {"mean": values, "at_0": values == 0.0, "at_1": values == 1.0}
    return {name: float(of_all.sum()) / len(values) for name, of_all in totals.items()}


def column_values(puzzles: pl.DataFrame, pass_rates: pl.DataFrame | None, column: str) -> pl.Series:
    """Returns a column of each puzzle, in order; null where a puzzle has no rate.

    Args:
        puzzles: Rows of the `puzzles` schema.
        pass_rates: Rows of the `pass_rates` schema; None before anything was rated.
        column: Name of the column (see `FORMS`).

    Raises:
        BadInputError: A puzzle has no size of this name, or no model of this name was rated.
    """
    kind, _, name = column.partition(":")
    if kind == "num_clues":
        return puzzles["num_clues"].cast(pl.Float64)
    if kind == "prompt_characters":
        return puzzles["prompt"].str.len_chars().cast(pl.Float64)
    if kind == "difficulty":
        return _sizes(puzzles, name)
    rated = as_table([], PASS_RATES) if pass_rates is None else pass_rates
    if name != RUN and name not in rated["name"]:
        raise _missing(column, sorted(f"{kind}:{item}" for item in rated["name"].unique()))
    chosen = rated.filter(pl.col("name") == name).select("prompt_id", pl.col(kind).alias("value"))
    return puzzles.select("prompt_id").join(chosen, on="prompt_id", how="left", maintain_order="left")["value"]


def _sizes(puzzles: pl.DataFrame, name: str) -> pl.Series:
    sizes = [json.loads(item) for item in puzzles["difficulty"]]
    lacking = next((item for item in sizes if name not in item), None)
    if lacking is not None:
        raise _missing(f"difficulty:{name}", sorted(f"difficulty:{key}" for key in lacking))
    return pl.Series([float(item[name]) for item in sizes], dtype=pl.Float64)


def _missing(column: str, known: Collection[str]) -> BadInputError:
    there = ", ".join(known) or "none of this kind"
    return BadInputError(f"curriculum column {column!r}", "the puzzles do not have it", there, f"use {FORMS}")
