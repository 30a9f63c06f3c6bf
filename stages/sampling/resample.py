"""Dynamic sampling: puzzles whose completions are all equally right teach nothing; others are sampled in their place.

After DAPO (Yu et al., arXiv 2503.14476, section 3.2), which keeps only groups whose accuracies differ.
"""

from typing import Any, Literal

import polars as pl
from pydantic import Field

from artifacts.config import Config
from artifacts.refs import Checkpoint, Ref
from artifacts.slot import Attempt
from stages.context import StageContext
from stages.puzzles.tables import graded_text, puzzles_by_id
from stages.sampling.collect import adopted, collect
from stages.sampling.config import KEPT_GROUPS, SamplingConfig

STEM = "rollouts"
UNIFORM_TOLERANCE = 1e-8
"""Accuracies that spread no more than this are equal."""


class ResampleConfig(Config):
    """Until when further puzzles are sampled in place of those that were uniformly right or wrong."""

    max_rounds: int = Field(
        default=3, ge=1, le=100, description="Rounds after the first; each samples as many puzzles as are missing."
    )
    grader: Literal["strict", "published"] = Field(
        default="strict", description="How answers are read off a completion; the same as `grade.grader`."
    )


def collect_mixed(
    wanted: int,
    config: ResampleConfig,
    puzzles: pl.DataFrame,
    sampling: SamplingConfig,
    weights: Ref[Checkpoint],
    attempt: Attempt[Any],
    ctx: StageContext,
    *,
    label: str,
) -> dict[str, Any]:
    """Samples groups until enough of them are mixed, or the rounds or the puzzles are used up.

    Every group stays among the rollouts; the file `kept_groups-<checksum>.json` names those that are to be trained on.
    Which puzzles a round takes follows from the stored groups of the rounds before it, so a stage that was cut short
    goes on where it was.

    Args:
        wanted: Mixed groups to reach, and puzzles of the first round.
        puzzles: The iteration's puzzles in the order in which they are taken; the row index is the group's number.
        label: What the progress display calls this.

    Returns:
        Counts and speed over all rounds, for the manifest.
    """
    size, rounds, fresh, tokens, seconds = min(wanted, len(puzzles)), 0, 0, 0, 0.0
    while True:
        facts = collect(puzzles.head(size), sampling, weights, attempt, ctx, stem=STEM, label=label)
        rounds += 1
        fresh += facts["groups"] - facts["groups_reused"]
        tokens, seconds = tokens + facts["completion_tokens"], seconds + facts["sampling_s"]
        sampled = adopted(attempt, STEM, sampling)
        assert sampled is not None  # collect has just written them
        mixed = mixed_groups(sampled.filter(pl.col("group") < size), puzzles, config.grader)
        missing = wanted - len(mixed)
        if missing <= 0 or size == len(puzzles) or rounds > config.max_rounds:
            break
        size = min(size + missing, len(puzzles))
    attempt.write_json_shard(KEPT_GROUPS, mixed[:wanted])
    return {
        "groups": size,
        "groups_reused": size - fresh,
        "groups_kept": len(mixed[:wanted]),
        "rounds": rounds,
        "compute_dtype": facts["compute_dtype"],
        "completion_tokens": tokens,
        "sampling_s": seconds,
        "tokens_per_s": tokens / seconds if tokens else 0.0,
    }


def mixed_groups(rollouts: pl.DataFrame, puzzles: pl.DataFrame, grader: Literal["strict", "published"]) -> list[int]:
    """Numbers of the groups whose completions differ in accuracy, ascending.

    Args:
        rollouts: Rows of the `rollouts` schema.
        puzzles: Table of the puzzles that they answer.
    """
    known = puzzles_by_id(puzzles)
    accuracies: dict[int, list[float]] = {}
    for group, puzzle_id, text in rollouts.select("group", "puzzle_id", "text").iter_rows():
        accuracies.setdefault(group, []).append(graded_text(text, puzzle_id, known, grader).accuracy)
    return sorted(group for group, values in accuracies.items() if max(values) - min(values) > UNIFORM_TOLERANCE)
