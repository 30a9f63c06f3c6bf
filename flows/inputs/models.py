"""Resolves names of models to published checkpoints, fetching a model source first."""

from artifacts.layout import Shared, shared_key
from artifacts.reading import Artifact, is_published
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.store.store import Store
from flows.config.model_size import ModelSize, hidden_size, shape_of_config
from flows.lookup.checkpoints import find_checkpoint, published_checkpoint
from flows.lookup.lost_sources import adopted_from_a_lost_folder, fetched_from_a_lost_folder
from flows.session.calls import Stages
from stages.environments.puzzle import Taught
from stages.fetch import fetch, identity_of
from stages.merge import identity_of as identity_of_merge
from stages.merge import merge
from stages.models.from_scratch import ScratchModel
from stages.models.merging.config import MergedModel
from stages.models.source import FolderModel, ModelConfig, StoredModel
from stages.optional.adopt import adopt, identity_of_hub_adapter
from stages.optional.adopt import identity_of as identity_of_adapter


def fetched(stages: Stages, name: str, puzzles: Ref[Puzzles]) -> Ref[Checkpoint]:
    """Returns the checkpoint that `name` means (see `flows.lookup.checkpoints`); fetches a model source first.

    Raises:
        BadInputError: There is no such checkpoint or source.
    """
    return fetched_source(stages, find_checkpoint(name, stages.ctx.store), puzzles)


def fetched_source(
    stages: Stages, source: Ref[Checkpoint] | ModelConfig, puzzles: Ref[Puzzles] | None, taught: Taught | None = None
) -> Ref[Checkpoint]:
    """Returns the checkpoint of a model source, which runs share; fetches or merges it unless the store has it.

    A checkpoint is returned as it is. If a local folder no longer exists, the model or adapter last fetched from it is
    used. So a run can continue on a machine without that folder.

    Args:
        puzzles: Puzzles whose texts give the vocabulary of a model made from scratch; other sources need none.
        taught: Texts that the warm start teaches and that the vocabulary must cover; None for answers.
    """
    if isinstance(source, Ref):
        return source
    if not isinstance(source, ScratchModel | MergedModel) and source.adapter is not None:
        base = fetched_source(stages, source.model_copy(update={"adapter": None}), puzzles, taught)
        by_id = shared_key(Shared.MODELS, "adapter", identity_of_hub_adapter(source.adapter, base))
        if not is_published(stages.ctx.store, by_id) and (
            adopted := adopted_from_a_lost_folder(source.adapter, base, stages.ctx.store)
        ):
            stages.ctx.log.warning(
                "%s does not exist; using the adapter copied from it: %s", source.adapter, adopted.key
            )
            return adopted
        key = shared_key(Shared.MODELS, "adapter", identity_of_adapter(source.adapter, base))
        return stages.run(adopt, source.adapter, base, out=stages.address(key, Checkpoint))
    if isinstance(source, StoredModel):
        return published_checkpoint(source.name, stages.ctx.store)
    if isinstance(source, MergedModel):
        return merged(stages, source)
    if isinstance(source, FolderModel) and (checkpoint := fetched_from_a_lost_folder(source, stages.ctx.store)):
        stages.ctx.log.warning("%s does not exist; using the model fetched from it: %s", source.path, checkpoint.key)
        return checkpoint
    out = stages.address(shared_key(Shared.MODELS, source.source, identity_of(source, puzzles, taught)), Checkpoint)
    return stages.run(fetch, source, puzzles, taught, out=out)


def merged(stages: Stages, source: MergedModel) -> Ref[Checkpoint]:
    """Returns the checkpoint that is merged from others of the store; merges them unless the store has the result.

    Raises:
        BadInputError: A name means no checkpoint, or the models cannot be merged.
    """
    store = stages.ctx.store
    models = [published_checkpoint(name, store) for name in source.models]
    base = None if source.base is None else published_checkpoint(source.base, store)
    key = shared_key(Shared.MODELS, source.source, identity_of_merge(source, models, base))
    return stages.run(merge, source, models, base, out=stages.address(key, Checkpoint))


def hidden_size_of(source: ModelConfig, store: Store) -> int | None:
    """Returns the hidden size of a source; None if that needs fetching it or parsing a large file.

    Raises:
        BadInputError: The source names no checkpoint of the store.
    """
    if not isinstance(source, StoredModel | MergedModel):
        return hidden_size(source)
    shape = stored_size(source, store).shape
    return shape and shape.hidden


def stored_size(source: StoredModel | MergedModel, store: Store) -> ModelSize:
    """Returns the size of a model that is a checkpoint of the store, or a merge of such, by its config.json.

    Raises:
        BadInputError: The source names no checkpoint of the store.
    """
    name = source.name if isinstance(source, StoredModel) else source.models[0]
    shape = shape_of_config(Artifact.open(store, published_checkpoint(name, store)).read_json("config.json"))
    return ModelSize(shape.parameters, f"that of {name}", shape)
