"""`deerstalker train`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console

from artifacts.layout import RunLayout
from artifacts.store import Store
from flows.backend import Backend
from flows.history import read_run
from flows.recipes import load_profile, load_recipe
from flows.summary import print_summary, summary
from flows.surroundings import DEFAULT_STORE, prepare_surroundings


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
    RunLayout(name)
    store = Store.open(options.store)
    home = local_folder(store)
    prepare_surroundings(home, debug=options.debug)
    with Backend(home / "server.log") as backend:
        load_recipe(recipe, overrides)
        load_profile(profile, profile_overrides)

        from flows.live import choose_view, use_view
        from flows.opening import RunRequest
        from flows.train import train

        request = RunRequest(
            run=name, recipe=recipe, profile=profile, store=options.store,
            overrides=list(overrides), profile_overrides=list(profile_overrides),
        )
        with backend.ready(), use_view(choose_view(plain=options.json or options.debug)):
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
