"""What a person may call a checkpoint, and what it stands for."""

import json
from pathlib import Path

from artifacts.errors import BadInputError
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref
from artifacts.store import MissingKeyError, Store
from flows.recipes import load_recipe, validate
from stages.models.source import FolderModel, GgufPackageModel, HubModel, ModelConfig

FORMS = "a run, RUN@ITERATION, a checkpoint's key, a Hugging Face folder, hub:ID, gguf:PACKAGE/FILE or recipe:NAME"


def find_checkpoint(name: str, store: Store) -> Ref[Checkpoint] | ModelConfig:
    """The published checkpoint or the model source that `name` stands for.

    Raises:
        BadInputError: It stands for nothing.
    """
    prefix, _, rest = name.partition(":")
    match prefix:
        case "hub" if rest:
            return validate(HubModel, {"id": rest}, name)
        case "gguf" if "/" in rest:
            package, _, file = rest.partition("/")
            return validate(GgufPackageModel, {"package": package, "file": file}, name)
        case "recipe" if rest:
            return _source(rest)
        case _:
            pass
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return FolderModel(path=str(folder.resolve()))
    return _published(name, store)


def _source(recipe: str) -> ModelConfig:
    source = load_recipe(recipe).model
    if source.source == "scratch":
        raise BadInputError(f"recipe:{recipe}", "a model made from scratch", "a source that has weights", "name a run")
    return source


def _published(name: str, store: Store) -> Ref[Checkpoint]:
    if "/" in name:
        artifact = Artifact.at(store, name.strip("/"))
        if artifact.manifest.kind != Checkpoint.__name__:
            raise BadInputError(name, f"an artifact of kind {artifact.manifest.kind}", "a Checkpoint")
        return artifact.ref
    run, at, number = name.partition("@")
    layout = RunLayout(run)
    if at:
        if not number.isdigit():
            raise BadInputError(f"--checkpoint {name}", f"iteration {number!r}", "a number", "name it as RUN@ITERATION")
        return Ref(**Artifact.at(store, layout.iteration(int(number), "report")).manifest.inputs["weights"])
    try:
        return Ref(**json.loads(store.read_bytes(layout.promoted))["checkpoint"])
    except MissingKeyError as error:
        raise BadInputError(
            f"--checkpoint {name}", f"no run with a promoted checkpoint in {store.url}", FORMS, "see `deerstalker runs`"
        ) from error
