"""Dynamic sampling: groups whose completions are all equally right carry no signal and are replaced by others.

After DAPO (Yu et al., arXiv 2503.14476, section 3.2), which keeps only groups whose accuracies differ.
"""

from typing import Any

import polars as pl
from pydantic import Field

from artifacts.address import Attempt
from artifacts.config import Config
from artifacts.refs import Checkpoint, Ref
from stages.context import StageContext
from stages.environments.puzzle import Grader
from stages.environments.tables import graded_texts, puzzles_by_id
from stages.environments.thoughts import THOUGHT_OPENED
from stages.sampling.collect import adopt_rollouts, collect
from stages.sampling.config import KEPT_GROUPS, SamplingConfig

STEM = "rollouts"
UNIFORM_TOLERANCE = 1e-8
"""Largest spread of accuracies that count as equal."""


class ResampleConfig(Config):
    """Settings of dynamic sampling."""

    max_rounds: int = Field(
        default=3,
        ge=1,
        le=100,
        description="Largest number of rounds after the first; each samples one puzzle for each missing group.",
    )
    grader: Grader = Field(
        default="strict", description="Rules by which answers are read from a completion; the same as `grade.grader`."
    )


def collect_mixed(
    groups: int,
    config: ResampleConfig,
    puzzles: pl.DataFrame,
    sampling: SamplingConfig,
    weights: Ref[Checkpoint],
    attempt: Attempt[Any],
    ctx: StageContext,
    *,
    label: str,
) -> dict[str, Any]:
    """Samples groups until enough are mixed (their completions differ in accuracy), or rounds or puzzles are used up.

    Every group stays in the rollouts. The file `kept_groups-<checksum>.json` lists the groups to train on. The stored
    groups of earlier rounds determine the puzzles of a round, so an interrupted stage continues where it stopped.

    Args:
        groups: Number of mixed groups to reach, and of puzzles in the first round.
        config: Settings of dynamic sampling.
        puzzles: The iteration's puzzles in the order in which they are sampled; the row index is the group's number.
        attempt: The attempt that stores the groups and the list.
        label: Name of the work on the progress display.

    Returns:
        Counts and speed over all rounds, for the manifest.
    """
    size, rounds, new_groups, tokens, seconds = min(groups, len(puzzles)), 0, 0, 0, 0.0
    while True:
        facts = collect(puzzles.head(size), sampling, weights, attempt, ctx, stem=STEM, label=label)
        rounds += 1
        new_groups += facts["groups"] - facts["groups_reused"]
        tokens, seconds = tokens + facts["completion_tokens"], seconds + facts["sampling_s"]
        sampled = adopt_rollouts(attempt, STEM, sampling)
        assert sampled is not None  # collect has just written them
        mixed = mixed_groups(
            sampled.filter(pl.col("group") < size), puzzles, config.grader, thought_opened=facts[THOUGHT_OPENED]
        )
        missing = groups - len(mixed)
        if missing <= 0 or size == len(puzzles) or rounds > config.max_rounds:
            break
        size = min(size + missing, len(puzzles))
    attempt.write_json_shard(KEPT_GROUPS, mixed[:groups])
    return {
        "groups": size,
        "groups_reused": size - new_groups,
        "groups_kept": len(mixed[:groups]),
        "rounds": rounds,
        "compute_dtype": facts["compute_dtype"],
        THOUGHT_OPENED: facts[THOUGHT_OPENED],
        "completion_tokens": tokens,
        "sampling_s": seconds,
        "tokens_per_s": tokens / seconds if tokens else 0.0,
    }


def mixed_groups(
    rollouts: pl.DataFrame, puzzles: pl.DataFrame, grader: Grader, *, thought_opened: bool = False
) -> list[int]:
    """Returns the numbers of the groups whose completions differ in accuracy, ascending.

    Args:
        rollouts: Rows of the `rollouts` schema.
        puzzles: Rows of the `puzzles` schema: the puzzles that they answer.
        grader: Rules by which answers are read.
        thought_opened: See `puzzles_by_id`.
    """
    by_id = puzzles_by_id(puzzles, thought_opened=thought_opened)
    accuracies: dict[int, list[float]] = {}
    grades = graded_texts(rollouts.select("text", "prompt_id").iter_rows(), by_id, grader)
    for group, graded in zip(rollouts["group"], grades, strict=True):
        accuracies.setdefault(group, []).append(graded.accuracy)
    return sorted(group for group, values in accuracies.items() if max(values) - min(values) > UNIFORM_TOLERANCE)
