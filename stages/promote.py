"""The stage that decides which checkpoint is promoted: the best so far, or the newest that is as good."""

from dataclasses import replace

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, IntegrityError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Decision, K, Ref, Report
from stages.context import StageContext
from stages.promotion.gate import PromoteConfig, decide
from stages.promotion.model_card import CARD, model_card
from stages.promotion.promoted import Promoted, read_promoted, write_promoted
from stages.statistics.records import DECISION_FILE, read_decision
from stages.training.launch import Weights
from stages.training.saved_state import state_beside

REVISION = 3


def promote(
    ctx: StageContext,
    config: PromoteConfig,
    candidate: Ref[Checkpoint],
    report: Ref[Report],
    incumbent: Ref[Decision] | None,
    *,
    iteration: int,
    pointer: str,
    out: ArtifactAddress[Decision],
) -> Ref[Decision]:
    """Compares a candidate with the best checkpoint so far on the same puzzles and records which one is promoted.

    A decision that changes the promoted checkpoint also contains the model card of the new one.

    Args:
        candidate: The checkpoint just trained.
        report: The candidate's evaluation.
        incumbent: The decision before this one; None if the candidate is the first.
        iteration: Number of the candidate's iteration.
        pointer: Key of the run's `promoted.json`, which is updated to the newest decision.
        out: Address of the decision.

    Raises:
        BadInputError: The candidate and the best so far were measured on different puzzles.
    """
    identity = Identity.of("promote", REVISION, config, candidate=candidate, report=report, incumbent=incumbent)
    decision = out.find(identity)
    if decision is None:
        before = None if incumbent is None else read_decision(incumbent, ctx.store)
        verdict = decide(config, candidate, report, iteration, before, ctx.store)
        attempt = out.attempt(identity)
        if before is None or verdict.standing.iteration != before.standing.iteration:
            standing = verdict.standing.model_copy(update={"decided_in": out.key})
            verdict = verdict.model_copy(update={"standing": standing})
            attempt.write_bytes(CARD, model_card(verdict, ctx.store).encode())
        attempt.write_json(DECISION_FILE, verdict.as_json())
        facts = {"promoted": verdict.promoted, "rolled_back": verdict.rolled_back, "reason": verdict.reason}
        decision = attempt.publish(facts, candidate=candidate, report=report, incumbent=incumbent)
    _update_pointer(pointer, iteration, decision, ctx)
    return decision


def promoted_checkpoint(decision: Ref[Decision], ctx: StageContext) -> Ref[Checkpoint]:
    """Returns the checkpoint that is promoted after a decision.

    Raises:
        BadInputError: There is no such decision.
        IntegrityError: The decision is damaged.
    """
    return read_decision(decision, ctx.store).standing.checkpoint


def weights_after(
    decision: Ref[Decision], newest: Weights, ctx: StageContext, *, states_since: int = 1, since: int = 1
) -> Weights:
    """Returns the weights that the next iteration starts from.

    These are the newest weights, or after a rollback the promoted checkpoint with the state saved beside it. The first
    weights of the run have no state, even if they are another run's checkpoint. The reference of the KL term is then
    the one with which the promoted checkpoint was trained, not one that was made of the weights that fell; a checkpoint
    of an earlier phase leaves it as it is.

    Args:
        states_since: First iteration whose optimizer state the run may return to. It is later than 1 if a phase has
            begun with a fresh optimizer.
        since: First iteration of the present phase.
    """
    if not Artifact.open(ctx.store, decision).manifest.facts["rolled_back"]:
        return newest
    standing = read_decision(decision, ctx.store).standing
    state = state_beside(standing.checkpoint, ctx.store) if standing.iteration >= states_since else None
    reference = newest.reference
    if reference is not None and standing.iteration == since - 1 == 0:
        reference = standing.checkpoint
    elif reference is not None and standing.iteration >= since:
        inputs = Artifact.open(ctx.store, standing.checkpoint).manifest.inputs
        reference = Ref[Checkpoint](**inputs["reference"]) if "reference" in inputs else reference
    return replace(newest, checkpoint=standing.checkpoint, state=state, saving=None, reference=reference)


def _update_pointer(pointer: str, iteration: int, decision: Ref[Decision], ctx: StageContext) -> None:
    """Points the run's `promoted.json` at a decision, unless it points at a newer one that is intact."""
    try:
        current = read_promoted(ctx.store, pointer)
    except IntegrityError as error:  # its content only repeats that of the decision
        ctx.log.warning("the run's promoted.json is damaged and is written again: %s", error)
        current = None
    if (
        current
        and current.decided_at_iteration >= iteration
        and _is_published(current.decision, ctx)
        and _is_published(current.checkpoint, ctx)
    ):
        # `--refresh` may have made a decision again from the same inputs, with the card in another folder
        card = _card_of(decision, ctx) if current.model_card.startswith(f"{decision.key}/") else None
        if card is not None and card != current.model_card:
            write_promoted(current.model_copy(update={"model_card": card}), ctx.store, pointer)
        return
    standing = read_decision(decision, ctx.store).standing
    assert standing.decided_in is not None
    card = _card_of(Artifact.at(ctx.store, standing.decided_in, Decision).ref, ctx)
    assert card is not None  # the decision that promoted the checkpoint wrote it
    promoted = Promoted(
        decided_at_iteration=iteration,
        decision=decision,
        checkpoint=standing.checkpoint,
        report=standing.report,
        iteration=standing.iteration,
        score=standing.score,
        model_card=card,
    )
    write_promoted(promoted, ctx.store, pointer)


def _card_of(decision: Ref[Decision], ctx: StageContext) -> str | None:
    """Returns the key of the model card that a decision wrote; None if it promoted nothing."""
    manifest = Artifact.open(ctx.store, decision).manifest
    return f"{decision.key}/{manifest.attempt}/{CARD}" if CARD in manifest.files else None


def _is_published(ref: Ref[K], ctx: StageContext) -> bool:
    """Returns whether an artifact is still the one that is published at its key."""
    try:
        return Artifact.at(ctx.store, ref.key).manifest.digest == ref.digest
    except BadInputError:
        return False
