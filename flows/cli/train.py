"""`deerstalker train` and `deerstalker iterate`."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from artifacts.layout import RunLayout
from artifacts.store.store import Store
from flows.cli.console.interrupts import continues_with
from flows.cli.console.options import MACHINE, Flag, Machine, Optional, RecipeChanges, RefreshedStages, shipped
from flows.cli.console.output import show_run
from flows.cli.console.prefect_session import prefect_session
from flows.cli.console.profiles import check_devices
from flows.cli.console.stores import filled_store

if TYPE_CHECKING:
    from flows.iterate import IterateRequest


def train(
    *,
    recipe: Annotated[
        str,
        Parameter(help=f"Name of a recipe ({shipped('recipes')}; see `deerstalker recipes`), or path of a TOML file."),
    ] = "quickstart",
    run: Annotated[str | None, Optional] = None,
    set_: Annotated[
        RecipeChanges,
        Parameter(help="Change of the recipe, as section.key=value; may be repeated. Recorded with the run."),
    ] = (),
    refresh: RefreshedStages = (),
    role: Literal["both", "sampler", "trainer"] = "both",
    quiet: Flag = False,
    options: Machine = MACHINE,
) -> None:
    """Runs the train flow and prints the run's results.

    Args:
        run: Name of the run; the recipe's name by default.
        role: Part of a run with iterate_ahead that this command does; unless it is both, another command does the rest.
        quiet: Leave out the puzzle whose solution is printed before and after training.
    """
    name = Path(recipe).stem if run is None else run
    if run is not None or recipe.endswith(".toml"):  # other names are shipped recipes, or `load_recipe` refuses them
        RunLayout(name)
    check_devices(options, trains=role != "sampler")
    store = Store.open(options.store)
    with prefect_session(store, options) as running:
        from flows.config.recipes import load_profile, load_recipe, validate

        load_recipe(recipe, set_)
        load_profile(options.profile, options.set_profile)

        from flows.opening import RunRequest
        from flows.train import train as train_flow

        settings = {
            "run": name,
            "recipe": recipe,
            **options.request(),
            "overrides": list(set_),
            "refresh": list(refresh),
            "role": role,
        }
        request = validate(RunRequest, settings, "train")
        with running():
            train_flow(request)
    show_run(name, store, options, quiet=quiet)


def iterate(
    run: str,
    /,
    *,
    more: Annotated[int | None, Optional] = None,
    until: Annotated[int | None, Optional] = None,
    refresh: RefreshedStages = (),
    quiet: Flag = False,
    options: Machine = MACHINE,
) -> None:
    """Runs the iterate flow and prints the run's results.

    Args:
        run: Name of the run.
        more: Number of iterations to add to the finished ones.
        until: Last iteration to run; instead of --more.
        quiet: Leave out the puzzle whose solution is printed before and after training.
    """
    check_devices(options, trains=True)
    store = filled_store(options.store)
    with prefect_session(store, options) as running:
        from flows.config.recipes import load_profile, validate
        from flows.iterate import IterateRequest
        from flows.iterate import iterate as iterate_flow
        from flows.lookup.history import read_run

        layout = read_run(store, run).layout
        load_profile(options.profile, options.set_profile)
        settings = {
            "run": run,
            "more": more,
            "until": until,
            **options.request(),
            "refresh": list(refresh),
        }
        request = validate(IterateRequest, settings, "iterate")
        with running():
            iterate_flow(with_last(request, store, layout))
    show_run(run, store, options, quiet=quiet)


def with_last(request: "IterateRequest", store: Store, layout: RunLayout) -> "IterateRequest":
    """Returns a request that names its last iteration, and tells how an interrupted command continues up to it.

    The same command with --more would count from the iterations that have ended by then.
    """
    from flows.iterate import iterations_done

    if request.more is None:
        return request
    last = iterations_done(store, layout, datetime.now(UTC)) + request.more
    change = f"with --until {last} instead of --more {request.more}"
    continues_with(change)
    print(f"up to iteration {last}; if this command is interrupted, repeat it {change}", file=sys.stderr)
    return request.model_copy(update={"more": None, "until": last})
