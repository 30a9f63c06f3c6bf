"""The main path: one GRPO iteration in seven calls, the position before the first, and the loop over all of them."""

from dataclasses import dataclass, replace

from artifacts.refs import (
    Batch,
    Checkpoint,
    Decision,
    Grades,
    Levels,
    OptimizerState,
    Puzzles,
    Ref,
    Report,
    Rollouts,
    Transition,
)
from flows.ahead import sampling_ahead, sampling_checkpoint_after
from flows.checks.overlap import Role
from flows.curriculum import check_before, first_levels, levels_after, phase_after
from flows.inputs.credit import CreditModels, assign_credit, first_credit_models
from flows.inputs.models import fetched_source
from flows.inputs.prompts import fitting_puzzles
from flows.inputs.teachers import trained_on_texts
from flows.session.session import Session
from stages.evaluate import evaluate
from stages.finetune import finetune
from stages.grade import grade
from stages.pack import pack
from stages.promote import promote, weights_after
from stages.sample import sample
from stages.statistics.first_rewards import check_first_rewards
from stages.training.launch import Weights


@dataclass(frozen=True)
class Position:
    """The state of a run between iterations.

    Attributes:
        weights: The newest weights.
        decision: The last decision on promotion.
        credit_models: Teacher and critic, which give tokens their advantages.
        levels: Pass rates for the order of the next puzzles; None if it needs none.
        since: First iteration of the present order of puzzles.
        sampling_checkpoint: The checkpoint before `weights`, if the next iteration is sampled from it (see
            `flows.ahead`); None if it is sampled from `weights`.
        phase: Number of the next iteration's phase, from 0 (see `flows.curriculum`).
        transition: The phase's progress after the last iteration; None before the first, or without phases.
    """

    weights: Weights
    decision: Ref[Decision]
    credit_models: CreditModels
    levels: Ref[Levels] | None = None
    since: int = 1
    sampling_checkpoint: Ref[Checkpoint] | None = None
    phase: int = 0
    transition: Ref[Transition] | None = None

    @property
    def policy(self) -> Ref[Checkpoint]:
        """The checkpoint that the next iteration is sampled from."""
        return self.sampling_checkpoint or self.weights.checkpoint


def iteration(run: Session, puzzles: Ref[Puzzles], start: Position, n: int) -> Position:
    """Runs iteration `n`, counted from 1, and returns the position after it."""
    recipe, policy = run.recipe, start.policy

    rollouts = run.run(
        sample,
        recipe.sample,
        policy,
        puzzles,
        start.levels,
        iteration=n,
        since=start.since,
        out=run.at(n, "rollouts", Rollouts),
    )
    grades = run.run(grade, recipe.grade, rollouts, puzzles, out=run.at(n, "grades", Grades))
    if n == 1 and recipe.learns_from_rewards and not run.ctx.profile.allow_constant_reward and not run.has(n, "batch"):
        check_first_rewards(run.ctx.store, rollouts, grades, by_advantages=recipe.learns_from_advantages)
    credited = assign_credit(run, start.credit_models, policy, rollouts, grades, puzzles, n)
    batch = run.run(pack, recipe.pack, rollouts, credited.grades, credited.values, out=run.at(n, "batch", Batch))
    weights = run.run(
        finetune,
        recipe.finetune,
        run.states.with_state(start.weights),
        batch,
        iteration=n,
        out=run.at(n, "checkpoint", Checkpoint),
        state_out=run.at(n, "optimizer_state", OptimizerState),
        reference_out=run.at(n, "reference", Checkpoint),
    )
    report = run.run(
        evaluate, recipe.evaluate, weights.checkpoint, puzzles, split="val", out=run.at(n, "report", Report)
    )
    decision = run.run(
        promote,
        recipe.promote,
        weights.checkpoint,
        report,
        start.decision,
        iteration=n,
        pointer=run.layout.promoted,
        out=run.at(n, "decision", Decision),
    )
    return Position(weights_after(decision, weights, run.ctx), decision, credited.models)


def first_position(run: Session, puzzles: Ref[Puzzles]) -> tuple[Ref[Puzzles], Position]:
    """Fetches the model, trains it on texts if the recipe requires it, promotes it, and rates the puzzles.

    Engine and trainer of a new run start at the same time. Those of a continued run start when they are needed, because
    its samples may be stored.

    Returns:
        The puzzles, without those whose prompts are overlong if the recipe drops them, and the position of the run.
    """
    recipe = run.recipe
    check_before(run, puzzles)
    run.ctx.starts_early = not run.has(0, "report")
    if recipe.iterations or recipe.warm_start is not None:
        run.ctx.start_trainer_early()
    weights = fetched_source(run, recipe.model, puzzles, recipe.taught)
    if run.ctx.starts_early:
        run.ctx.start_engine_early(run.ctx.local_folder(weights), weights.digest)
    puzzles, prompts = fitting_puzzles(run, weights, puzzles)
    run.settle_rows(run, weights, puzzles, prompts)
    weights = trained_on_texts(run, weights, puzzles)
    credit_models = first_credit_models(run, weights, puzzles)
    report = run.run(evaluate, recipe.evaluate, weights, puzzles, split="val", out=run.at(0, "report", Report))
    decision = run.run(
        promote,
        recipe.promote,
        weights,
        report,
        None,
        iteration=0,
        pointer=run.layout.promoted,
        out=run.at(0, "decision", Decision),
    )
    levels = first_levels(run, weights, puzzles)
    return puzzles, Position(Weights(weights, reference=weights), decision, credit_models, levels)


def run_iterations(run: Session, puzzles: Ref[Puzzles], start: Position, last: int, role: Role = "both") -> Position:
    """Runs the iterations up to `last`, counted from 1, and returns the position after them.

    A recipe may sample ahead or have phases, but not both.

    Args:
        run: The run.
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
        if run.recipe.iterate_ahead:
            with sampling_ahead(run, puzzles, before, n, last, role) as sampled:
                position = iteration(sampled, puzzles, before, n)
            position = replace(position, sampling_checkpoint=sampling_checkpoint_after(run, before, position, n))
        elif run.recipe.phases:
            position = iteration(run.with_recipe(run.recipe.in_phase(before.phase)), puzzles, before, n)
            position = phase_after(run, before, position, n)
        else:
            position = iteration(run, puzzles, before, n)
        position = replace(position, levels=levels_after(run, before, n))
        run.iteration_finished(n)
    return position
