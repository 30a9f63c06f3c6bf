"""Where results go: one JSON document, or text for people, on stdout."""

import json
import sys
from pathlib import Path
from typing import Any

from artifacts.store import Store
from flows.surroundings import DEFAULT_STORE


def print_json(document: Any) -> None:
    """Prints one JSON document."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def local_folder(store: Store) -> Path:
    """Where this machine keeps what is no artifact: beside them in a directory store, else in the default folder."""
    return store.local_path(".prefect") or Path(DEFAULT_STORE) / ".prefect"


def printable(text: str) -> str:
    """Text that cannot steer a terminal: control characters other than line ends and tabs become a mark."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
