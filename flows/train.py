"""The `train` flow: warm start, GRPO iterations, and an evaluation on the test split before and after them."""

from prefect import flow

from artifacts.layout import RunLayout
from artifacts.refs import Puzzles, Ref, Report
from flows import ahead
from flows.iteration import Position, begin, run_iterations
from flows.opening import RunRequest, opened
from flows.session.session import Session
from stages.evaluate import evaluate
from stages.promote import promoted_checkpoint


@flow(name="train", flow_run_name="{request.run}", persist_result=False, validate_parameters=True)
def train(request: RunRequest) -> str:
    """Trains a model by a recipe and returns the key of its report, or of the run if `stop_after` ended it early.

    Args:
        request: Run name, recipe, profile, store, overrides, role, and the stage after which to stop.
    """
    with opened(request) as session:
        if request.role == "sampler":
            return _sample_ahead(session)
        puzzles, position = begin(session)
        session.iteration_finished(0)
        _measure(session, position, puzzles, "before")
        position = run_iterations(session, puzzles, position, session.recipe.iterations, request.role)
        _measure(session, position, puzzles, "after")
        return session.write_report()
    return RunLayout(request.run).root  # `opened` ended the block early, after the stage that `stop_after` names


def _sample_ahead(session: Session) -> str:
    """Samples every iteration for another flow run, which does everything else, and returns the key of the run."""
    if session.stops_in(0):  # the other flow run ends before there is anything to sample
        return session.layout.root
    ahead.wait_for_start(session)
    puzzles, position = begin(session)
    ahead.sample_all(session, puzzles, position, session.recipe.iterations)
    return session.layout.root


def _measure(session: Session, position: Position, puzzles: Ref[Puzzles], when: str) -> None:
    """Evaluates the promoted checkpoint on the test split."""
    session.run(
        evaluate,
        session.recipe.final,
        promoted_checkpoint(position.decision, session.ctx),
        puzzles,
        split="test",
        out=session.address(session.layout.evaluation(when), Report, label=f"test-{when}"),
    )
