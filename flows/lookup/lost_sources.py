"""Finds what was made from a file or folder that no longer exists here."""

from collections.abc import Callable
from typing import Any

from artifacts.documents.parsing import exists
from artifacts.layout import Shared, shared_of_name
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref
from artifacts.store.location import local_folder
from artifacts.store.store import Store
from flows.lookup.history import read_manifests
from stages.environments.question_file.config import REMOTE, place_of
from stages.models.source import ChatModel, FolderModel
from stages.models.stored import BASE


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
    if path is None or not is_lost(path):
        return None
    keys = shared_of_name(store.list(folder), folder, name)
    made = read_manifests(store, dict.fromkeys(keys), [])  # without damaged artifacts, which `verify` reports
    fitting = [Artifact(store, key, manifest) for key, manifest in made.items() if same(manifest)]
    newest = max(fitting, key=lambda item: item.manifest.made_at, default=None)
    return None if newest is None else newest.ref


def is_lost(path: str) -> bool:
    """Returns whether a file or folder is read no more: a missing local one, or a remote one, which is read once."""
    return path.startswith(REMOTE) or ((place := local_folder(path)) is not None and not exists(place))


def fetched_from_a_lost_folder(source: FolderModel, store: Store) -> Ref[Checkpoint] | None:
    """Returns the model that was last fetched from a missing local folder; None if it exists or was never fetched."""

    def same(made: Manifest) -> bool:
        asked = source.identity()
        of_model = {name: value for name, value in made.identity.config.items() if name in ChatModel.model_fields}
        return _is_place(made.facts.get("folder"), asked.pop("path")) and {"source": source.source, **of_model} == asked

    return made_from_a_lost_source(source.path, Shared.MODELS, source.source, same, store)


def adopted_from_a_lost_folder(adapter: str, base: Ref[Checkpoint], store: Store) -> Ref[Checkpoint] | None:
    """Returns the checkpoint last made from a missing local folder of an adapter of that base; None if there is none.

    Args:
        adapter: The folder as `model.adapter` names it. A relative one may look like an id of the hub.
        base: The model below the adapter.
        store: The store of the checkpoints.
    """

    def same(made: Manifest) -> bool:
        of = made.identity
        is_local = "files" in of.config
        return is_local and _is_place(made.facts.get("adapter"), adapter) and of.inputs.get(BASE) == base.digest

    return made_from_a_lost_source(adapter, Shared.MODELS, "adapter", same, store)


def _is_place(stored: object, asked: str) -> bool:
    """Returns whether two spellings of a local folder, such as a relative and an absolute one, name the same place."""
    return isinstance(stored, str) and place_of(stored) == place_of(asked)
