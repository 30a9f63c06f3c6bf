"""The paired gain of one evaluation over another."""

import polars as pl

from artifacts.reading import Artifact
from artifacts.schemas import RESULTS
from stages.statistics import Estimate, estimate_difference


def paired_gains(before: Artifact, after: Artifact, metric: str = "accuracy") -> dict[str, Estimate]:
    """Returns the mean difference `after - before` with its 95% interval by mode, paired puzzle by puzzle.

    Args:
        before: A report (see `stages.evaluate`).
        after: A report on the same split; puzzles and modes that one of them lacks are left out.
        metric: `accuracy` or `exact`.

    Raises:
        IntegrityError: A table is damaged.
    """
    both = _scores(after, metric).join(_scores(before, metric), on=["mode", "puzzle_id"], suffix="_before")
    return {
        str(mode): estimate_difference((rows["score"] - rows["score_before"]).to_list())
        for (mode,), rows in both.group_by("mode", maintain_order=True)
    }


def _scores(report: Artifact, metric: str) -> pl.DataFrame:
    """Returns a row for each mode and puzzle with the mean over its samples."""
    return (
        report.read_table("results.parquet", RESULTS)
        .group_by("mode", "puzzle_id", maintain_order=True)
        .agg(pl.col(metric).cast(pl.Float64).mean().alias("score"))
    )
