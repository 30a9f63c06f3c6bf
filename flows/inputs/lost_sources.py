"""Finds what was made from a file or folder that no longer exists here."""

from collections.abc import Callable
from typing import Any

from artifacts.documents.parsing import exists
from artifacts.layout import Shared, shared_of_name
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.store.location import local_folder
from artifacts.store.store import Store
from artifacts.verification import noted
from stages.environments.question_file.config import REMOTE


def made_from_a_lost_source(
    path: str | None, folder: Shared, name: str, same: Callable[[Manifest], bool], store: Store
) -> Ref[Any] | None:
    """Returns the newest shared artifact that was made from a missing local file or folder, or from a remote one.

    Args:
        path: The file or folder; None for a source that has no path.
        folder: Folder of the shared artifacts.
        name: Their name in that folder.
        same: Returns whether an artifact was made from the source with the present settings.
        store: The store of the artifacts.

    Returns:
        None if the source can be read again (a local one that exists, or one in an object store), or nothing was made
        from it.
    """
    if path is None or not (path.startswith(REMOTE) or ((place := local_folder(path)) and not exists(place))):
        return None
    made: list[Artifact] = []
    for key in shared_of_name(store.list(folder), folder, name):
        with noted([], key):  # skips a damaged artifact, which `verify` reports
            made.append(Artifact.at(store, key))
    fitting = [item for item in made if same(item.manifest)]
    newest = max(fitting, key=lambda item: item.manifest.made_at, default=None)
    return None if newest is None else newest.ref
