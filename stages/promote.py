"""The stage that keeps the best checkpoint so far, or the newest as good as it, and says why."""

from dataclasses import replace
from typing import Any

from artifacts.errors import BadInputError, IntegrityError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Decision, Ref, Report
from artifacts.seal import sealed_json
from artifacts.slot import Slot
from artifacts.stored_json import promoted_at
from stages.context import StageContext
from stages.gate import PromoteConfig, judge
from stages.models.card import CARD, model_card
from stages.training.launch import Weights, state_beside

REVISION = 3
_POINTED_AT = ("decision", "checkpoint")


def promote(
    ctx: StageContext,
    config: PromoteConfig,
    candidate: Ref[Checkpoint],
    report: Ref[Report],
    incumbent: Ref[Decision] | None,
    *,
    iteration: int,
    pointer: str,
    out: Slot[Decision],
) -> Ref[Decision]:
    """Compares a candidate with the best so far on the same puzzles and records which one stands.

    A decision that changes what stands carries its model card.

    Args:
        candidate: The checkpoint just trained.
        report: The candidate's evaluation.
        incumbent: The decision before this one; None where the candidate is the first.
        iteration: Number of the candidate's iteration.
        pointer: Key of the run's `promoted.json`, swapped to follow the newest decision.
        out: Where the decision is published.

    Raises:
        BadInputError: The candidate and the best so far were measured on different puzzles.
    """
    identity = Identity.of("promote", REVISION, config, candidate=candidate, report=report, incumbent=incumbent)
    decision = out.find(identity)
    if decision is None:
        before = None if incumbent is None else _content(incumbent, ctx)
        challenger = {"checkpoint": candidate.as_json(), "report": report.as_json(), "iteration": iteration}
        verdict = judge(config, challenger, before, ctx.store)
        attempt = out.attempt(identity)
        if before is None or verdict["standing"]["iteration"] != before["standing"]["iteration"]:
            verdict["standing"] = {**verdict["standing"], "decided_in": out.key}
            attempt.write_bytes(CARD, model_card(verdict, ctx.store).encode())
        attempt.write_json("decision.json", verdict)
        facts = {name: verdict[name] for name in ("promoted", "rolled_back", "reason")}
        decision = attempt.publish(facts, candidate=candidate, report=report, incumbent=incumbent)
    _point(pointer, iteration, decision, ctx)
    return decision


def standing(decision: Ref[Decision], ctx: StageContext) -> dict[str, Any]:
    """The `standing` part of a decision: checkpoint, report, iteration and score of what stands after it."""
    return _content(decision, ctx)["standing"]


def weights_after(decision: Ref[Decision], newest: Weights, ctx: StageContext) -> Weights:
    """What the next iteration learns on from: the newest weights, or after a rollback those that stand.

    A reference of the KL term stays the newest.
    """
    if not Artifact.open(ctx.store, decision).manifest.facts["rolled_back"]:
        return newest
    checkpoint = Ref[Checkpoint](**standing(decision, ctx)["checkpoint"])
    return replace(newest, checkpoint=checkpoint, state=state_beside(checkpoint, ctx.store))


def _content(decision: Ref[Decision], ctx: StageContext) -> dict[str, Any]:
    return Artifact.open(ctx.store, decision).read_json("decision.json")


def _point(pointer: str, iteration: int, decision: Ref[Decision], ctx: StageContext) -> None:
    try:
        found = promoted_at(ctx.store, pointer)
    except IntegrityError as error:  # it only repeats what the decisions say
        ctx.log.warning("written anew: %s", error)
        found = None
    if found and found["decided_at_iteration"] >= iteration and all(_stands(found[part], ctx) for part in _POINTED_AT):
        return
    stands = standing(decision, ctx)
    where = stands.pop("decided_in")
    card = f"{where}/{Artifact.at(ctx.store, where).manifest.attempt}/{CARD}"
    content = {"decided_at_iteration": iteration, "decision": decision.as_json(), **stands, "model_card": card}
    ctx.store.write_bytes(pointer, sealed_json(content))


def _stands(ref: dict[str, Any], ctx: StageContext) -> bool:
    """Whether an artifact is still the one published at its address."""
    try:
        return Artifact.at(ctx.store, ref["key"]).manifest.digest == ref["digest"]
    except BadInputError:
        return False
