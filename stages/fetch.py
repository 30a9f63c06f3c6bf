"""The stage that brings a run's first weights into the store, whatever their source."""

import polars as pl

from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.schemas import PUZZLES
from artifacts.slot import Slot
from stages.context import StageContext
from stages.models.folder import content_of
from stages.models.licence import licence_of
from stages.models.scratch import ScratchModel
from stages.models.source import FolderModel, ModelConfig, local_folder, materialise
from stages.puzzles.tables import taught_texts

REVISION = 1
_TOKENIZER_PUZZLES = 512  # texts that a scratch model's tokenizer is made from


def fetch(ctx: StageContext, config: ModelConfig, puzzles: Ref[Puzzles], *, out: Slot[Checkpoint]) -> Ref[Checkpoint]:
    """Publishes the model as a checkpoint in Hugging Face layout, bf16.

    Args:
        config: The source. A `scratch` model gets a tokenizer made from the first train puzzles.
        puzzles: Read for a `scratch` model only, and part of its identity only then.

    Raises:
        BadInputError: The source is missing, damaged or of an unsupported family.
    """
    scratch = isinstance(config, ScratchModel)
    identity = identity_of(config, puzzles)
    if found := out.find(identity):
        return found
    attempt = out.attempt(identity)
    with ctx.folder(attempt) as folder:
        materialise(config, folder, texts=_texts(puzzles, ctx) if scratch else None)
    facts = {"licence": licence_of(config)}
    if isinstance(config, FolderModel):
        facts["folder"] = config.path
    return attempt.publish(facts, puzzles=puzzles if scratch else None)


def identity_of(config: ModelConfig, puzzles: Ref[Puzzles]) -> Identity:
    """The identity of a fetched model.

    A local folder counts by its content, wherever it lies. A folder in an object store counts by its address, and a hub
    model by its id and revision: to learn whether they changed, every command would read it whole or ask the hub.
    New weights belong under a new address; of the hub, name a commit, because `main` stays what it was when fetched.

    Raises:
        BadInputError: A local folder is missing or cannot be read.
    """
    if isinstance(config, FolderModel) and (folder := local_folder(config.path)) is not None:
        return Identity.of("fetch", REVISION, {"source": config.source, "files": content_of(folder)})
    return Identity.of("fetch", REVISION, config, puzzles=puzzles if isinstance(config, ScratchModel) else None)


def _texts(puzzles: Ref[Puzzles], ctx: StageContext) -> list[str]:
    train = Artifact.open(ctx.store, puzzles).read_table("train.parquet", PUZZLES).head(_TOKENIZER_PUZZLES)
    return pl.Series(train["prompt"]).to_list() + taught_texts(train, "answers")
