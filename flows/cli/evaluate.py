"""`deerstalker evaluate` and `deerstalker benchmark`."""

from typing import Annotated

from artifacts.errors import BadInputError
from artifacts.store.store import Store
from flows.cli.console.options import ANSWERS, MACHINE, Flag, Machine, MeasureOptions, Optional, Repeated
from flows.cli.console.output import print_json, terminal
from flows.cli.console.prefect_session import prefect_session
from flows.cli.console.profiles import check_devices


def evaluate(
    *,
    checkpoint: str,
    puzzles: Annotated[str | None, Optional] = None,
    suite: Annotated[str | None, Optional] = None,
    answers: MeasureOptions = ANSWERS,
    options: Machine = MACHINE,
) -> None:
    """Runs the evaluate flow and prints the measurements, one column for each grader.

    Args:
        checkpoint: A run, RUN@ITERATION, a checkpoint's key, a Hugging Face folder, hub:ID[@REVISION],
            gguf:PACKAGE/FILE, or recipe:NAME of a recipe that starts from a model with weights.
        puzzles: A JSON file in the published format, RUN:SPLIT with train, val or test, or KEY:SPLIT of a set made by
            puzzles make.
        suite: Instead of --puzzles: a suite of the package (such as panel or math500), or a TOML file with a title and
            [puzzles].
    """
    check_devices(options)
    _check_puzzles(puzzles, suite)
    settings = answers.config()
    store = Store.open(options.store)
    with prefect_session(store, options) as running:
        from flows.config.recipes import load_profile, validate
        from flows.lookup.checkpoints import find_checkpoint
        from stages.evaluate import EvaluateConfig

        config = validate(EvaluateConfig, settings, "evaluate")
        load_profile(options.profile, options.set_profile)
        find_checkpoint(checkpoint, store)

        from flows.evaluation import EvaluationRequest, evaluate_checkpoint

        request = EvaluationRequest(
            checkpoint=checkpoint, puzzles=puzzles, suite=suite, config=config, **options.request()
        )
        with running():
            result = evaluate_checkpoint(request)
    if options.json:
        print_json(result.model_dump(mode="json"))
        return
    from flows.report.measures import RELIABILITY_MEASURES, STRATEGY_MEASURES
    from flows.report.summary import figures_table, measure_rows, reliability_rows, strategy_rows, task_rows

    sampled = f"sampled: avg@{answers.samples}, the mean of {answers.samples} answers to each"
    title = f"{checkpoint} on {result.puzzles} puzzles, means with 95% intervals; {sampled}"
    names = [f"{grader} grading" for grader in result.gradings]
    console = terminal()
    console.print(figures_table(title, names, measure_rows(list(result.gradings.values()))))
    if result.tasks:
        head, rows = task_rows(result.tasks)
        console.print(figures_table("accuracy of each task", head, rows))
    if result.strategies:
        head, rows = [item.title for item in STRATEGY_MEASURES], strategy_rows(result.strategies)
        console.print(
            figures_table(f"strategies with {answers.samples} samples; the ceiling knows the answers", head, rows)
        )
        head, rows = [item.title for item in RELIABILITY_MEASURES], reliability_rows(result.reliability)
        console.print(figures_table("by number of samples", head, rows))
    console.print(f"report: {result.report}", soft_wrap=True)


def benchmark(
    *,
    models: str,
    puzzles: Annotated[str | None, Optional] = None,
    suite: Annotated[str | None, Optional] = None,
    only: Annotated[tuple[str, ...], Repeated] = (),
    count: Annotated[int | None, Optional] = None,
    samples: int = 1,
    max_cost: Annotated[float | None, Optional] = None,
    dry_run: Flag = False,
    old_prices: Flag = False,
    options: Machine = MACHINE,
) -> None:
    """Runs the benchmark flow and prints one row for each model, or with --dry-run the estimated cost of each.

    Args:
        models: A TOML file of models, or the name of one of the package (temporal_clue_2025).
        puzzles: A JSON file in the published format, RUN:SPLIT with train, val or test, or KEY:SPLIT of a set made by
            puzzles make.
        suite: Instead of --puzzles: a suite of the package (such as panel or math500), or a TOML file with a title and
            [puzzles].
        only: Name of a model in the file; may be repeated. By default all.
        count: Number of puzzles, from the first; by default 64, or all of a suite.
        samples: Number of answers of each model to each puzzle.
        max_cost: Dollars that this command may spend; it stops before an answer might exceed this amount.
        dry_run: Only estimate the cost of the missing answers; nothing is bought.
        old_prices: Buy even if a price in the file is over a year old.
    """
    check_devices(options, samples=False)  # models behind APIs need no engine
    _check_puzzles(puzzles, suite)
    settings = {
        "models": models,
        "only": list(only),
        "puzzles": puzzles,
        "suite": suite,
        "count": count,
        "samples": samples,
        "max_cost": max_cost,
        "dry_run": dry_run,
        "old_prices": old_prices,
        **options.request(),
    }
    store = Store.open(options.store)
    with prefect_session(store, options) as running:
        from flows.benchmark import BenchmarkRequest
        from flows.benchmark import benchmark as benchmark_flow
        from flows.config.models_file import load_models
        from flows.config.recipes import load_profile, validate

        request = validate(BenchmarkRequest, settings, "benchmark")
        load_profile(options.profile, options.set_profile)
        load_models(request.models, request.only)
        with running():
            result = benchmark_flow(request)
    if options.json:
        print_json(result.model_dump(mode="json"))
        return
    from flows.report.terminal.benchmark import benchmark_table, estimate_table

    terminal().print(estimate_table(result.estimates) if dry_run else benchmark_table(result.models, result.puzzles))


def _check_puzzles(puzzles: str | None, suite: str | None) -> None:
    """Checks that either puzzles or an existing suite is named."""
    from flows.config.suites import load_suite

    if puzzles is None:
        load_suite(suite)
    elif suite is not None:
        raise BadInputError("--suite", "given with --puzzles", "one of them", "drop one")
