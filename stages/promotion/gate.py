"""The rules of promotion and rollback: a candidate is compared with the best so far on the same puzzles."""

from typing import Literal, Self

import numpy as np
import polars as pl
from pydantic import Field, model_validator

from artifacts.config import Config
from artifacts.errors import BadInputError
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref, Report
from artifacts.schemas import RESULTS
from artifacts.store.store import Store
from stages.promotion.fall import find_falls
from stages.statistics.estimates import (
    EQUAL,
    Interval,
    estimate_difference,
    paired_differences,
    puzzle_scores,
    standard_error,
    variance_of_mean,
)
from stages.statistics.records import CurvePoint, MeasuredCheckpoint, PromotionDecision


class RollbackConfig(Config):
    """Rule by which a run returns to its best checkpoint: its learning curve has fallen (`stages.promotion.fall`)."""

    drop_se: float = Field(
        default=2.0,
        ge=0,
        le=1000,
        description="Standard errors by which the newest candidates must lie below those just before them, after a "
        "correction for the number of stretches that are compared, so that noise does not explain the drop. With 2, "
        "3% of level runs of 98 iterations roll back by chance.",
    )
    patience: int = Field(
        default=3,
        ge=1,
        le=1_000_000,
        description="Smallest number of candidates in a fallen stretch.",
    )


class PromoteConfig(Config):
    """Rules by which a candidate is promoted, and by which the run returns to its best checkpoint."""

    metric: Literal["accuracy", "exact"] = Field(
        default="accuracy", description="Metric to compare, a mean over completions."
    )
    mode: Literal["sampled", "greedy"] = Field(default="sampled", description="Completions to compare.")
    min_gain: float = Field(
        default=0.0, ge=0, le=1, description="The candidate must exceed the best score so far by more than this."
    )
    tolerance_se: float = Field(
        default=0.0,
        ge=0,
        le=1000,
        description="Promote a candidate that lies at most this many standard errors (of the paired difference) below "
        "the best so far, because it is as good and newer; 1 is the one-standard-error rule of Breiman et al. (1984). "
        "The highest of many noisy scores is usually high by chance.",
    )
    rollback: RollbackConfig | None = Field(
        default=None,
        description="Rule by which the run returns to its best checkpoint and continues from it when the curve falls; "
        "null disables it.",
    )

    @model_validator(mode="after")
    def _one_bar(self) -> Self:
        if self.min_gain and self.tolerance_se:
            raise ValueError(
                "min_gain raises the bar above the best so far, tolerance_se lowers it: set only one of them"
            )
        if self.rollback and self.rollback.drop_se < self.tolerance_se:
            raise ValueError(
                "rollback.drop_se is below tolerance_se: a candidate as good as the best cannot be degraded"
            )
        return self


def decide(
    config: PromoteConfig,
    candidate: Ref[Checkpoint],
    report: Ref[Report],
    iteration: int,
    before: PromotionDecision | None,
    store: Store,
) -> PromotionDecision:
    """Returns the decision on a candidate.

    Args:
        candidate: The checkpoint to decide on.
        report: Its evaluation.
        iteration: Number of its iteration.
        before: The decision before this one; None if the candidate is the first.
        store: Store that contains the reports.

    Raises:
        BadInputError: The report has no puzzle in common with that of the best checkpoint or the promoted one.
    """
    scores = _scores(config, report, store)
    score = float(np.mean(scores["score"].to_numpy()))
    challenger = MeasuredCheckpoint(checkpoint=candidate, report=report, iteration=iteration, score=score)
    if before is None:
        return _first_decision(config, challenger)
    best, standing = before.best, before.standing
    candidates = before.candidates
    differences = _differences(config, scores, best, store)
    gain = over_standing = estimate_difference(differences, candidates)
    if standing.report != best.report:
        over_standing = estimate_difference(_differences(config, scores, standing, store), candidates)
    clears, bar = _clears(config, differences)
    curve, degraded, fall = _judge_curve(config, scores, challenger, before, store)
    promoted, rolled_back = clears and not degraded, degraded > 0
    best_now = challenger if score > best.score + EQUAL else best
    stands = best_now if rolled_back else challenger if promoted else standing
    reason = (
        f"{'promoted' if promoted else 'refused'}: {config.mode} {config.metric} {score:.4f} against the best so far, "
        f"{best.score:.4f} of iteration {best.iteration}: {_gain_text(gain, candidates)} on {len(scores)} puzzles, "
        f"{bar}"
    )
    if standing.report != best.report:
        reason += f"; against iteration {standing.iteration}, promoted before: {_gain_text(over_standing, candidates)}"
    if rolled_back:
        reason += f"; {fall}: back to iteration {best_now.iteration}"
    return PromotionDecision(
        promoted=promoted,
        rolled_back=rolled_back,
        reason=reason,
        gain=gain,
        gain_over_standing=over_standing,
        degraded=degraded,
        standing=standing if stands.iteration == standing.iteration else stands,  # with the key of its decision
        best=best_now,
        first=before.first,
        candidate=challenger,
        candidates=candidates + 1,
        curve=curve,
    )


def _first_decision(config: PromoteConfig, challenger: MeasuredCheckpoint) -> PromotionDecision:
    return PromotionDecision(
        promoted=True,
        rolled_back=False,
        reason="first candidate",
        degraded=0,
        standing=challenger,
        best=challenger,
        first=challenger,
        candidate=challenger,
        candidates=1,
        curve=None if config.rollback is None else [_point(challenger, None)],
    )


def _clears(config: PromoteConfig, differences_P: list[float]) -> tuple[bool, str]:
    """Returns whether a candidate clears the bar of promotion, and the comparison in words."""
    mean = float(np.mean(differences_P))
    if config.tolerance_se:
        bar = 0.0 - config.tolerance_se * standard_error(differences_P)  # not -0
        clears = mean >= bar - EQUAL
        return clears, f"{'at least' if clears else 'below'} {bar:.3g}"
    clears = mean > config.min_gain + EQUAL
    return clears, f"{'more' if clears else 'not more'} than {config.min_gain:.3g}"


def _judge_curve(
    config: PromoteConfig,
    scores: pl.DataFrame,
    challenger: MeasuredCheckpoint,
    before: PromotionDecision,
    store: Store,
) -> tuple[list[CurvePoint] | None, int, str]:
    """Returns the curve without its fallen stretch, the length of that stretch (0 without one) and a text about it."""
    if config.rollback is None:
        return None, 0, ""
    curve = _extended_curve(config, scores, challenger, before, store)
    degraded, fall = _fallen_stretch(config.rollback, curve, len(scores))
    return curve[: len(curve) - degraded], degraded, fall  # the next candidates do not descend from the fallen ones


def _extended_curve(
    config: PromoteConfig,
    scores: pl.DataFrame,
    challenger: MeasuredCheckpoint,
    before: PromotionDecision,
    store: Store,
) -> list[CurvePoint]:
    """Returns the curve with the candidate added, or the candidate alone if the puzzles have changed.

    A candidate's `noise` is half the variance of the paired difference from the checkpoint that it was trained from:
    the variance of one of the two scores.
    """
    parent = before.standing if before.rolled_back else before.candidate
    parent_scores = _scores(config, parent.report, store)
    if set(parent_scores["prompt_id"]) != set(scores["prompt_id"]):
        return [_point(challenger, None)]
    noise = float(variance_of_mean(np.asarray(paired_differences(scores, parent_scores)))) / 2.0
    return [*(before.curve or ()), _point(challenger, noise)]


def _point(candidate: MeasuredCheckpoint, noise: float | None) -> CurvePoint:
    return CurvePoint(iteration=candidate.iteration, score=candidate.score, noise=noise)


def _fallen_stretch(rule: RollbackConfig, curve: list[CurvePoint], puzzles: int) -> tuple[int, str]:
    """Returns the number of newest candidates that form a fallen stretch, 0 without one, and the fall in words."""
    falls = find_falls(
        np.array([[point.score for point in curve]], dtype=np.float64),
        np.array([[point.noise for point in curve]], dtype=np.float64),  # None becomes NaN
        puzzles,
        rule.drop_se,
        rule.patience,
    )
    if not falls.certain[0]:
        return 0, ""
    since, before = int(falls.since[0]), int(falls.before[0])
    return since, (
        f"fallen: the mean of the last {since} is {falls.drop[0]:.4f} below that of the {before} before, "
        f"{falls.standard_errors[0]:.1f} standard errors, more than the {falls.bar:.1f} that noise reaches"
    )


def _differences(config: PromoteConfig, scores: pl.DataFrame, other: MeasuredCheckpoint, store: Store) -> list[float]:
    differences = paired_differences(scores, _scores(config, other.report, store))
    if not differences:
        raise BadInputError(
            f"report of iteration {other.iteration}", "no puzzle of the candidate's report", "the same puzzles",
            "evaluate both on one set",
        )  # fmt: skip
    return differences


def _scores(config: PromoteConfig, report: Ref[Report], store: Store) -> pl.DataFrame:
    results = Artifact.open(store, report).read_table("results.parquet", RESULTS)
    return puzzle_scores(results, config.mode, config.metric)


def _gain_text(gain: Interval, chosen_of: int) -> str:
    """Returns `+0.0100 (95% interval -0.0200 to +0.0600, its upper end raised because ...)`."""
    raised = f", its upper end raised because the other is the best of {chosen_of}" if chosen_of > 1 else ""
    return f"{gain.mean:+.4f} (95% interval {gain.low:+.4f} to {gain.high:+.4f}{raised})"
