"""Finds the licence of a model source, if the source itself states one."""

import importlib.metadata
import re

from artifacts.local.input_files import read_input
from artifacts.store.location import local_folder
from artifacts.store.store import MissingKeyError, Store
from stages.models.source import FolderModel, GgufPackageModel, ModelConfig

_LICENCE_LINE = re.compile(r"^license:[ \t]*['\"]?([\w.+-]+)", re.MULTILINE)


def licence_of(config: ModelConfig) -> str | None:
    """Returns the licence as a Hugging Face identifier (`apache-2.0`), or None if the source does not state one.

    A package states its licence in its metadata, a folder in its model card. The page of a hub model is not fetched,
    and a model made from scratch has no base.
    """
    match config:
        case GgufPackageModel():
            metadata = importlib.metadata.metadata(config.package)
            fields = (name for name in ("License-Expression", "License") if name in metadata)
            return next((metadata[name].lower() for name in fields), None)
        case FolderModel():
            return stated_licence(_card(config.path))
        case _:
            return None


def stated_licence(card: str) -> str | None:
    """Returns the licence in the front matter of a model card, or None."""
    if not card.startswith("---"):
        return None
    match = _LICENCE_LINE.search(card.removeprefix("---").partition("\n---")[0])
    return match[1] if match else None


def _card(address: str) -> str:
    folder = local_folder(address)
    if folder is None:
        try:
            return Store.open(address, writable=False).read_bytes("README.md").decode(errors="replace")
        except MissingKeyError:
            return ""
    path = folder / "README.md"
    return read_input(path, "a model card").decode(errors="replace") if path.is_file() else ""
