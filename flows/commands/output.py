"""Where results go: one JSON document, or text for people, on stdout."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artifacts.store import Store
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


def local_folder(store: Store) -> Path:
    """Where this machine keeps what is no artifact: beside them in a directory store, else in the default folder."""
    return store.local_path(".prefect") or Path(DEFAULT_STORE) / ".prefect"
