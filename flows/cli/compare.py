"""`deerstalker compare`."""

from typing import Annotated

from cyclopts import Parameter

from flows.cli.console.options import MACHINE, Machine, RecipeChanges
from flows.cli.console.output import print_json, terminal
from flows.cli.console.prefect_session import prefect_session
from flows.cli.console.profiles import check_devices
from flows.cli.console.stores import filled_store


def compare(
    run: str,
    /,
    *,
    recipes: str,
    iteration: int = 1,
    set_: Annotated[
        RecipeChanges, Parameter(help="Change of every recipe, as section.key=value; may be repeated.")
    ] = (),
    options: Machine = MACHINE,
) -> None:
    """Runs the compare flow and prints the results, one column for each recipe.

    Args:
        run: Name of the run whose rollouts are used.
        recipes: Names of recipes or paths of TOML files, separated by commas; `own` means the run's own settings.
        iteration: Number of the run's iteration.
    """
    check_devices(options, trains=True)
    names = recipes.split(",")
    store = filled_store(options.store)
    with prefect_session(store, options) as running:
        from flows.compare.candidates import candidates
        from flows.compare.comparison import CompareRequest
        from flows.compare.comparison import compare as compare_flow
        from flows.compare.comparison_report import text_rows
        from flows.config.recipes import load_profile, validate
        from flows.lookup.history import read_run
        from flows.report.summary import figures_table

        record = read_run(store, run)
        load_profile(options.profile, options.set_profile)
        candidates(record.recipe_at(iteration), names, set_)  # fail before the server starts
        settings = {"run": run, "iteration": iteration, "recipes": names, "overrides": list(set_)}
        request = validate(CompareRequest, {**settings, **options.request()}, "compare")
        with running():
            result = compare_flow(request)
    if options.json:
        print_json(result)
        return
    title = f"{run}, iteration {iteration}: the same rollouts under each recipe"
    console = terminal()
    console.print(figures_table(title, list(result["recipes"]), text_rows(result["recipes"])))
    console.print(f"report: {result['report']}", soft_wrap=True)
