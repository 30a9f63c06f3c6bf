"""The stage that keeps the better of candidate and incumbent, and says why."""

import json
from dataclasses import asdict
from typing import Any, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Decision, Ref, Report
from artifacts.schemas import RESULTS
from artifacts.slot import Slot
from artifacts.store import MissingKeyError
from stages.context import StageContext
from stages.statistics import estimate

REVISION = 1


class PromoteConfig(BaseModel):
    """When a candidate replaces the incumbent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    metric: Literal["accuracy", "exact"] = Field(
        default="accuracy", description="What is compared, a mean over completions."
    )
    mode: Literal["sampled", "greedy"] = Field(default="sampled", description="Which completions are compared.")
    min_gain: float = Field(
        default=0.0, ge=0, le=1, description="The candidate must beat the incumbent by more than this."
    )


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
    """Compares a candidate with the incumbent on the same puzzles and records which one stands.

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
    score = float(scores["score"].mean())  # pyright: ignore[reportArgumentType]
    challenger = {"checkpoint": candidate.as_json(), "report": report.as_json(), "iteration": iteration, "score": score}
    if incumbent is None:
        return {"promoted": True, "reason": "first candidate", "standing": challenger, "candidate": challenger}
    before = standing(incumbent, ctx)
    paired = scores.join(_scores(config, Ref(**before["report"]), ctx), on="puzzle_id", suffix="_incumbent")
    gain = estimate((paired["score"] - paired["score_incumbent"]).to_list())
    promoted = gain.mean > config.min_gain
    reason = (
        f"{config.mode} {config.metric} {score:.4f} against {before['score']:.4f} of iteration {before['iteration']}: "
        f"{gain.mean:+.4f} (95% interval {gain.low:+.4f} to {gain.high:+.4f}, {len(paired)} puzzles), "
        f"{'more' if promoted else 'not more'} than {config.min_gain:g}"
    )
    return {
        "promoted": promoted,
        "reason": reason,
        "gain": asdict(gain),
        "standing": challenger if promoted else before,
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
        if json.loads(ctx.store.read_bytes(pointer))["decided_at_iteration"] >= iteration:
            return
    except MissingKeyError:
        pass
    content = {"decided_at_iteration": iteration, "decision": decision.as_json(), **standing(decision, ctx)}
    ctx.store.write_bytes(pointer, (json.dumps(content, indent=2) + "\n").encode())
