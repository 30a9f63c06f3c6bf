"""The main path: one GRPO iteration in seven calls, the position before the first, and the loop over all of them."""

from dataclasses import dataclass, replace

from artifacts.refs import (
    Batch,
    Checkpoint,
    Decision,
    Grades,
    OptimizerState,
    PassRates,
    Puzzles,
    Ref,
    Report,
    Rollouts,
    Transition,
)
from flows.ahead import sampling_ahead, sampling_checkpoint_after
from flows.checks.overlap import Role
from flows.checks.trained_before import trained_before
from flows.curriculum import check_before, first_pass_rates, pass_rates_after, phase_after
from flows.inputs.credit import CreditModels, assign_credit, first_credit_models
from flows.inputs.models import fetched_source
from flows.inputs.prompts import fitting_puzzles
from flows.inputs.puzzle_sets import publish_set_of_run
from flows.inputs.rows import settle_rows
from flows.inputs.teachers import trained_on_texts
from flows.session.session import Session
from stages.evaluate import evaluate
from stages.finetune import finetune
from stages.grade import grade
from stages.models.from_scratch import ScratchModel
from stages.pack import pack
from stages.promote import promote, weights_after
from stages.sample import sample
from stages.statistics.first_rewards import check_first_rewards, cut_warning
from stages.training.launch import Weights


@dataclass(frozen=True)
class Position:
    """The state of a run between iterations.

    Attributes:
        weights: The newest weights.
        decision: The last decision on promotion.
        credit_models: Teacher and critic, which give tokens their advantages.
        pass_rates: Pass rates for the order of the next puzzles; None if it needs none.
        since: First iteration of the present order of puzzles.
        states_since: First iteration whose optimizer state a rollback may restore.
        sampling_checkpoint: The checkpoint before `weights`, if the next iteration is sampled from it (see
            `flows.ahead`); None if it is sampled from `weights`.
        phase: Number of the next iteration's phase, from 0 (see `flows.curriculum`).
        transition: The phase's progress after the last iteration; None before the first, or without phases.
    """

    weights: Weights
    decision: Ref[Decision]
    credit_models: CreditModels
    pass_rates: Ref[PassRates] | None = None
    since: int = 1
    states_since: int = 1
    sampling_checkpoint: Ref[Checkpoint] | None = None
    phase: int = 0
    transition: Ref[Transition] | None = None

    @property
    def policy(self) -> Ref[Checkpoint]:
        """The checkpoint that the next iteration is sampled from."""
        return self.sampling_checkpoint or self.weights.checkpoint


def iteration(session: Session, puzzles: Ref[Puzzles], start: Position, n: int) -> Position:
    """Runs iteration `n`, counted from 1, and returns the position after it."""
    recipe, policy = session.recipe, start.policy

    rollouts = session.run(
        sample,
        recipe.sample,
        policy,
        puzzles,
        start.pass_rates,
        iteration=n,
        since=start.since,
        out=session.at(n, "rollouts", Rollouts),
    )
    grades = session.run(grade, recipe.grade, rollouts, puzzles, out=session.at(n, "grades", Grades))
    if n == 1 and not session.has(n, "batch"):
        if warning := cut_warning(session.ctx.store, grades, recipe.sample.sampling.max_tokens):
            session.ctx.log.warning("%s", warning)
        if recipe.learns_from_rewards and not session.ctx.profile.allow_constant_reward:
            check_first_rewards(
                session.ctx.store,
                rollouts,
                grades,
                by_advantages=recipe.learns_from_advantages,
                reads_answers=recipe.grade.reward.reads_answers,
            )
    credited = assign_credit(session, start.credit_models, policy, rollouts, grades, puzzles, n)
    batch = session.run(
        pack, recipe.pack, rollouts, credited.grades, credited.values, out=session.at(n, "batch", Batch)
    )
    weights = session.run(
        finetune,
        recipe.finetune,
        session.states.with_state(start.weights),
        batch,
        iteration=n,
        out=session.at(n, "checkpoint", Checkpoint),
        state_out=session.at(n, "optimizer_state", OptimizerState),
        reference_out=session.at(n, "reference", Checkpoint),
    )
    report = session.run(
        evaluate, recipe.evaluate, weights.checkpoint, puzzles, split="val", out=session.at(n, "report", Report)
    )
    decision = session.run(
        promote,
        recipe.promote,
        weights.checkpoint,
        report,
        start.decision,
        iteration=n,
        pointer=session.layout.promoted,
        out=session.at(n, "decision", Decision),
    )
    weights = weights_after(decision, weights, session.ctx, states_since=start.states_since, since=start.since)
    return Position(weights, decision, credited.models)


def begin(session: Session) -> tuple[Ref[Puzzles], Position]:
    """Publishes the puzzle set of the recipe unless it exists, and returns the run's `first_position`.

    A model whose tokenizer is not made from the puzzles is fetched while they are drawn, unless the run needs a permit
    for a GPU: it would hold it without need.
    """
    recipe, fetched = session.recipe, list[Ref[Checkpoint]]()
    session.ctx.starts_early = not session.has(0, "report")
    pretrains = recipe.value is not None and recipe.value.pretrain is not None
    session.ctx.trains_first = recipe.warm_start is not None or recipe.distil is not None or pretrains

    def fetch_model() -> None:
        if not isinstance(recipe.model, ScratchModel) and session.ctx.profile.gpu_slot is None:
            fetched.append(_fetched(session, None))

    puzzles = publish_set_of_run(session, fetch_model)
    return first_position(session, puzzles, *fetched)


def _fetched(session: Session, puzzles: Ref[Puzzles] | None) -> Ref[Checkpoint]:
    """Returns the recipe's model, fetched unless the store has it. Engine and trainer of a new run start meanwhile.

    Those of a continued run start when they are needed, because its rollouts may be stored.
    """
    recipe = session.recipe
    if recipe.iterations or recipe.warm_start is not None:
        session.ctx.start_trainer_early()
    return fetched_source(session, recipe.model, puzzles, recipe.taught)


def first_position(
    session: Session, puzzles: Ref[Puzzles], weights: Ref[Checkpoint] | None = None
) -> tuple[Ref[Puzzles], Position]:
    """Trains the recipe's model on texts if the recipe requires it, promotes it, and rates the puzzles.

    Args:
        session: The run.
        puzzles: The puzzle set.
        weights: The recipe's model; None to fetch it.

    Returns:
        The puzzles, without those whose prompts are overlong if the recipe drops them, and the position of the run.
    """
    recipe = session.recipe
    check_before(session, puzzles)
    if session.ctx.starts_early:
        for line in trained_before(recipe.model, puzzles, session.ctx.store):
            session.ctx.log.warning("%s", line)
    weights = weights or _fetched(session, puzzles)
    if session.ctx.starts_early:
        session.ctx.start_engine_early(session.ctx.local_folder(weights), weights.digest)
    puzzles, prompts = fitting_puzzles(session, weights, puzzles)
    settle_rows(session, weights, puzzles, prompts)
    weights = trained_on_texts(session, weights, puzzles)
    credit_models = first_credit_models(session, weights, puzzles)
    report = session.run(evaluate, recipe.evaluate, weights, puzzles, split="val", out=session.at(0, "report", Report))
    decision = session.run(
        promote,
        recipe.promote,
        weights,
        report,
        None,
        iteration=0,
        pointer=session.layout.promoted,
        out=session.at(0, "decision", Decision),
    )
    pass_rates = first_pass_rates(session, weights, puzzles)
    return puzzles, Position(Weights(weights, reference=weights), decision, credit_models, pass_rates)


def run_iterations(
    session: Session, puzzles: Ref[Puzzles], start: Position, last: int, role: Role = "both"
) -> Position:
    """Runs the iterations up to `last`, counted from 1, and returns the position after them.

    A recipe may sample ahead or have phases, but not both.

    Args:
        session: The run.
        puzzles: The puzzle set.
        start: The position before iteration 1.
        last: The last iteration.
        role: The part that this flow run does; `trainer` waits for the rollouts that another flow run samples.

    Raises:
        DeerstalkerError: The sampler has not published within `stage_timeout_s`.
    """
    position = start
    for n in range(1, last + 1):
        before = position
        if session.recipe.iterate_ahead:
            with sampling_ahead(session, puzzles, before, n, last, role) as sampled:
                position = iteration(sampled, puzzles, before, n)
            position = replace(position, sampling_checkpoint=sampling_checkpoint_after(session, before, position, n))
        elif session.recipe.phases:
            position = iteration(session.with_recipe(session.recipe.in_phase(before.phase)), puzzles, before, n)
            position = phase_after(session, before, position, n)
        else:
            position = iteration(session, puzzles, before, n)
        position = replace(position, pass_rates=pass_rates_after(session, before, n))
        session.iteration_finished(n)
    return position
