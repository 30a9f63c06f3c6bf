"""The paired gain of one evaluation over another."""

from collections.abc import Collection

import polars as pl

from artifacts.reading import Artifact
from artifacts.schemas import RESULTS
from stages.statistics.estimates import Interval, estimate_gain


class PairedResults:
    """The results of two evaluations on the same split, for gains paired puzzle by puzzle.

    Puzzles and modes that only one evaluation has are left out. Each table is read once.

    Args:
        before: A report (see `stages.evaluate`).
        after: The report whose gain over `before` is computed.

    Raises:
        IntegrityError: A table is damaged.
    """

    def __init__(self, before: Artifact, after: Artifact) -> None:
        self._before, self._after = (report.read_table("results.parquet", RESULTS) for report in (before, after))

    def gain(self, mode: str, metric: str = "accuracy", among: Collection[str] | None = None) -> Interval | None:
        """Returns the mean difference `after - before` with its 95% interval, paired puzzle by puzzle.

        Args:
            mode: `sampled` or `greedy`.
            metric: `accuracy` or `exact`.
            among: Ids of the puzzles that count; None for all.

        Returns:
            The gain; None if no puzzle was measured in both.
        """
        after = self._after if among is None else self._after.filter(pl.col("prompt_id").is_in(among))
        return estimate_gain(after, self._before, mode=mode, metric=metric)

    def gains(self) -> dict[str, Interval]:
        """Returns the gain in accuracy by mode."""
        modes: list[str] = self._after["mode"].unique(maintain_order=True).to_list()
        return {mode: gain for mode in modes if (gain := self.gain(mode)) is not None}
