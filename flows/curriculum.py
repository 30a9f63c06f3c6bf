"""The curriculum of a run: pass rates, the order of puzzles, and phases with settings of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Grades, PassRates, Puzzles, Ref, Report, Rollouts, Transition
from artifacts.schemas import PASS_RATES, PASS_RATES_FILE
from flows.checks.columns import check_columns, check_filters, reads_columns
from flows.inputs.models import fetched_source
from flows.inputs.prompts import refuse_overlong
from flows.lookup.preparation import rate_line
from flows.session.session import Session
from stages.curriculum.progress import read_progress
from stages.environments.tables import read_split
from stages.optional.advance import AdvanceConfig, advance
from stages.optional.rate import rate
from stages.optional.update_rates import update_rates

if TYPE_CHECKING:
    from flows.iteration import Position


def check_before(session: Session, puzzles: Ref[Puzzles]) -> None:
    """Checks columns and filters of the curriculum that need no pass rates, before the run writes anything of its own.

    Raises:
        BadInputError: The puzzles lack a column of the curriculum, or a filter leaves too few of them.
    """
    if reads_columns(session.recipe):
        check_columns(session.recipe, read_split(session.ctx.store, puzzles, "train"))


def first_pass_rates(session: Session, start: Ref[Checkpoint], puzzles: Ref[Puzzles]) -> Ref[PassRates] | None:
    """Returns the pass rates of the models that the recipe names; None if it names none.

    Args:
        session: The run.
        start: The model that GRPO starts from.
        puzzles: The puzzle set.

    Raises:
        BadInputError: A filter by pass rates leaves too few puzzles.
    """
    recipe, pass_rates = session.recipe, None
    if recipe.rate is not None:
        checkpoints: dict[str, Ref[Checkpoint]] = {
            model.name: start if model.source is None else fetched_source(session, model.source, puzzles)
            for model in recipe.rate.models
        }
        for checkpoint in checkpoints.values():
            refuse_overlong(session, checkpoint, puzzles)
        out = session.address(session.layout.pass_rates, PassRates)
        pass_rates = session.run(rate, recipe.rate, checkpoints, puzzles, split="train", out=out)
        for name, figures in Artifact.open(session.ctx.store, pass_rates).manifest.facts["rates"].items():
            session.live.line(f"pass rates of {name}: {rate_line(figures)}")
    if reads_columns(recipe):
        measured = pass_rates and Artifact.open(session.ctx.store, pass_rates).read_table(PASS_RATES_FILE, PASS_RATES)
        check_filters(recipe, read_split(session.ctx.store, puzzles, "train"), measured)
    return pass_rates


def phase_after(session: Session, start: Position, after: Position, n: int) -> Position:
    """Records whether the phase of iteration `n` has ended, and returns the position from which the run continues.

    Args:
        start: The position before iteration `n`.
        after: The position after it.
    """
    phase = session.recipe.phases[start.phase]
    config = AdvanceConfig(iterations=phase.iterations, until=phase.until, phase=start.phase, since=start.since)
    transition = session.run(
        advance,
        config,
        _published(session, n, "grades", Grades),
        _published(session, n, "report", Report),
        start.transition,
        iteration=n,
        out=session.at(n, "transition", Transition),
    )
    number, since = read_progress(transition, session.ctx.store).position_after(n)
    weights, states_since, following = after.weights, start.states_since, session.recipe.phases[number]
    if since > n:
        session.live.line(f"phase {following.name!r} begins with iteration {since}")
        if following.optimizer == "fresh":
            weights, states_since = replace(weights, state=None, saving=None), since
        if following.reference == "phase_start":
            weights = replace(weights, reference=weights.checkpoint)
    return replace(after, weights=weights, since=since, states_since=states_since, phase=number, transition=transition)


def pass_rates_after(session: Session, start: Position, n: int) -> Ref[PassRates] | None:
    """Returns the pass rates after iteration `n`, its own included if an order or filter reads the run's."""
    if not session.recipe.rates_itself:
        return start.pass_rates
    rollouts, grades = _published(session, n, "rollouts", Rollouts), _published(session, n, "grades", Grades)
    return session.run(
        update_rates, rollouts, grades, start.pass_rates, iteration=n, out=session.at(n, "pass_rates", PassRates)
    )


def _published(session: Session, n: int, part: str, kind: type[Any]) -> Ref[Any]:
    return Artifact.at(session.ctx.store, session.layout.iteration(n, part), kind).ref
