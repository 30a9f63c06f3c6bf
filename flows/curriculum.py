"""The curriculum of a run: pass rates, the order of puzzles, and phases with settings of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Grades, Levels, Puzzles, Ref, Report, Rollouts, Transition
from artifacts.schemas import LEVELS, LEVELS_FILE, PUZZLES
from flows.checks.columns import check_columns, check_filters, reads_columns
from flows.inputs.models import fetched_source
from flows.inputs.prompts import refuse_overlong
from flows.lookup.preparation import rate_line
from flows.session.session import Session
from stages.curriculum.progress import read_progress
from stages.optional.advance import AdvanceConfig, advance
from stages.optional.rate import rate
from stages.optional.update_rates import update_rates

if TYPE_CHECKING:
    from flows.iteration import Position


def check_before(run: Session, puzzles: Ref[Puzzles]) -> None:
    """Checks columns and filters of the curriculum that need no pass rates, before a model is fetched.

    Raises:
        BadInputError: The puzzles lack a column of the curriculum, or a filter leaves too few of them.
    """
    if reads_columns(run.recipe):
        check_columns(run.recipe, _train(run, puzzles))


def first_levels(run: Session, start: Ref[Checkpoint], puzzles: Ref[Puzzles]) -> Ref[Levels] | None:
    """Returns the pass rates of the models that the recipe names; None if it names none.

    Args:
        run: The run.
        start: The model that GRPO starts from.
        puzzles: The puzzle set.

    Raises:
        BadInputError: A filter by pass rates leaves too few puzzles.
    """
    recipe, levels = run.recipe, None
    if recipe.rate is not None:
        checkpoints: dict[str, Ref[Checkpoint]] = {
            model.name: start if model.source is None else fetched_source(run, model.source, puzzles)
            for model in recipe.rate.models
        }
        for checkpoint in checkpoints.values():
            refuse_overlong(run, checkpoint, puzzles, "train")
        out = run.address(run.layout.levels, Levels)
        levels = run.run(rate, recipe.rate, checkpoints, puzzles, split="train", out=out)
        for name, figures in Artifact.open(run.ctx.store, levels).manifest.facts["rates"].items():
            run.live.line(f"pass rates of {name}: {rate_line(figures)}")
    if reads_columns(recipe):
        measured = levels and Artifact.open(run.ctx.store, levels).read_table(LEVELS_FILE, LEVELS)
        check_filters(recipe, _train(run, puzzles), measured)
    return levels


def _train(run: Session, puzzles: Ref[Puzzles]) -> pl.DataFrame:
    return Artifact.open(run.ctx.store, puzzles).read_table("train.parquet", PUZZLES)


def phase_after(run: Session, start: Position, after: Position, n: int) -> Position:
    """Records whether the phase of iteration `n` has ended, and returns the position from which the run continues.

    Args:
        start: The position before iteration `n`.
        after: The position after it.
    """
    phase = run.recipe.phases[start.phase]
    config = AdvanceConfig(iterations=phase.iterations, until=phase.until, phase=start.phase, since=start.since)
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
    weights, following = after.weights, run.recipe.phases[number]
    if since > n:
        run.live.line(f"phase {following.name!r} begins with iteration {since}")
        if following.optimizer == "fresh":
            weights = replace(weights, state=None, saving=None)
        if following.reference == "phase_start":
            weights = replace(weights, reference=weights.checkpoint)
    return replace(after, weights=weights, since=since, phase=number, transition=transition)


def levels_after(run: Session, start: Position, n: int) -> Ref[Levels] | None:
    """Returns the levels after iteration `n`: with its rates if an order or a filter reads those of the run."""
    if not run.recipe.rates_itself:
        return start.levels
    rollouts, grades = _published(run, n, "rollouts", Rollouts), _published(run, n, "grades", Grades)
    return run.run(update_rates, rollouts, grades, start.levels, iteration=n, out=run.at(n, "levels", Levels))


def _published(run: Session, n: int, part: str, kind: type[Any]) -> Ref[Any]:
    return Artifact.at(run.ctx.store, run.layout.iteration(n, part), kind).ref
