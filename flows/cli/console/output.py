"""Prints the results of commands on stdout: one JSON document, or text."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artifacts.errors import StoreError
from artifacts.store.location import DATA_FOLDER
from artifacts.store.store import Store
from artifacts.verification import Damage, damage_error
from flows.cli.console.options import Output
from flows.report.text.visible import one_line, visible_json

if TYPE_CHECKING:
    from rich.console import Console


def print_json(document: Any) -> None:
    """Prints one JSON document; escapes control characters, which changes no value."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(visible_json(text) + "\n")


def print_line(text: str) -> None:
    """Prints a text as one line, with control characters escaped."""
    sys.stdout.write(one_line(text) + "\n")


def terminal(width: int | None = None) -> "Console":
    """Returns a console for stdout that prints every string as plain text on one line (see `Terminal`).

    The strings of this program come from files that anybody may have written. Print text of several lines as
    `rich.text.Text(visible(text))`.

    Args:
        width: Columns of a line; None uses COLUMNS if set, else the width of the terminal, or 80 if there is none.
    """
    from flows.cli.console.terminal import Terminal  # JSON does not need rich

    return Terminal(width=width)


def print_differences(a: str, b: str, values: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a table of settings with their values in `a` and in `b`, as JSON; a value that is missing is empty."""
    from rich.table import Table

    table = Table()
    table.add_column("setting", no_wrap=True)
    for name in (a, b):
        table.add_column(name, overflow="fold")
    for setting, sides in values.items():
        cells = (json.dumps(sides[side], ensure_ascii=False) if side in sides else "" for side in ("a", "b"))
        table.add_row(setting, *cells)
    terminal().print(table)


def fail_if_damaged(store: Store, damaged: Sequence[Damage], *, json: bool) -> None:
    """Raises an error if artifacts are damaged, because the printed results lack them; returns otherwise.

    Args:
        json: Whether the printed JSON document lists the damage; if not, the damage is printed here.

    Raises:
        IntegrityError: An artifact is damaged.
    """
    if not damaged:
        return
    if not json:
        for damage in damaged:
            print_line(f"damaged: {damage.file}: {damage.found}; expected {damage.expected}")
    sys.stdout.flush()
    raise damage_error(store, damaged)


def print_damaged_json(document: Mapping[str, Any], store: Store, damaged: Sequence[Damage]) -> None:
    """Prints a JSON document with a further field, `damaged`: the damaged artifacts that the document leaves out.

    Raises:
        IntegrityError: An artifact is damaged; the document has been printed.
    """
    print_json({**document, "damaged": [asdict(damage) for damage in damaged]})
    fail_if_damaged(store, damaged, json=True)


def local_folder(store: Store | None) -> Path:
    """Returns the folder for local files other than artifacts.

    It is PREFECT_HOME if that is set, else `.prefect` in a directory store or, also without a store, the default store.

    Raises:
        StoreError: The folder, or an entry of it, is a symbolic link, so that files would be written elsewhere; or it
            cannot be read.
    """
    if home := os.environ.get("PREFECT_HOME"):
        return Path(home)
    folder, elsewhere = (
        (store and store.local_path(".prefect")) or Path(DATA_FOLDER) / ".prefect",
        "or let PREFECT_HOME name",
    )
    try:
        links = [path for path in (folder, *(folder.iterdir() if folder.is_dir() else ())) if path.is_symlink()]
    except PermissionError as error:
        raise StoreError(
            str(folder), "a folder that may not be read", "a folder of yours", f"correct it, {elsewhere} another folder"
        ) from error
    if links:
        raise StoreError(
            str(links[0]), "a symbolic link", "a file or a folder of its own", f"remove it, {elsewhere} another folder"
        )
    return folder


def show_run(name: str, store: Store, options: Output, *, quiet: bool) -> None:
    """Prints a run's results before and after training, its promoted checkpoint, and how to use it.

    Args:
        name: Name of the run.
        store: Its store.
        options: Whether to print JSON.
        quiet: Whether to leave out the puzzle that shows the progress in words.
    """
    from flows.lookup.history import read_run
    from flows.report.before_after import find_before_after
    from flows.report.summary import print_summary, summary

    record = read_run(store, name)
    if options.json:
        print_json(summary(record, store))
        return
    console = terminal()
    if not quiet and (pair := find_before_after(record, store)):
        from flows.cli.console.derivations import print_before_after

        print_before_after(console, pair)
        console.print()
    print_summary(record, store, console)
