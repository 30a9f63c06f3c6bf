"""`deerstalker compare`."""

from collections.abc import Sequence

from rich.table import Table

from artifacts.store import Store
from flows.commands.backend import prefect_beside
from flows.commands.output import print_json, terminal
from flows.options import Stored


def compare_command(
    run: str, iteration: int, recipes: Sequence[str], profile: str, *, changes: Sequence[str], options: Stored
) -> None:
    """Runs the compare flow and prints a column a recipe."""
    store = Store.open(options.store, writable=False)
    with prefect_beside(store, options) as running:
        from flows.candidates import candidates
        from flows.compare import CompareRequest, compare
        from flows.compare_report import text_rows
        from flows.history import read_run
        from flows.recipes import Recipe, load_profile, validate

        record = read_run(store, run)
        load_profile(profile)
        candidates(validate(Recipe, record.recipe, f"recipe of {run}"), recipes, changes)  # before anything starts
        asked = {"run": run, "iteration": iteration, "recipes": list(recipes), "overrides": list(changes)}
        request = validate(CompareRequest, {**asked, "store": options.store, "profile": profile}, "compare")
        with running():
            result = compare(request)
    if options.json:
        print_json(result)
        return
    table = Table(title=f"{run}, iteration {iteration}: the same rollouts under each recipe", title_justify="left")
    table.add_column("")
    for name in result["recipes"]:
        table.add_column(name, justify="right")
    for row in text_rows(result["recipes"]):
        table.add_row(*row)
    console = terminal()
    console.print(table)
    console.print(f"report: {result['report']}", soft_wrap=True)
