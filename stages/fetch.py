"""The stage that publishes a run's first weights, from any source."""

import polars as pl

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.schemas import PUZZLES
from stages.context import StageContext
from stages.environments.tables import taught_texts
from stages.models.folder import content_of
from stages.models.from_scratch import ScratchModel
from stages.models.licence import licence_of
from stages.models.source import FolderModel, ModelConfig, local_folder, materialise

REVISION = 1
_TOKENIZER_PUZZLES = 512  # puzzles whose texts make a scratch model's tokenizer


def fetch(
    ctx: StageContext, config: ModelConfig, puzzles: Ref[Puzzles], *, out: ArtifactAddress[Checkpoint]
) -> Ref[Checkpoint]:
    """Publishes the model as a checkpoint in Hugging Face layout, bf16.

    Args:
        config: The source. The tokenizer of a `scratch` model is made from the first train puzzles.
        puzzles: Used for a `scratch` model only, and part of the identity only then.

    Raises:
        BadInputError: The source is missing, damaged or of an unsupported family.
    """
    scratch = isinstance(config, ScratchModel)
    identity = identity_of(config, puzzles)
    if published := out.find(identity):
        return published
    attempt = out.attempt(identity)
    with ctx.folder(attempt) as folder:
        materialise(config, folder, texts=_texts(puzzles, ctx) if scratch else None)
    facts = {"licence": licence_of(config)}
    if isinstance(config, FolderModel):
        facts["folder"] = config.path
    return attempt.publish(facts, puzzles=puzzles if scratch else None)


def identity_of(config: ModelConfig, puzzles: Ref[Puzzles]) -> Identity:
    """Returns the identity of a fetched model.

    A local folder enters the identity by its content, not by its path. A folder in an object store enters it by its
    address, and a hub model by its id and revision, because every command would have to read the folder or ask the
    hub to notice a change. Put new weights under a new address. Of a hub model, name a commit: `main` is fetched once
    and not updated.

    Raises:
        BadInputError: A local folder is missing or cannot be read.
    """
    if isinstance(config, FolderModel) and (folder := local_folder(config.path)) is not None:
        return Identity.of("fetch", REVISION, {"source": config.source, "files": content_of(folder)})
    return Identity.of("fetch", REVISION, config, puzzles=puzzles if isinstance(config, ScratchModel) else None)


def _texts(puzzles: Ref[Puzzles], ctx: StageContext) -> list[str]:
    train = Artifact.open(ctx.store, puzzles).read_table("train.parquet", PUZZLES).head(_TOKENIZER_PUZZLES)
    return pl.Series(train["prompt"]).to_list() + taught_texts(train, "answers")
