"""`deerstalker evaluate`."""

from typing import Annotated

from artifacts.errors import BadInputError
from artifacts.store.store import Store
from flows.cli.console.options import ANSWERS, STORED, Answers, Optional, ProfileName, Stored
from flows.cli.console.output import print_json, terminal
from flows.cli.console.prefect_session import prefect_session


def evaluate(
    *,
    checkpoint: str,
    puzzles: Annotated[str | None, Optional] = None,
    suite: Annotated[str | None, Optional] = None,
    profile: ProfileName = "cpu",
    answers: Answers = ANSWERS,
    options: Stored = STORED,
) -> None:
    """Runs the evaluate flow and prints the measurements, one column for each grader.

    Args:
        checkpoint: A run, RUN@ITERATION, a checkpoint's key, a Hugging Face folder, hub:ID, gguf:PACKAGE/FILE or
            recipe:NAME.
        puzzles: A JSON file in the published format, or RUN:SPLIT with train, val or test.
        suite: Instead of --puzzles: a suite of the package (panel), or a TOML file with a title and [puzzles].
    """
    from flows.config.suites import load_suite, required_suite

    if puzzles is None:
        load_suite(required_suite(suite))
    elif suite is not None:
        raise BadInputError("--suite", "given with --puzzles", "one of them", "drop one")
    store = Store.open(options.store)
    with prefect_session(store, options) as running:
        from flows.config.recipes import load_profile, validate
        from flows.lookup.checkpoints import find_checkpoint
        from stages.evaluate import EvaluateConfig

        config = validate(EvaluateConfig, answers.config(), "evaluate")
        load_profile(profile)
        find_checkpoint(checkpoint, store)

        from flows.evaluation import EvaluationRequest, evaluate_checkpoint

        request = EvaluationRequest(
            checkpoint=checkpoint, puzzles=puzzles, suite=suite, store=options.store, profile=profile, config=config
        )
        with running():
            result = evaluate_checkpoint(request)
    if options.json:
        print_json(result.model_dump(mode="json"))
        return
    from flows.report.summary import figures_table, measure_rows, task_rows

    sampled = f"sampled: avg@{answers.samples}, the mean of {answers.samples} answers to each"
    title = f"{checkpoint} on {result.puzzles} puzzles, means with 95% intervals; {sampled}"
    names = [f"{grader} grading" for grader in result.gradings]
    console = terminal()
    console.print(figures_table(title, names, measure_rows(list(result.gradings.values()))))
    if result.tasks:
        head, rows = task_rows(result.tasks)
        console.print(figures_table("accuracy of each task", head, rows))
    console.print(f"report: {result.report}", soft_wrap=True)
