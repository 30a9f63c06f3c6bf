"""`deerstalker iterate`."""

from collections.abc import Sequence

from artifacts.store import Store
from flows.commands.backend import prefect_beside
from flows.commands.train import show_run
from flows.options import Stored


def iterate_command(
    run: str, more: int | None, until: int | None, profile: str, *, refresh: Sequence[str], options: Stored
) -> None:
    """Checks what was asked for, runs the iterate flow and prints what came of it."""
    store = Store.open(options.store, writable=False)
    with prefect_beside(store, options) as running:
        from flows.history import read_run
        from flows.iterate import IterateRequest, iterate
        from flows.recipes import load_profile, validate

        read_run(store, run)
        load_profile(profile)
        asked = {"run": run, "more": more, "until": until, "profile": profile, "store": options.store}
        request = validate(IterateRequest, {**asked, "refresh": list(refresh)}, "iterate")
        with running():
            iterate(request)
    show_run(run, store, options)
