"""The gate of promotion: a candidate against what stands, on the same puzzles, and the reason for what follows."""

from dataclasses import asdict
from typing import Any, Literal, Self

import numpy as np
import polars as pl
from pydantic import Field, model_validator

from artifacts.config import Config
from artifacts.errors import BadInputError
from artifacts.reading import Artifact
from artifacts.refs import Ref, Report
from artifacts.schemas import RESULTS
from artifacts.store import Store
from stages.fall import find_falls
from stages.statistics import Estimate, estimate_difference, standard_error, variance_of_mean


class RollbackConfig(Config):
    """When the learning curve has fallen, so that the run goes back to its best checkpoint (see `stages.fall`)."""

    drop_se: float = Field(
        default=2.0,
        ge=0,
        le=1000,
        description="The curve has fallen where its newest candidates lie below those just before them by more than "
        "noise explains: a drop as improbable as so many standard errors are in one comparison, after the correction "
        "for all the stretches that are compared. With 2, a run of 98 iterations that stays level goes back in 3% of "
        "cases.",
    )
    patience: int = Field(
        default=3,
        ge=1,
        le=1_000_000,
        description="Fewest candidates in a fallen stretch; they bring the best checkpoint back.",
    )


class PromoteConfig(Config):
    """When a candidate replaces the incumbent, and when the run goes back."""

    metric: Literal["accuracy", "exact"] = Field(
        default="accuracy", description="What is compared, a mean over completions."
    )
    mode: Literal["sampled", "greedy"] = Field(default="sampled", description="Which completions are compared.")
    min_gain: float = Field(
        default=0.0, ge=0, le=1, description="The candidate must beat the best so far by more than this."
    )
    tolerance_se: float = Field(
        default=0.0,
        ge=0,
        le=1000,
        description="A candidate that is at most so many standard errors (of the paired difference) below the best so "
        "far is as good as it, and being newer, stands; 1 is the one-standard-error rule of Breiman et al. (1984). "
        "The highest of many noisy scores is mostly a lucky one, and early.",
    )
    rollback: RollbackConfig | None = Field(
        default=None,
        description="Go back to the best checkpoint, and learn on from it, when the curve falls; never where it is not "
        "given.",
    )

    @model_validator(mode="after")
    def _one_bar(self) -> Self:
        if self.min_gain and self.tolerance_se:
            raise ValueError("min_gain asks for more than the best so far, tolerance_se for less: give one of them")
        if self.rollback and self.rollback.drop_se < self.tolerance_se:
            raise ValueError("rollback.drop_se is below tolerance_se: what is as good as the best cannot be degraded")
        return self


def judge(
    config: PromoteConfig, challenger: dict[str, Any], before: dict[str, Any] | None, store: Store
) -> dict[str, Any]:
    """The content of a decision.

    Args:
        challenger: `checkpoint`, `report`, `iteration` of the candidate; its score is added.
        before: Content of the decision before; None where the candidate is the first.

    Returns:
        `promoted`, `rolled_back`, `reason`, the paired `gain` over the best so far and `gain_over_standing` with their
        95% intervals, `degraded` (candidates in the fallen stretch, 0 where the curve has not fallen), what is
        `standing`, `best`, `first` and `candidate`, the number of `candidates` so far, and with a rule of rollback the
        `curve` that it looks at.

    Raises:
        BadInputError: The reports have no puzzle in common.
    """
    scores = _scores(config, challenger["report"], store)
    score = float(np.mean(scores["score"].to_numpy()))
    challenger = {**challenger, "score": score}
    curve = [{"iteration": challenger["iteration"], "score": score, "noise": None}]
    kept: dict[str, Any] = {"candidates": 1} if config.rollback is None else {"candidates": 1, "curve": curve}
    if before is None:
        places = dict.fromkeys(("standing", "best", "first", "candidate"), challenger)
        return {"promoted": True, "rolled_back": False, "reason": "first candidate", "degraded": 0, **places, **kept}
    best, incumbent = before["best"], before["standing"]
    candidates = before.get("candidates", _counted(before))
    differences = _paired(config, scores, best, store)
    gain = estimate_difference(differences, candidates)
    over_standing = gain
    if incumbent["report"] != best["report"]:
        over_standing = estimate_difference(_paired(config, scores, incumbent, store), candidates)
    clears, bar = _clears(config, differences)
    degraded, fall = 0, ""
    if config.rollback is not None:
        curve = _continued(config, scores, curve[0], before, store)
        degraded, fall = _fallen(config.rollback, curve, len(scores))
        kept["curve"] = curve[: len(curve) - degraded]  # the next candidates do not descend from the fallen ones
    promoted, rolled_back = clears and not degraded, degraded > 0
    best_now = challenger if score > best["score"] else best
    stands = best_now if rolled_back else challenger if promoted else incumbent
    reason = (
        f"{'promoted' if promoted else 'refused'}: {config.mode} {config.metric} {score:.4f} against the best so far, "
        f"{best['score']:.4f} of iteration {best['iteration']}: {_text(gain, candidates)} on {len(scores)} puzzles, "
        f"{bar}"
    )
    if over_standing is not gain:
        reason += f"; against iteration {incumbent['iteration']}, which stands: {_text(over_standing, candidates)}"
    if rolled_back:
        reason += f"; {fall}: back to iteration {best_now['iteration']}"
    return {
        "promoted": promoted,
        "rolled_back": rolled_back,
        "reason": reason,
        "gain": asdict(gain),
        "gain_over_standing": asdict(over_standing),
        "degraded": degraded,
        "standing": incumbent if stands["iteration"] == incumbent["iteration"] else stands,
        "best": best_now,
        "first": before["first"],
        "candidate": challenger,
        **kept,
        "candidates": candidates + 1,
    }


def _counted(before: dict[str, Any]) -> int:
    """Number of candidates up to a decision that does not say it: there is one an iteration."""
    return max(1, 1 + before["candidate"]["iteration"] - before["first"]["iteration"])


def _clears(config: PromoteConfig, differences_P: list[float]) -> tuple[bool, str]:
    """Whether a candidate is as good as the rule of promotion asks, and how it lies to the bar, in words."""
    mean = float(np.mean(differences_P))
    if config.tolerance_se:
        bar = 0.0 - config.tolerance_se * standard_error(differences_P)  # not -0
        return mean >= bar, f"{'at least' if mean >= bar else 'below'} {bar:.3g}"
    return mean > config.min_gain, f"{'more' if mean > config.min_gain else 'not more'} than {config.min_gain:.3g}"


def _continued(
    config: PromoteConfig, scores: pl.DataFrame, newest: dict[str, Any], before: dict[str, Any], store: Store
) -> list[dict[str, Any]]:
    """The curve with its newest candidate; it begins anew where that was measured on other puzzles.

    A candidate's `noise` is the variance of one score around its level: half that of the paired difference from the
    one that it was made from. A decision from before curves were kept has one candidate that can be looked at, its own.
    """
    parent = before["standing"] if before.get("rolled_back") else before["candidate"]
    others = _scores(config, parent["report"], store)
    if set(others["puzzle_id"]) != set(scores["puzzle_id"]):
        return [newest]
    own = {"iteration": before["candidate"]["iteration"], "score": before["candidate"]["score"], "noise": None}
    noise = float(variance_of_mean(_differences(scores, others).to_numpy())) / 2.0
    return [*before.get("curve", [] if before.get("rolled_back") else [own]), {**newest, "noise": noise}]


def _fallen(rule: RollbackConfig, curve: list[dict[str, Any]], puzzles: int) -> tuple[int, str]:
    """How many of the newest candidates form a fallen stretch, 0 where none do, and the fall in words."""
    scores_N, noise_N = ([item[name] for item in curve] for name in ("score", "noise"))
    falls = find_falls(
        np.array([scores_N], dtype=np.float64),
        np.array([noise_N], dtype=np.float64),  # None becomes NaN
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


def _paired(config: PromoteConfig, scores: pl.DataFrame, other: dict[str, Any], store: Store) -> list[float]:
    differences = _differences(scores, _scores(config, other["report"], store))
    if not len(differences):
        raise BadInputError(
            f"report of iteration {other['iteration']}", "no puzzle of the candidate's report", "the same puzzles",
            "evaluate both on one set",
        )  # fmt: skip
    return differences.to_list()


def _differences(scores: pl.DataFrame, others: pl.DataFrame) -> pl.Series:
    paired = scores.join(others, on="puzzle_id", suffix="_other")
    return paired["score"] - paired["score_other"]


def _scores(config: PromoteConfig, report: dict[str, Any], store: Store) -> pl.DataFrame:
    results = Artifact.open(store, Ref[Report](**report)).read_table("results.parquet", RESULTS)
    chosen = results.filter(pl.col("mode") == config.mode)
    return chosen.group_by("puzzle_id", maintain_order=True).agg(
        pl.col(config.metric).cast(pl.Float64).mean().alias("score")
    )


def _text(gain: Estimate, chosen_of: int) -> str:
    """`+0.0100 (95% interval -0.0200 to +0.0600, its upper end raised as ...)`."""
    raised = f", its upper end raised as the other was chosen of {chosen_of}" if chosen_of > 1 else ""
    return f"{gain.mean:+.4f} (95% interval {gain.low:+.4f} to {gain.high:+.4f}{raised})"
