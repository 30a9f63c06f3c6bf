"""`deerstalker iterate`."""

from typing import Annotated

from artifacts.store.store import Store
from flows.cli.console.options import STORED, Optional, ProfileName, Refresh, Stored
from flows.cli.console.output import show_run
from flows.cli.console.prefect_session import prefect_session


def iterate(
    run: str,
    /,
    *,
    more: Annotated[int | None, Optional] = None,
    until: Annotated[int | None, Optional] = None,
    refresh: Refresh = (),
    profile: ProfileName = "cpu",
    options: Stored = STORED,
) -> None:
    """Runs the iterate flow and prints the run's results.

    Args:
        run: Name of the run.
        more: Number of iterations to add to the finished ones.
        until: Last iteration to run; instead of --more.
    """
    store = Store.open(options.store, writable=False)
    with prefect_session(store, options) as running:
        from flows.config.recipes import load_profile, validate
        from flows.iterate import IterateRequest
        from flows.iterate import iterate as iterate_flow
        from flows.lookup.history import read_run

        read_run(store, run)
        load_profile(profile)
        settings = {"run": run, "more": more, "until": until, "profile": profile, "store": options.store}
        request = validate(IterateRequest, {**settings, "refresh": list(refresh)}, "iterate")
        with running():
            iterate_flow(request)
    show_run(run, store, options)
