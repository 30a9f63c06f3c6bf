"""`deerstalker train`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from artifacts.layout import RunLayout
from artifacts.store import Store
from flows.recipes import load_profile, load_recipe
from flows.surroundings import DEFAULT_STORE, prepare_surroundings, short_lived_runs


class Options(Protocol):
    """Options of every command (see `flows.cli.Common`)."""

    @property
    def store(self) -> str: ...
    @property
    def json(self) -> bool: ...
    @property
    def debug(self) -> bool: ...


def train_command(
    recipe: str,
    run: str | None,
    profile: str,
    overrides: Sequence[str],
    profile_overrides: Sequence[str],
    options: Options,
) -> int:
    """Checks what was asked for, runs the train flow and prints what came of it."""
    name = run or Path(recipe).stem
    layout = RunLayout(name)
    resolved = load_recipe(recipe, overrides)
    load_profile(profile, profile_overrides)
    store = Store.open(options.store)
    prepare_surroundings(local_folder(store), debug=options.debug, hub=resolved.model.source == "hub")

    from rich.console import Console

    from flows.history import read_run
    from flows.live import choose_view, use_view
    from flows.opening import RunRequest
    from flows.summary import print_summary, summary
    from flows.train import train

    request = RunRequest(
        run=layout.run, recipe=recipe, profile=profile, store=options.store,
        overrides=list(overrides), profile_overrides=list(profile_overrides),
    )
    with use_view(choose_view(plain=options.json or options.debug)), short_lived_runs():
        train(request)
    record = read_run(store, name)
    if options.json:
        json.dump(summary(record, store), sys.stdout, indent=2)
        print()
    else:
        print_summary(record, store, Console())
    return 0


def local_folder(store: Store) -> Path:
    """Where this machine keeps what is not an artifact: beside them in a directory store, else in the default folder."""
    return store.local_path(".prefect") or Path(DEFAULT_STORE) / ".prefect"
