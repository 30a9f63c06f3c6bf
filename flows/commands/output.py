"""Where results go: one JSON document, or text for people, on stdout."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from artifacts.errors import StoreError
from artifacts.store import Store
from artifacts.verification import Damage, damage_error
from flows.surroundings import DEFAULT_STORE


def print_json(document: Any) -> None:
    """Prints one JSON document."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def tell_damage(store: Store, damaged: Sequence[Damage], *, json: bool) -> None:
    """Ends a command that has shown all but what is damaged, if anything is: lists that, unless a document has it.

    Raises:
        IntegrityError: Something is damaged.
    """
    if not damaged:
        return
    if not json:
        for damage in damaged:
            sys.stdout.write(f"damaged: {damage.file}: {printable(damage.found)}; expected {damage.expected}\n")
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


def printable(text: str) -> str:
    """Text that cannot steer a terminal: control characters other than line ends and tabs become a mark."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
