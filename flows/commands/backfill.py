"""`deerstalker backfill`."""

from typing import Any

from rich.table import Table

from artifacts.layout import RunLayout
from artifacts.store import Store
from flows.commands.backend import prefect_beside
from flows.commands.output import print_json, terminal
from flows.options import Stored


def backfill_command(request: dict[str, Any], options: Stored) -> None:
    """Runs the backfill flow and prints each run's curve on the suite beside its own.

    Args:
        request: Fields of `flows.backfill.BackfillRequest` but the store, as given.
    """
    store = Store.open(options.store, writable=False)
    for run in request["runs"]:
        RunLayout(run).suite(request["suite"], 0)
    with prefect_beside(store, options) as running:
        from flows.backfill import BackfillRequest, backfill
        from flows.history import read_run
        from flows.recipes import load_profile, validate
        from flows.suites import curves, suite_rows

        asked = validate(BackfillRequest, {**request, "store": options.store}, "backfill")
        load_profile(asked.profile)
        for run in asked.runs:
            read_run(store, run)
        with running():
            result = backfill(asked)
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
        console.print(f"report: {page}", soft_wrap=True)
    console.print(f"{result.evaluated} evaluated, {result.cached} were there")
    if result.skipped:
        console.print(f"skipped, pruned before: {', '.join(result.skipped)}", soft_wrap=True)
