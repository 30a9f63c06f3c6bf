"""Wraps `flows.iteration` with a curriculum: measures pass rates, and applies the stage to which an iteration belongs.

Without a curriculum in the recipe, a run only calls `flows.iteration`.
"""

from dataclasses import dataclass, replace
from typing import Any

from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Grades, Levels, Puzzles, Ref, Report, Rollouts, Transition
from artifacts.schemas import LEVELS, LEVELS_FILE, PUZZLES
from flows import iteration as main_path
from flows.checks.columns import check_columns, check_filters, reads_columns
from flows.inputs.models import fetched_source
from flows.inputs.prompts import refuse_overlong
from flows.iteration import Position
from flows.lookup.preparation import rate_line, rates_in
from flows.session import Session
from stages.curriculum.progress import read_progress
from stages.optional.advance import AdvanceConfig, advance
from stages.optional.fold import fold
from stages.optional.rate import rate


@dataclass(frozen=True)
class StagedPosition(Position):
    """The state of a staged run between iterations.

    Attributes:
        stage: Number of the next iteration's stage, from 0.
        transition: The stage's progress after the last iteration; None before the first.
    """

    stage: int = 0
    transition: Ref[Transition] | None = None


def first_position(run: Session, puzzles: Ref[Puzzles]) -> tuple[Ref[Puzzles], Position]:
    """Returns the position before iteration 1, with the pass rates of the models that the recipe names.

    Returns:
        The puzzles, without those whose prompts are overlong if the recipe drops them, and the position of the run.

    Raises:
        BadInputError: The puzzles lack a column of the curriculum, or a filter takes too few of them.
    """
    recipe = run.recipe
    reads = reads_columns(recipe)
    if reads:
        check_columns(recipe, Artifact.open(run.ctx.store, puzzles).read_table("train.parquet", PUZZLES))
    puzzles, position = main_path.first_position(run, puzzles)
    if recipe.rate is not None:
        start = position.weights.checkpoint
        checkpoints: dict[str, Ref[Checkpoint]] = {
            model.name: start if model.source is None else fetched_source(run, model.source, puzzles)
            for model in recipe.rate.models
        }
        for checkpoint in checkpoints.values():
            refuse_overlong(run, checkpoint, puzzles, "train")
        out = run.address(run.layout.levels, Levels)
        levels = run.run(rate, recipe.rate, checkpoints, puzzles, split="train", out=out)
        for name, figures in rates_in(Artifact.open(run.ctx.store, levels).manifest.facts).items():
            run.live.line(f"pass rates of {name}: {rate_line(figures)}")
        position = replace(position, levels=levels)
    if reads:
        train = Artifact.open(run.ctx.store, puzzles).read_table("train.parquet", PUZZLES)
        measured = position.levels and Artifact.open(run.ctx.store, position.levels).read_table(LEVELS_FILE, LEVELS)
        check_filters(recipe, train, measured)
    return puzzles, position


def staged_iteration(run: Session, puzzles: Ref[Puzzles], start: Position, n: int) -> Position:
    """Runs iteration `n` by the recipe of its stage and returns the position after it."""
    recipe = run.recipe
    if recipe.stages:
        return _staged(run, puzzles, start, n)
    position = main_path.iteration(run, puzzles, start, n)
    return replace(position, levels=_levels_after(run, start, n))


def _staged(run: Session, puzzles: Ref[Puzzles], start: Position, n: int) -> Position:
    """Runs an iteration of a staged run, records whether its stage has ended, and begins the next stage."""
    if not isinstance(start, StagedPosition):
        start = StagedPosition(start.weights, start.decision, start.judges, start.levels)
    stage = run.recipe.stages[start.stage]
    position = main_path.iteration(run.with_recipe(run.recipe.in_stage(start.stage)), puzzles, start, n)
    config = AdvanceConfig(iterations=stage.iterations, until=stage.until, stage=start.stage, since=start.since)
    transition = run.run(
        advance,
        config,
        _published(run, n, "grades", Grades),
        _published(run, n, "report", Report),
        start.transition,
        iteration=n,
        out=run.at(n, "transition", Transition),
    )
    number, since = read_progress(transition, run.ctx.store).position_after(n)
    weights, following = position.weights, run.recipe.stages[number]
    if since > n:
        run.live.line(f"stage {following.name!r} begins with iteration {since}")
        if following.optimizer == "fresh":
            weights = replace(weights, state=None, saving=None)
        if following.reference == "stage_start":
            weights = replace(weights, reference=weights.checkpoint)
    levels = _levels_after(run, start, n)
    return StagedPosition(
        weights, position.decision, position.judges, levels, since, stage=number, transition=transition
    )


def _levels_after(run: Session, start: Position, n: int) -> Ref[Levels] | None:
    """Returns the levels with the rates of iteration `n`, if an order or a filter reads those of the run."""
    if not run.recipe.rates_itself:
        return start.levels
    rollouts, grades = _published(run, n, "rollouts", Rollouts), _published(run, n, "grades", Grades)
    return run.run(fold, rollouts, grades, start.levels, iteration=n, out=run.at(n, "levels", Levels))


def _published(run: Session, n: int, part: str, kind: type[Any]) -> Ref[Any]:
    return Artifact.at(run.ctx.store, run.layout.iteration(n, part), kind).ref
