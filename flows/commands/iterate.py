"""`deerstalker iterate`."""

from collections.abc import Sequence

from artifacts.store import Store
from flows.backend import Backend
from flows.commands.output import local_folder
from flows.commands.train import show_run
from flows.options import Stored
from flows.surroundings import prepare_surroundings


def iterate_command(
    run: str, more: int | None, until: int | None, profile: str, *, refresh: Sequence[str], options: Stored
) -> None:
    """Checks what was asked for, runs the iterate flow and prints what came of it."""
    store = Store.open(options.store)
    home = local_folder(store)
    prepare_surroundings(home, debug=options.debug)
    with Backend(home / "server.log") as backend:
        from flows.history import read_run
        from flows.iterate import IterateRequest, iterate
        from flows.live import choose_view, use_view
        from flows.recipes import load_profile, validate

        read_run(store, run)
        load_profile(profile)
        asked = {"run": run, "more": more, "until": until, "profile": profile, "store": options.store}
        request = validate(IterateRequest, {**asked, "refresh": list(refresh)}, "iterate")
        with backend.ready(), use_view(choose_view(plain=options.json or options.debug)):
            iterate(request)
    show_run(run, store, options)
