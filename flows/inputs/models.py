"""Resolves names of models to published checkpoints, fetching a model source first."""

from artifacts.layout import shared_key
from artifacts.manifest import MANIFEST_NAME
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.store.location import local_folder
from artifacts.store.store import Store
from artifacts.verification import noted
from flows.lookup.checkpoints import find_checkpoint
from flows.session import Stages
from stages.environments.puzzle import Style
from stages.fetch import fetch, identity_of
from stages.models.source import FolderModel, ModelConfig

_MODELS = "models"


def fetched(stages: Stages, name: str, puzzles: Ref[Puzzles]) -> Ref[Checkpoint]:
    """Returns the published checkpoint that `name` means (see `flows.lookup.checkpoints`); a source is fetched first.

    Raises:
        BadInputError: There is no such checkpoint or source.
    """
    source = find_checkpoint(name, stages.ctx.store)
    return source if isinstance(source, Ref) else fetched_source(stages, source, puzzles)


def fetched_source(
    stages: Stages, source: ModelConfig, puzzles: Ref[Puzzles], taught: Style | None = None
) -> Ref[Checkpoint]:
    """Fetches the model of a source and returns it; runs with the same source share it.

    A run continues from the store alone, even on a machine without the folder from which its model was fetched.

    Args:
        puzzles: Puzzles whose texts give the vocabulary of a model made from scratch.
        taught: Style of the derivations that the warm start teaches, which that vocabulary covers; None without any.
    """
    if isinstance(source, FolderModel) and (before := fetched_from_a_lost_folder(source, stages.ctx.store)):
        stages.ctx.log.warning("%s is not here; going on with what was fetched from it: %s", source.path, before.key)
        return before
    out = stages.address(shared_key(_MODELS, source.source, identity_of(source, puzzles, taught)), Checkpoint)
    return stages.run(fetch, source, puzzles, taught, out=out)


def fetched_from_a_lost_folder(source: FolderModel, store: Store) -> Ref[Checkpoint] | None:
    """Returns the model that was last fetched from a missing local folder; None if the folder exists or nothing was."""
    folder = local_folder(source.path)
    if folder is None or folder.exists():
        return None
    begins, ends = f"{_MODELS}/{source.source}-", f"/{MANIFEST_NAME}"
    keys = [key for key in store.list(_MODELS) if key.startswith(begins) and key.endswith(ends) and key.count("/") == 2]
    made: list[Artifact] = []
    for key in keys:
        with noted([], key):  # damage of another model; `verify` names it
            made.append(Artifact.at(store, key.removesuffix(ends)))
    same_folder = [artifact for artifact in made if artifact.manifest.facts.get("folder") == source.path]
    newest = max(same_folder, key=lambda artifact: artifact.manifest.provenance["created_at"], default=None)
    return None if newest is None else newest.ref
