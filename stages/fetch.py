"""The stage that brings a run's first weights into the store, whatever their source."""

import polars as pl

from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.schemas import PUZZLES
from artifacts.slot import Slot
from stages.context import StageContext
from stages.models.licence import licence_of
from stages.models.scratch import ScratchModel
from stages.models.source import ModelConfig, materialise
from stages.puzzles.tables import taught_texts

REVISION = 1
_TOKENIZER_PUZZLES = 512  # texts that a scratch model's tokenizer is made from


def fetch(config: ModelConfig, puzzles: Ref[Puzzles], *, out: Slot[Checkpoint], ctx: StageContext) -> Ref[Checkpoint]:
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
    return attempt.publish({"licence": licence_of(config)}, puzzles=puzzles if scratch else None)


def identity_of(config: ModelConfig, puzzles: Ref[Puzzles]) -> Identity:
    """The identity of a fetched model."""
    return Identity.of("fetch", REVISION, config, puzzles=puzzles if isinstance(config, ScratchModel) else None)


def _texts(puzzles: Ref[Puzzles], ctx: StageContext) -> list[str]:
    train = Artifact.open(ctx.store, puzzles).read_table("train.parquet", PUZZLES).head(_TOKENIZER_PUZZLES)
    return pl.Series(train["prompt"]).to_list() + taught_texts(train, "answers")
