"""The figures of a report, computed from its table of results."""

import numpy as np
import polars as pl

from stages.environments.tables import DEDUCTION_COLUMNS, unread_counts
from stages.statistics.estimates import estimate
from stages.statistics.records import Measurement, Measurements


def totals(results: pl.DataFrame) -> Measurements:
    """Returns the figures of a table of results by mode.

    Args:
        results: Rows of the `results` schema.
    """
    return Measurements(sampled=_measurement(results, "sampled"), greedy=_measurement(results, "greedy"))


def totals_by_task(results: pl.DataFrame, puzzles: pl.DataFrame) -> dict[str, Measurements]:
    """Returns the figures of each environment by its name, sorted; empty if all puzzles are of one environment.

    Args:
        results: Rows of the `results` schema.
        puzzles: Rows of the `puzzles` schema: the puzzles that were answered.
    """
    names = sorted(puzzles["environment"].unique().to_list())
    if len(names) < 2:
        return {}
    named = results.join(puzzles.select("prompt_id", "environment"), on="prompt_id", maintain_order="left")
    return {name: totals(named.filter(pl.col("environment") == name)) for name in names}


def _measurement(results: pl.DataFrame, mode: str) -> Measurement | None:
    rows = results.filter(pl.col("mode") == mode)
    if rows.is_empty():
        return None
    by_puzzle = rows.group_by("prompt_id", maintain_order=True).agg(
        pl.col("accuracy").mean(), pl.col("exact").cast(pl.Float64).mean()
    )
    return Measurement(
        accuracy=estimate(by_puzzle["accuracy"].to_list()),
        exact=estimate(by_puzzle["exact"].to_list()),
        deductions={name: _mean(rows[name]) for name in DEDUCTION_COLUMNS},
        completions=len(rows),
        completion_tokens_mean=float(np.mean(rows["completion_tokens"].to_numpy())),
        truncated_fraction=_share(rows, "length"),
        early_stopped_fraction=_share(rows, "early_stop"),
        unread=unread_counts(rows["answers"]),
    )


def _share(rows: pl.DataFrame, finish_reason: str) -> float:
    return float(np.mean((rows["finish_reason"] == finish_reason).to_numpy()))


def _mean(counts: pl.Series) -> float | None:
    counted = counts.drop_nulls()
    return float(np.mean(counted.to_numpy())) if len(counted) else None
