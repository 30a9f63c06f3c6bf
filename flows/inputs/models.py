"""Resolves names of models to published checkpoints, fetching a model source first."""

from artifacts.documents.parsing import exists
from artifacts.layout import shared_key
from artifacts.manifest import MANIFEST_NAME
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.store.location import local_folder
from artifacts.store.store import Store
from artifacts.verification import noted
from flows.config.model_size import hidden_size, shape_of_config
from flows.lookup.checkpoints import find_checkpoint, find_fixed, published_checkpoint
from flows.session import Stages
from stages.environments.puzzle import Taught
from stages.fetch import fetch, identity_of
from stages.merge import identity_of as identity_of_merge
from stages.merge import merge
from stages.models.merging.config import MergedModel
from stages.models.source import FolderModel, ModelConfig, StoredModel

_MODELS = "models"


def fetched(stages: Stages, name: str, puzzles: Ref[Puzzles]) -> Ref[Checkpoint]:
    """Returns the checkpoint that `name` means (see `flows.lookup.checkpoints`); fetches a model source first.

    Raises:
        BadInputError: There is no such checkpoint or source.
    """
    source = find_checkpoint(name, stages.ctx.store)
    return source if isinstance(source, Ref) else fetched_source(stages, source, puzzles)


def fixed_checkpoint(stages: Stages, name: str, setting: str, puzzles: Ref[Puzzles]) -> Ref[Checkpoint]:
    """Returns the checkpoint that `name` means (see `find_fixed`); fetches a model source first.

    Raises:
        BadInputError: As for `find_fixed`, or the source cannot be fetched.
    """
    source = find_fixed(name, setting, stages.ctx.store)
    return source if isinstance(source, Ref) else fetched_source(stages, source, puzzles)


def fetched_source(
    stages: Stages, source: ModelConfig, puzzles: Ref[Puzzles], taught: Taught | None = None
) -> Ref[Checkpoint]:
    """Returns the checkpoint of a model source, which runs share; fetches or merges it unless the store has it.

    If a local folder no longer exists, the model that was last fetched from it is used. So a run can continue on a
    machine without that folder.

    Args:
        puzzles: Puzzles whose texts give the vocabulary of a model made from scratch.
        taught: Texts that the warm start teaches and that the vocabulary must cover; None for answers.
    """
    if isinstance(source, StoredModel):
        return published_checkpoint(source.name, stages.ctx.store)
    if isinstance(source, MergedModel):
        return merged(stages, source)
    if isinstance(source, FolderModel) and (checkpoint := fetched_from_a_lost_folder(source, stages.ctx.store)):
        stages.ctx.log.warning("%s does not exist; using the model fetched from it: %s", source.path, checkpoint.key)
        return checkpoint
    out = stages.address(shared_key(_MODELS, source.source, identity_of(source, puzzles, taught)), Checkpoint)
    return stages.run(fetch, source, puzzles, taught, out=out)


def merged(stages: Stages, source: MergedModel) -> Ref[Checkpoint]:
    """Returns the checkpoint that is merged from others of the store; merges them unless the store has the result.

    Raises:
        BadInputError: A name means no checkpoint, or the models cannot be merged.
    """
    store = stages.ctx.store
    models = [published_checkpoint(name, store) for name in source.models]
    base = None if source.base is None else published_checkpoint(source.base, store)
    key = shared_key(_MODELS, source.source, identity_of_merge(source, models, base))
    return stages.run(merge, source, models, base, out=stages.address(key, Checkpoint))


def hidden_size_of(source: ModelConfig, store: Store) -> int | None:
    """Returns the hidden size of a source; None if that needs fetching it or parsing a large file.

    Raises:
        BadInputError: The source names no checkpoint of the store.
    """
    if isinstance(source, StoredModel | MergedModel):
        name = source.name if isinstance(source, StoredModel) else source.models[0]
        config = Artifact.open(store, published_checkpoint(name, store)).read_json("config.json")
        return shape_of_config(config).hidden
    return hidden_size(source)


def fetched_from_a_lost_folder(source: FolderModel, store: Store) -> Ref[Checkpoint] | None:
    """Returns the model that was last fetched from a missing local folder; None if it exists or was never fetched."""
    folder = local_folder(source.path)
    if folder is None or exists(folder):
        return None
    start, end = f"{_MODELS}/{source.source}-", f"/{MANIFEST_NAME}"
    keys = [key for key in store.list(_MODELS) if key.startswith(start) and key.endswith(end) and key.count("/") == 2]
    models: list[Artifact] = []
    for key in keys:
        with noted([], key):  # skips a damaged model, which `verify` reports
            models.append(Artifact.at(store, key.removesuffix(end)))
    same_folder = [
        artifact
        for artifact in models
        if artifact.manifest.facts.get("folder") == source.path
        and artifact.manifest.identity.config.get("system_prompt") == source.system_prompt
    ]
    newest = max(same_folder, key=lambda artifact: artifact.manifest.provenance["created_at"], default=None)
    return None if newest is None else newest.ref
