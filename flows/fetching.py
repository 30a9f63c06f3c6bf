"""Models by any name, fetched through their stage."""

from artifacts.layout import shared_key
from artifacts.refs import Checkpoint, Puzzles, Ref
from flows.checkpoints import find_checkpoint
from flows.session import Stages
from stages.fetch import fetch, identity_of
from stages.models.source import ModelConfig


def fetched(stages: Stages, name: str, puzzles: Ref[Puzzles]) -> Ref[Checkpoint]:
    """The published checkpoint that `name` stands for (see `flows.checkpoints`); a model source is fetched first.

    Raises:
        BadInputError: It stands for nothing.
    """
    found = find_checkpoint(name, stages.ctx.store)
    return found if isinstance(found, Ref) else fetched_source(stages, found, puzzles)


def fetched_source(stages: Stages, source: ModelConfig, puzzles: Ref[Puzzles]) -> Ref[Checkpoint]:
    """The model of a source; runs with the same source share it.

    Args:
        puzzles: A model made from scratch takes its vocabulary from their texts.
    """
    out = stages.slot(shared_key("models", source.source, identity_of(source, puzzles)), Checkpoint)
    return stages.run(fetch, source, puzzles, out=out)
