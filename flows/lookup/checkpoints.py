"""Finds the checkpoint or model source that a name on the command line means."""

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from artifacts.documents.parsing import is_file, is_folder
from artifacts.documents.run_files import read_recipe
from artifacts.errors import BadInputError
from artifacts.layout import RunLayout, Shared, is_run_name
from artifacts.local.input_files import with_home
from artifacts.reading import Artifact, is_published
from artifacts.refs import Checkpoint, Ref, Report
from artifacts.store.location import local_folder
from artifacts.store.store import Store
from flows.config.recipe import Recipe
from flows.config.recipes import load_recipe, validate
from flows.lookup.history import last_iteration, unknown_run
from flows.lookup.lost_sources import fetched_from_a_lost_folder
from stages.models.folder import check_folder
from stages.models.from_scratch import ScratchModel
from stages.models.merging.config import MergedModel
from stages.models.source import (
    FetchedModel,
    FolderModel,
    GgufPackageModel,
    HubModel,
    ModelConfig,
    StoredModel,
    find_packaged_file,
)
from stages.promotion.promoted import read_promoted
from stages.sampling.config import SamplingConfig

_ITERATION = re.compile(r"[0-9]{1,7}")
STORED = "a run, RUN@ITERATION or a checkpoint's key"
FORMS = (
    "a run, RUN@ITERATION, a checkpoint's key, a Hugging Face folder, hub:ID[@REVISION], gguf:PACKAGE/FILE or "
    "recipe:NAME"
)


def find_checkpoint(name: str, store: Store) -> Ref[Checkpoint] | FetchedModel | StoredModel:
    """Returns the published checkpoint or the model source that `name` means; a `StoredModel` only with an adapter.

    A name that starts with `.`, `/` or `~`, or names a folder with a config.json, is a model folder. So is the name of
    any other folder if nothing is published under it.

    Raises:
        BadInputError: There is no such checkpoint, source or folder.
    """
    prefix, _, rest = name.partition(":")
    match prefix:
        case "hub" if rest:
            model, at, revision = rest.partition("@")
            return validate(HubModel, {"id": model, **({"revision": revision} if at else {})}, name)
        case "gguf" if "/" in rest:
            package, _, file = rest.partition("/")
            return validate(GgufPackageModel, {"package": package, "file": file}, name)
        case "recipe" if rest:
            return _source(rest, store)
        case _:
            pass
    folder = Path(name)
    if name.startswith((".", "/", "~")) or is_file(folder / "config.json"):
        return _model_folder(name)
    try:
        return published_checkpoint(name, store, FORMS)
    except BadInputError:
        if is_folder(folder):
            return _model_folder(name)
        raise


def find_fixed(name: str, setting: str, store: Store) -> Ref[Checkpoint] | FetchedModel | StoredModel:
    """Returns the checkpoint or source that `name` means; refuses a name whose checkpoint may change during a run.

    A folder may be gone if the store has the model that was fetched from it, so that a run can continue without it.

    Args:
        name: As for `find_checkpoint`.
        setting: Key of the recipe that holds the name, for the error.
        store: Store of the run.

    Raises:
        BadInputError: The name is that of a run, whose promoted checkpoint may change; or there is no such checkpoint.
    """
    try:
        source = find_checkpoint(name, store)
    except BadInputError:
        if lost := _fetched_before(name, store):
            return lost
        raise
    if isinstance(source, Ref) and is_run_name(name):
        raise BadInputError(
            setting,
            f"{name!r}, whose promoted checkpoint may change",
            "a name that always means the same checkpoint",
            f"write {source.key}",
        )
    return source


def check_checkpoint(name: str, store: Store) -> None:
    """Checks that the checkpoint or source that `name` means exists, without asking the hub.

    Raises:
        BadInputError: There is no such checkpoint, the package is not installed, or the folder is not a model.
    """
    match find_checkpoint(name, store):
        case GgufPackageModel() as packaged:
            find_packaged_file(packaged.package, packaged.file)
        case FolderModel() as source if (folder := local_folder(source.path)) is not None:
            check_folder(folder)
        case _:
            pass


def _model_folder(name: str) -> FolderModel:
    try:
        folder = with_home(name)
        entries = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        raise BadInputError(
            f"--checkpoint {name}", f"cannot be read as a folder ({error.strerror})", FORMS, "check the path"
        ) from error
    if "config.json" not in entries:
        raise BadInputError(
            f"--checkpoint {name}", f"no config.json in {folder.resolve()}", "a Hugging Face model folder"
        )
    return FolderModel(path=str(folder.resolve()))


def _fetched_before(name: str, store: Store) -> FolderModel | None:
    """Returns the source for a folder that is gone and whose model the store has; else None."""
    with suppress(OSError):  # what the path raises has been reported by `_model_folder`
        source = FolderModel(path=str(with_home(name).resolve()))
        return source if fetched_from_a_lost_folder(source, store) is not None else None
    return None


def _source(recipe: str, store: Store) -> Ref[Checkpoint] | FetchedModel | StoredModel:
    match load_recipe(recipe).model:
        case StoredModel() as stored:
            checkpoint = published_checkpoint(stored.name, store)
            return checkpoint if stored.adapter is None else stored
        case ScratchModel() | MergedModel() as source:
            made = "made from scratch" if source.source == "scratch" else "merged from others"
            raise BadInputError(f"recipe:{recipe}", f"a model {made}", "a source that has weights", "name a run")
        case source:
            return source


def published_checkpoint(name: str, store: Store, expected: str = STORED) -> Ref[Checkpoint]:
    """Returns the checkpoint of a store that `name` means: a run (its promoted one), RUN@ITERATION or a key.

    Args:
        expected: What else the name may be, for the error.

    Raises:
        BadInputError: There is no such checkpoint.
    """
    if "/" in name:
        artifact = Artifact.at(store, name.strip("/"))
        if artifact.manifest.kind != Checkpoint.__name__:
            raise BadInputError(name, f"an artifact of kind {artifact.manifest.kind}", "a Checkpoint")
        return artifact.ref
    run, at, number = name.partition("@")
    layout = RunLayout(run)
    if at:
        if not _ITERATION.fullmatch(number):
            raise BadInputError(name, f"iteration {number!r}", "a number", "name it as RUN@ITERATION")
        if not is_published(store, key := layout.iteration(int(number), "report")):
            if not store.exists(layout.recipe):
                raise unknown_run(run, store)
            known = f"the run has begun 0 to {last_iteration(store, layout)}"
            raise BadInputError(name, f"no measured iteration {int(number)}", f"another iteration ({known})")
        return Ref(**Artifact.at(store, key, Report).manifest.inputs["weights"])
    promoted = read_promoted(store, layout.promoted)
    if promoted is None:
        raise BadInputError(
            name, f"no run with a promoted checkpoint in {store.url}", expected, "see `deerstalker runs`"
        )
    return promoted.checkpoint


def trained_sampling(name: str, store: Store) -> SamplingConfig | None:
    """Returns the settings by which the iterations of a checkpoint's run sample; None for a model of no run.

    Args:
        name: A name as `find_checkpoint` takes it.
        store: The store of the run.

    Raises:
        BadInputError: There is no such checkpoint or source, or the recipe of the run is not valid.
    """
    if not isinstance(source := find_checkpoint(name, store), Ref):
        return None
    run = name.partition("@")[0]
    layout = RunLayout(run) if is_run_name(run) else RunLayout.of(source.key)
    if layout is None or not store.exists(layout.recipe):
        return None
    return validate(Recipe, read_recipe(store, layout), f"recipe of {layout.run}").longest_sampling


def with_fixed_names(source: ModelConfig, store: Store, begun: Mapping[str, Any] | None) -> ModelConfig:
    """Returns a model source that names the promoted checkpoints of runs by their keys, which do not change.

    Args:
        source: The model source of a run's recipe.
        store: The store of the run.
        begun: The source with which the run began; None if it begins now.

    Raises:
        BadInputError: There is no such checkpoint.
    """

    def fixed(name: str, begun_with: str | None) -> str:
        if not is_run_name(name):
            return name
        if begun is None:
            return published_checkpoint(name, store).key
        promotable = (f"{RunLayout(name).root}/", f"{Shared.MODELS}/")
        return begun_with if begun_with and begun_with.startswith(promotable) else name

    before = begun or {}
    match source:
        case StoredModel():
            return source.model_copy(update={"name": fixed(source.name, before.get("name"))})
        case MergedModel():
            models = zip_longest(source.models, before.get("models", ())[: len(source.models)])
            base = None if source.base is None else fixed(source.base, before.get("base"))
            return source.model_copy(update={"models": tuple(fixed(*names) for names in models), "base": base})
        case _:
            return source
