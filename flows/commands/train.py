"""`deerstalker train`."""

from collections.abc import Sequence
from pathlib import Path

from artifacts.layout import RunLayout
from artifacts.store import Store
from flows.commands.backend import prefect_beside
from flows.commands.output import print_json, terminal
from flows.options import Stored


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
    name = Path(recipe).stem if run is None else run
    if run is not None or recipe.endswith(".toml"):  # any other recipe is ours, or unknown, which is said below
        RunLayout(name)
    store = Store.open(options.store)
    with prefect_beside(store, options) as running:
        from flows.recipes import load_profile, load_recipe, validate

        load_recipe(recipe, changes)
        load_profile(profile, profile_changes)

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
        with running():
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
        print_summary(record, store, terminal())
