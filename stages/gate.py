"""The gate of promotion: a candidate against what stands, on the same puzzles, and the reason for what follows."""

from dataclasses import asdict
from typing import Any, Literal, Self

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, model_validator

from artifacts.errors import BadInputError
from artifacts.reading import Artifact
from artifacts.refs import Ref, Report
from artifacts.schemas import RESULTS
from artifacts.store import Store
from stages.statistics import Estimate, estimate


class RollbackConfig(BaseModel):
    """When the learning curve counts as fallen, so that the run goes back to its best checkpoint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drop_se: float = Field(
        default=2.0,
        ge=0,
        description="A candidate is degraded that lies more than so many standard errors (of the paired difference) "
        "below the best so far.",
    )
    patience: int = Field(default=3, ge=1, description="So many degraded candidates in a row bring the best back.")


class PromoteConfig(BaseModel):
    """When a candidate replaces the incumbent, and when the run goes back."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
        95% intervals, `degraded` (candidates in a row, this one included), and what is `standing`, `best`, `first` and
        `candidate`.

    Raises:
        BadInputError: The reports have no puzzle in common.
    """
    scores = _scores(config, challenger["report"], store)
    score = estimate(scores["score"].to_list()).mean
    challenger = {**challenger, "score": score}
    if before is None:
        places = dict.fromkeys(("standing", "best", "first", "candidate"), challenger)
        return {"promoted": True, "rolled_back": False, "reason": "first candidate", "degraded": 0, **places}
    best, incumbent = before["best"], before["standing"]
    gain = _paired(config, scores, best, store)
    over_standing = gain if incumbent["report"] == best["report"] else _paired(config, scores, incumbent, store)
    bar = config.min_gain - config.tolerance_se * gain.standard_error
    promoted = gain.mean > bar
    best_now = challenger if score > best["score"] else best
    rule = config.rollback
    fallen = rule is not None and gain.mean < 0 and gain.mean < -rule.drop_se * gain.standard_error
    degraded = before.get("degraded", 0) + 1 if fallen else 0
    rolled_back = rule is not None and degraded >= rule.patience
    stands = best_now if rolled_back else challenger if promoted else incumbent
    reason = (
        f"{'promoted' if promoted else 'refused'}: {config.mode} {config.metric} {score:.4f} against the best so far, "
        f"{best['score']:.4f} of iteration {best['iteration']}: {_text(gain)} on {len(scores)} puzzles, "
        f"{'more' if promoted else 'not more'} than {bar:.3g}"
    )
    if over_standing is not gain:
        reason += f"; against iteration {incumbent['iteration']}, which stands: {_text(over_standing)}"
    if rolled_back:
        reason += f"; degraded {degraded} times in a row: back to iteration {best_now['iteration']}"
    return {
        "promoted": promoted,
        "rolled_back": rolled_back,
        "reason": reason,
        "gain": asdict(gain),
        "gain_over_standing": asdict(over_standing),
        "degraded": 0 if rolled_back else degraded,
        "standing": incumbent if stands["iteration"] == incumbent["iteration"] else stands,
        "best": best_now,
        "first": before["first"],
        "candidate": challenger,
    }


def _paired(config: PromoteConfig, scores: pl.DataFrame, other: dict[str, Any], store: Store) -> Estimate:
    paired = scores.join(_scores(config, other["report"], store), on="puzzle_id", suffix="_other")
    if not len(paired):
        raise BadInputError(
            f"report of iteration {other['iteration']}", "no puzzle of the candidate's report", "the same puzzles",
            "evaluate both on one set",
        )  # fmt: skip
    return estimate((paired["score"] - paired["score_other"]).to_list())


def _scores(config: PromoteConfig, report: dict[str, Any], store: Store) -> pl.DataFrame:
    results = Artifact.open(store, Ref[Report](**report)).read_table("results.parquet", RESULTS)
    chosen = results.filter(pl.col("mode") == config.mode)
    return chosen.group_by("puzzle_id", maintain_order=True).agg(
        pl.col(config.metric).cast(pl.Float64).mean().alias("score")
    )


def _text(gain: Estimate) -> str:
    return f"{gain.mean:+.4f} (95% interval {gain.low:+.4f} to {gain.high:+.4f})"
