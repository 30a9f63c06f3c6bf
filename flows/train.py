"""The main job: warm start, iterations, and a measurement before and after on puzzles that no choice looked at."""

from prefect import flow

from artifacts.layout import RunLayout
from artifacts.refs import Checkpoint, Decision, Puzzles, Ref, Report
from flows.iteration import Position, iteration
from flows.lookup.fetching import fetched_source
from flows.opening import RunRequest, opened
from flows.puzzle_set import publish_set
from flows.report.html.run_report import write_report
from flows.session import Session
from stages.evaluate import evaluate
from stages.promote import promote, standing
from stages.training.launch import Weights
from stages.warm_start import warm_start


@flow(name="train", flow_run_name="{request.run}", persist_result=False, validate_parameters=True)
def train(request: RunRequest) -> str:
    """Trains a model by a recipe and returns the key of its report, or of the run where only a part was asked for.

    Args:
        request: Run name, recipe, profile, store, overrides, and the stage behind which to stop.
    """
    with opened(request) as run:
        puzzles = publish_set(run, run.recipe.puzzles)
        position = first_position(run, puzzles)
        run.iteration_finished(0)
        _measure(run, position, puzzles, "before")
        for n in range(1, run.recipe.iterations + 1):
            position = iteration(run, puzzles, position, n)
            run.iteration_finished(n)
        _measure(run, position, puzzles, "after")
        return write_report(run)
    return RunLayout(request.run).root


def first_position(run: Session, puzzles: Ref[Puzzles]) -> Position:
    """The run's model, warm-started where the recipe says so, measured, and promoted as the first candidate."""
    recipe = run.recipe
    weights = fetched_source(run, recipe.model, puzzles)
    if recipe.warm_start is not None:
        out = run.slot(run.layout.warm_start("checkpoint"), Checkpoint)
        weights = run.run(warm_start, recipe.warm_start, weights, puzzles, out=out)
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
    return Position(Weights(weights, reference=weights), decision)


def _measure(run: Session, position: Position, puzzles: Ref[Puzzles], when: str) -> None:
    """Evaluates what stands promoted on the test split."""
    assert position.decision is not None
    promoted = Ref[Checkpoint](**standing(position.decision, run.ctx)["checkpoint"])
    run.run(
        evaluate,
        run.recipe.final,
        promoted,
        puzzles,
        split="test",
        out=run.slot(run.layout.evaluation(when), Report, label=f"test-{when}"),
    )
