"""The stage that keeps the best checkpoint so far, or the newest as good as it, and says why."""

import json
from dataclasses import asdict
from typing import Any, Literal, Self

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, model_validator

from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Decision, Ref, Report
from artifacts.schemas import RESULTS
from artifacts.slot import Slot
from artifacts.store import MissingKeyError
from stages.context import StageContext
from stages.statistics import estimate

REVISION = 2
_POINTED_AT = ("decision", "checkpoint")


class PromoteConfig(BaseModel):
    """When a candidate replaces the incumbent."""

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

    @model_validator(mode="after")
    def _one_bar(self) -> Self:
        if self.min_gain and self.tolerance_se:
            raise ValueError("min_gain asks for more than the best so far, tolerance_se for less: give one of them")
        return self


def promote(
    config: PromoteConfig,
    candidate: Ref[Checkpoint],
    report: Ref[Report],
    incumbent: Ref[Decision] | None,
    *,
    iteration: int,
    pointer: str,
    out: Slot[Decision],
    ctx: StageContext,
) -> Ref[Decision]:
    """Compares a candidate with the best so far on the same puzzles and records which one stands.

    Args:
        candidate: The checkpoint just trained.
        report: The candidate's evaluation.
        incumbent: The decision before this one; None where the candidate is the first.
        iteration: Number of the candidate's iteration.
        pointer: Key of the run's `promoted.json`, rewritten to follow the newest decision.
        out: Where the decision is published.
    """
    identity = Identity.of("promote", REVISION, config, candidate=candidate, report=report, incumbent=incumbent)
    decision = out.find(identity)
    if decision is None:
        verdict = _judge(config, candidate, report, incumbent, iteration, ctx)
        attempt = out.attempt(identity)
        attempt.write_json("decision.json", verdict)
        decision = attempt.publish(
            {"promoted": verdict["promoted"], "reason": verdict["reason"]},
            candidate=candidate,
            report=report,
            incumbent=incumbent,
        )
    _point(pointer, iteration, decision, ctx)
    return decision


def standing(decision: Ref[Decision], ctx: StageContext) -> dict[str, Any]:
    """The `standing` part of a decision: checkpoint, report, iteration and score of what stands after it."""
    return Artifact.open(ctx.store, decision).read_json("decision.json")["standing"]


def _judge(
    config: PromoteConfig,
    candidate: Ref[Checkpoint],
    report: Ref[Report],
    incumbent: Ref[Decision] | None,
    iteration: int,
    ctx: StageContext,
) -> dict[str, Any]:
    scores = _scores(config, report, ctx)
    score = estimate(scores["score"].to_list()).mean
    challenger = {"checkpoint": candidate.as_json(), "report": report.as_json(), "iteration": iteration, "score": score}
    if incumbent is None:
        first = {"standing": challenger, "best": challenger, "candidate": challenger}
        return {"promoted": True, "reason": "first candidate", **first}
    before = Artifact.open(ctx.store, incumbent).read_json("decision.json")
    best = before["best"]
    paired = scores.join(_scores(config, Ref(**best["report"]), ctx), on="puzzle_id", suffix="_best")
    gain = estimate((paired["score"] - paired["score_best"]).to_list())
    bar = config.min_gain - config.tolerance_se * gain.standard_error
    promoted = gain.mean > bar
    reason = (
        f"{config.mode} {config.metric} {score:.4f} against the best so far, {best['score']:.4f} of iteration "
        f"{best['iteration']}: {gain.mean:+.4f} (95% interval {gain.low:+.4f} to {gain.high:+.4f}, {len(paired)} "
        f"puzzles), {'more' if promoted else 'not more'} than {bar:.3g}"
    )
    return {
        "promoted": promoted,
        "reason": reason,
        "gain": asdict(gain),
        "standing": challenger if promoted else before["standing"],
        "best": challenger if score > best["score"] else best,
        "candidate": challenger,
    }


def _scores(config: PromoteConfig, report: Ref[Report], ctx: StageContext) -> pl.DataFrame:
    results = Artifact.open(ctx.store, report).read_table("results.parquet", RESULTS)
    chosen = results.filter(pl.col("mode") == config.mode)
    return chosen.group_by("puzzle_id", maintain_order=True).agg(
        pl.col(config.metric).cast(pl.Float64).mean().alias("score")
    )


def _point(pointer: str, iteration: int, decision: Ref[Decision], ctx: StageContext) -> None:
    try:
        found = json.loads(ctx.store.read_bytes(pointer))
        if found["decided_at_iteration"] >= iteration and all(_stands(found[part], ctx) for part in _POINTED_AT):
            return
    except MissingKeyError:
        pass
    content = {"decided_at_iteration": iteration, "decision": decision.as_json(), **standing(decision, ctx)}
    ctx.store.write_bytes(pointer, (json.dumps(content, indent=2) + "\n").encode())


def _stands(ref: dict[str, Any], ctx: StageContext) -> bool:
    """Whether an artifact is still the one published at its address."""
    try:
        return Artifact.at(ctx.store, ref["key"]).manifest.digest == ref["digest"]
    except BadInputError:
        return False
