"""`deerstalker backfill`."""

from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from artifacts.layout import RunLayout
from flows.cli.console.options import ANSWERS, MACHINE, Machine, MeasureOptions, Optional
from flows.cli.console.output import print_json, terminal
from flows.cli.console.prefect_session import prefect_session
from flows.cli.console.profiles import check_devices
from flows.cli.console.stores import filled_store


def backfill(
    runs: Annotated[tuple[str, ...], Parameter(negative=())],
    /,
    *,
    suite: str,
    puzzles: Annotated[str | None, Optional] = None,
    checkpoints: Literal["all", "every", "best"] = "all",
    every: int = 10,
    at_once: int = 1,
    answers: MeasureOptions = ANSWERS,
    options: Machine = MACHINE,
) -> None:
    """Runs the backfill flow and prints each run's learning curves, its own and that of the suite.

    Args:
        runs: Names of one or more runs.
        suite: Name of the suite, of its folder in each run and of its curve. Without --puzzles: a suite of the package
            (such as panel or math500), or a TOML file with a title and [puzzles].
        puzzles: RUN:SPLIT or KEY:SPLIT (of a set made by puzzles make), or a JSON file in the published format.
        checkpoints: All; every k-th and the last; or the best, which is the promoted one.
        every: The k of --checkpoints every.
        at_once: Number of checkpoints evaluated at the same time, each by its own engine.
    """
    check_devices(options)
    config, key = answers.config(), suite
    if puzzles is None:
        from flows.config.suites import load_suite, suite_key

        load_suite(suite)
        key = suite_key(suite)
    store = filled_store(options.store)
    for run in runs:
        RunLayout(run).suite(key, 0)
    settings = {
        "runs": list(runs),
        "suite": suite,
        "puzzles": puzzles,
        "checkpoints": checkpoints,
        "every": every,
        "config": config,
        "at_once": at_once,
        **options.request(),
    }
    with prefect_session(store, options) as running:
        from flows.backfill import BackfillRequest
        from flows.backfill import backfill as backfill_flow
        from flows.config.recipes import load_profile, validate
        from flows.lookup.history import read_run
        from flows.report.suites import curves, suite_rows
        from flows.report.tasks import task_tables

        request = validate(BackfillRequest, settings, "backfill")
        load_profile(request.profile, request.profile_overrides)
        for run in request.runs:
            read_run(store, run)
        with running():
            result = backfill_flow(request)
    if options.json:
        print_json({"store": store.url, **result.model_dump(mode="json")})
        return
    console = terminal()
    for run, page in result.reports.items():
        record = read_run(store, run)
        table = Table(title=f"{run}: accuracy with 95% intervals", title_justify="left")
        table.add_column("iteration", justify="right")
        for title in curves(record):
            for mode in ("sampled", "greedy"):
                table.add_column(f"{title}, {mode}", justify="right")
        for row in suite_rows(record):
            if int(row[0]) in result.runs[run]:
                table.add_row(*row)
        console.print(table)
        for tasks in task_tables(record, store):
            if tasks.suite == result.suite:
                console.print(tasks.for_terminal(run))
        console.print(f"report: {page}", soft_wrap=True)
    console.print(f"{result.evaluated} evaluated, {result.cached} found")
    if result.skipped:
        console.print(f"skipped, pruned before: {', '.join(result.skipped)}", soft_wrap=True)
