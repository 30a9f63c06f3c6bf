"""One GRPO iteration: the main path, in seven calls."""

from dataclasses import dataclass

from artifacts.refs import Batch, Checkpoint, Decision, Grades, Levels, Puzzles, Ref, Report, Rollouts, TrainingState
from flows.inputs.judges import Judges, first_judges, judge
from flows.inputs.models import fetched_source
from flows.inputs.prompts import fitting_puzzles
from flows.inputs.teachers import trained_on_texts
from flows.session import Session
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
        judges: The models that judge tokens.
        levels: Pass rates for the order of the next puzzles; None if it needs none.
        since: First iteration of the present order of puzzles.
        older: The checkpoint before `weights`, if the next iteration is sampled from it (see `flows.ahead`).
    """

    weights: Weights
    decision: Ref[Decision]
    judges: Judges
    levels: Ref[Levels] | None = None
    since: int = 1
    older: Ref[Checkpoint] | None = None

    @property
    def policy(self) -> Ref[Checkpoint]:
        """The checkpoint that the next iteration is sampled from."""
        return self.older or self.weights.checkpoint


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
    judged = judge(run, start.judges, policy, rollouts, grades, puzzles, n)
    batch = run.run(pack, recipe.pack, rollouts, judged.grades, judged.values, out=run.at(n, "batch", Batch))
    weights = run.run(
        finetune,
        recipe.finetune,
        run.with_state(start.weights),
        batch,
        iteration=n,
        out=run.at(n, "checkpoint", Checkpoint),
        state_out=run.at(n, "training_state", TrainingState),
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
    return Position(weights_after(decision, weights, run.ctx), decision, judged.judges)


def first_position(run: Session, puzzles: Ref[Puzzles]) -> tuple[Ref[Puzzles], Position]:
    """Fetches the model, trains it on texts if the recipe says so, and promotes it.

    Engine and trainer of a new run start meanwhile. Those of a continued run start when they are needed, because its
    samples may be stored.

    Returns:
        The puzzles, without those whose prompts are overlong if the recipe drops them, and the position of the run.
    """
    recipe = run.recipe
    run.ctx.starts_early = not run.has(0, "report")
    if recipe.iterations or recipe.warm_start is not None:
        run.ctx.start_trainer_early()
    weights = fetched_source(run, recipe.model, puzzles, recipe.taught)
    if run.ctx.starts_early:
        run.ctx.start_engine_early(run.ctx.local_folder(weights), weights.digest)
    puzzles, prompts = fitting_puzzles(run, weights, puzzles)
    run.settle_rows(run, weights, puzzles, prompts)
    weights = trained_on_texts(run, weights, puzzles)
    judges = first_judges(run, weights, puzzles)
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
    return puzzles, Position(Weights(weights, reference=weights), decision, judges)
