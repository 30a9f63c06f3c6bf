"""The figures of a report, from its table of results."""

from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from stages.puzzles.tables import DEDUCTION_COLUMNS
from stages.statistics import estimate


def totals(results: pl.DataFrame) -> dict[str, Any]:
    """Figures of a report by mode: accuracy and exact share with their intervals, statements, lengths, unfinished.

    The fraction that `early_stop` ended is there where it ended any.
    """
    figures: dict[str, Any] = {}
    for (mode,), rows in results.group_by("mode", maintain_order=True):
        by_puzzle = rows.group_by("puzzle_id", maintain_order=True).agg(
            pl.col("accuracy").mean(), pl.col("exact").cast(pl.Float64).mean()
        )
        figures[str(mode)] = {
            "accuracy": asdict(estimate(by_puzzle["accuracy"].to_list())),
            "exact": asdict(estimate(by_puzzle["exact"].to_list())),
            "deductions": {name: _mean(rows[name]) for name in DEDUCTION_COLUMNS},
            "completions": len(rows),
            "completion_tokens_mean": float(np.mean(rows["completion_tokens"].to_numpy())),
            "truncated_fraction": _share(rows, "length"),
            **({"early_stopped_fraction": stopped} if (stopped := _share(rows, "early_stop")) else {}),
        }
    return figures


def _share(rows: pl.DataFrame, finish_reason: str) -> float:
    return float(np.mean((rows["finish_reason"] == finish_reason).to_numpy()))


def _mean(counts: pl.Series) -> float | None:
    known = counts.drop_nulls()
    return float(np.mean(known.to_numpy())) if len(known) else None
