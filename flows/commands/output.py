"""Where results go: one JSON document, or text for people, on stdout."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artifacts.errors import StoreError
from artifacts.store import Store
from artifacts.verification import Damage, damage_error
from flows.surroundings import DEFAULT_STORE
from flows.visible import one_line, visible_json

if TYPE_CHECKING:
    from rich.console import Console


def print_json(document: Any) -> None:
    """Prints one JSON document; what a terminal would obey is escaped, which changes no value."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(visible_json(text) + "\n")


def print_line(text: str) -> None:
    """Prints one line, whatever `text` holds."""
    sys.stdout.write(one_line(text) + "\n")


def terminal(width: int | None = None) -> "Console":
    """A console for tables and lines on stdout. A string that it is handed is one line, or one cell, of plain text.

    Rich reads `[red]`, `:bomb:` and `[link=...]` in strings, and passes escape sequences and line ends on; ours come
    from files that anybody may have written. Text of several lines is printed as `rich.text.Text(visible(text))`.
    """
    from flows.terminal import Terminal  # rich is not needed for JSON

    return Terminal(width=width)


def tell_damage(store: Store, damaged: Sequence[Damage], *, json: bool) -> None:
    """Ends a command that has shown all but what is damaged, if anything is: lists that, unless a document has it.

    Raises:
        IntegrityError: Something is damaged.
    """
    if not damaged:
        return
    if not json:
        for damage in damaged:
            print_line(f"damaged: {damage.file}: {damage.found}; expected {damage.expected}")
    sys.stdout.flush()
    raise damage_error(store, damaged)


def local_folder(store: Store) -> Path:
    """Where this machine keeps what is no artifact: beside them in a directory store, else in the default folder.

    Raises:
        StoreError: The folder, or something in it, is a symbolic link: what is written there would go elsewhere.
    """
    folder = store.local_path(".prefect") or Path(DEFAULT_STORE) / ".prefect"
    links = [path for path in (folder, *(folder.iterdir() if folder.is_dir() else ())) if path.is_symlink()]
    if links:
        raise StoreError(
            str(links[0]), "a symbolic link", "a file or a folder of its own",
            "remove it; PREFECT_HOME names another place for Prefect's database",
        )  # fmt: skip
    return folder
