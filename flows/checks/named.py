"""Checks that a store has all artifacts that a new run's recipe names, before the run fetches, samples or trains."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from artifacts.errors import BadInputError
from artifacts.reading import Artifact
from artifacts.refs import Answers, Ref
from artifacts.store.location import local_folder
from artifacts.store.store import Store
from flows.config.distillation import ANSWERS, SOLVER, STUDENT
from flows.config.recipe import Recipe
from flows.lookup.checkpoints import find_fixed, published_checkpoint
from flows.lookup.critics import stored_critic, stored_parts
from flows.lookup.lost_sources import fetched_from_a_lost_folder
from stages.models.adapters import read_adapter_config
from stages.models.from_scratch import ScratchModel
from stages.models.merging.config import MergedModel
from stages.models.shape import read_shape
from stages.models.source import FetchedModel, FolderModel, StoredModel, check_source
from stages.models.tensors import check_adapter, tensors_of
from stages.optional.adopt import local_adapter
from stages.optional.teach import POLICY
from stages.training.critic import ValueConfig


def check_named(recipe: Recipe, store: Store) -> None:
    """Refuses a recipe that names a teacher, critic, stored iteration or rated model that does not exist.

    Models on a hub are not checked. A local folder must have a model that can be copied, and that of an adapter one
    that the recipe can continue.

    Raises:
        BadInputError: It does not exist; the error names the setting.
    """
    if isinstance(recipe.model, FolderModel):
        _check_folder(recipe.model, store)
    _check_adapter(recipe)
    if recipe.teach is not None and recipe.teach.teacher != POLICY:
        with _named_by("teach.teacher"):
            _check_kept(find_fixed(recipe.teach.teacher, "teach.teacher", store), store)
    if recipe.distil is not None and recipe.distil.teacher not in (SOLVER, STUDENT):
        with _named_by("distil.teacher"):
            if recipe.distil.teacher.startswith(ANSWERS):
                Artifact.at(store, recipe.distil.teacher.rstrip("/"), Answers).check_not_pruned()
            else:
                _check_kept(find_fixed(recipe.distil.teacher, "distil.teacher", store), store)
    if recipe.value is not None and recipe.value.source != "policy":
        with _named_by("value.source"):
            _check_critic(recipe.value, store)
    if recipe.value is not None and recipe.value.pretrain is not None:
        for part in ("rollouts", "grades"):
            with _named_by("value.pretrain"):
                for ref in stored_parts(recipe.value.pretrain, part, store):
                    _check_kept(ref, store)
    for model in recipe.rate.models if recipe.rate is not None else ():
        if isinstance(model.source, StoredModel):
            with _named_by(f"rate.models: {model.name}"):
                _check_kept(published_checkpoint(model.source.name, store), store)


def _check_kept(named: Ref[Any] | FetchedModel | StoredModel, store: Store) -> None:
    """Refuses an artifact whose files were pruned; sources are not looked up."""
    if isinstance(named, Ref):
        Artifact.open(store, named).check_not_pruned()


def _check_critic(config: ValueConfig, store: Store) -> None:
    critic = Artifact.open(store, stored_critic(config.source, store))
    critic.check_not_pruned()
    head = critic.manifest.identity.config["head"]
    if head != config.head:
        raise BadInputError(
            f"value.source: {config.source}", f"a critic with a {head} head",
            f"a {config.head} head, as value.head says", f"set value.head to {head!r}, or name another critic",
        )  # fmt: skip


def _check_folder(model: FolderModel, store: Store) -> None:
    folder = local_folder(model.path)
    if folder is not None and fetched_from_a_lost_folder(model, store) is None:
        check_source(folder)


def _check_adapter(recipe: Recipe) -> None:
    model = recipe.model
    adapter = (
        None if isinstance(model, ScratchModel | MergedModel) or model.adapter is None else local_adapter(model.adapter)
    )
    if adapter is None:
        return
    config = read_adapter_config(adapter)
    if isinstance(model, FolderModel) and (folder := local_folder(model.path)) is not None:
        check_adapter(adapter, tensors_of(read_shape(folder)))
    for part in recipe.parts:
        if part.finetune.trainable.publishes_adapter and (trained := part.finetune.trainable.adapter):
            trained.check_continues(config)


@contextmanager
def _named_by(setting: str) -> Generator[None]:
    """Adds the setting to the error of a look-up, which names only the key or option that it looked for."""
    try:
        yield
    except BadInputError as error:
        if error.where.startswith(setting.partition(".")[0]):
            raise
        raise BadInputError(setting, f"{error.where}: {error.found}", error.expected, error.remedy) from error
