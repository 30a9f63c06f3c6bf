"""`deerstalker train`."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from artifacts.layout import RunLayout
from artifacts.store import Store
from flows.backend import Backend
from flows.commands.output import local_folder, print_json
from flows.options import Stored
from flows.surroundings import prepare_surroundings


def train_command(
    recipe: str,
    run: str | None,
    profile: str,
    *,
    changes: Sequence[str],
    profile_changes: Sequence[str],
    refresh: Sequence[str],
    options: Stored,
) -> None:
    """Checks what was asked for, runs the train flow and prints what came of it."""
    name = run or Path(recipe).stem
    RunLayout(name)
    store = Store.open(options.store)
    home = local_folder(store)
    prepare_surroundings(home, debug=options.debug)
    with Backend(home / "server.log") as backend:
        from flows.recipes import load_profile, load_recipe, validate

        load_recipe(recipe, changes)
        load_profile(profile, profile_changes)

        from flows.live import choose_view, use_view
        from flows.opening import RunRequest
        from flows.train import train

        asked = {
            "run": name,
            "recipe": recipe,
            "profile": profile,
            "store": options.store,
            "overrides": list(changes),
            "profile_overrides": list(profile_changes),
            "refresh": list(refresh),
        }
        request = validate(RunRequest, asked, "train")
        with backend.ready(), use_view(choose_view(plain=options.json or options.debug)):
            train(request)
    show_run(name, store, options)


def show_run(name: str, store: Store, options: Stored) -> None:
    """Prints a run's before/after table, its promoted checkpoint and how to use it."""
    from flows.history import read_run
    from flows.summary import print_summary, summary

    record = read_run(store, name)
    if options.json:
        print_json(summary(record, store))
    else:
        print_summary(record, store, Console())
