"""Models by any name, fetched through their stage."""

from artifacts.layout import shared_key
from artifacts.manifest import MANIFEST_NAME
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.store.store import Store
from artifacts.verification import noted
from flows.lookup.checkpoints import find_checkpoint
from flows.session import Stages
from stages.fetch import fetch, identity_of
from stages.models.source import FolderModel, ModelConfig, local_folder

_MODELS = "models"


def fetched(stages: Stages, name: str, puzzles: Ref[Puzzles]) -> Ref[Checkpoint]:
    """The published checkpoint that `name` stands for (see `flows.lookup.checkpoints`); a source is fetched first.

    Raises:
        BadInputError: It stands for nothing.
    """
    found = find_checkpoint(name, stages.ctx.store)
    return found if isinstance(found, Ref) else fetched_source(stages, found, puzzles)


def fetched_source(stages: Stages, source: ModelConfig, puzzles: Ref[Puzzles]) -> Ref[Checkpoint]:
    """The model of a source; runs with the same source share it.

    A run goes on from the store alone, also on a machine that does not have the folder that its model came from.

    Args:
        puzzles: A model made from scratch takes its vocabulary from their texts.
    """
    if isinstance(source, FolderModel) and (before := fetched_from_a_lost_folder(source, stages.ctx.store)):
        stages.ctx.log.warning("%s is not here; going on with what was fetched from it: %s", source.path, before.key)
        return before
    out = stages.slot(shared_key(_MODELS, source.source, identity_of(source, puzzles)), Checkpoint)
    return stages.run(fetch, source, puzzles, out=out)


def fetched_from_a_lost_folder(source: FolderModel, store: Store) -> Ref[Checkpoint] | None:
    """What was fetched last from a local folder that is not there any more; None where it is, or nothing was."""
    folder = local_folder(source.path)
    if folder is None or folder.exists():
        return None
    begins, ends = f"{_MODELS}/{source.source}-", f"/{MANIFEST_NAME}"
    keys = [key for key in store.list(_MODELS) if key.startswith(begins) and key.endswith(ends) and key.count("/") == 2]
    made: list[Artifact] = []
    for key in keys:
        with noted([], key):  # another model's: `verify` names it
            made.append(Artifact.at(store, key.removesuffix(ends)))
    theirs = [found for found in made if found.manifest.facts.get("folder") == source.path]
    newest = max(theirs, key=lambda found: found.manifest.provenance["created_at"], default=None)
    return None if newest is None else newest.ref
