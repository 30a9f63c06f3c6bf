"""The paired gain of one evaluation over another."""

from artifacts.reading import Artifact
from artifacts.schemas import RESULTS
from stages.statistics.estimates import Interval, estimate_gain


def paired_gains(before: Artifact, after: Artifact, metric: str = "accuracy") -> dict[str, Interval]:
    """Returns the mean difference `after - before` with its 95% interval by mode, paired puzzle by puzzle.

    Args:
        before: A report (see `stages.evaluate`).
        after: A report on the same split; puzzles and modes that one of them lacks are left out.
        metric: `accuracy` or `exact`.

    Raises:
        IntegrityError: A table is damaged.
    """
    ours, theirs = (report.read_table("results.parquet", RESULTS) for report in (after, before))
    modes: list[str] = ours["mode"].unique(maintain_order=True).to_list()
    gains = {mode: estimate_gain(ours, theirs, mode=mode, metric=metric) for mode in modes}
    return {mode: gain for mode, gain in gains.items() if gain is not None}
