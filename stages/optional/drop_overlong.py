"""The stage that leaves overlong prompts out of a puzzle set."""

import polars as pl
from pydantic import Field

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.identity import Identity
from artifacts.layout import Shared, shared_key
from artifacts.reading import Artifact
from artifacts.refs import PromptLengths, Puzzles, Ref
from artifacts.schemas import LENGTHS_FILE, PROMPT_LENGTHS, PUZZLES
from artifacts.store.store import Store
from stages.context import StageContext

REVISION = 1
STAGE = "drop_overlong"


class DropOverlongConfig(Config):
    """Says which prompts are overlong."""

    context_tokens: int = Field(ge=1, le=1_000_000_000, description="Prompts of so many tokens or more are left out.")


def drop_overlong(
    ctx: StageContext,
    config: DropOverlongConfig,
    puzzles: Ref[Puzzles],
    lengths: Ref[PromptLengths],
    *,
    out: ArtifactAddress[Puzzles],
) -> Ref[Puzzles]:
    """Publishes a puzzle set without its overlong prompts. The facts count those that it leaves out, by split.

    Args:
        puzzles: The puzzle set.
        lengths: The tokens of its prompts.
    """
    identity = identity_of(config, puzzles, lengths)
    if published := out.find(identity):
        return published
    source = Artifact.open(ctx.store, puzzles)
    counted = Artifact.open(ctx.store, lengths).read_table(LENGTHS_FILE, PROMPT_LENGTHS)
    overlong = counted.filter(pl.col("tokens") >= config.context_tokens)
    attempt, left, dropped = out.attempt(identity), dict[str, int](), dict[str, int]()
    for name in source.names(".parquet"):
        table, split = source.read_table(name, PUZZLES), name.removesuffix(".parquet")
        ids = overlong.filter(pl.col("split") == split)["prompt_id"].to_list()
        kept = table.filter(~pl.col("prompt_id").is_in(ids))
        attempt.write_table(name, kept, PUZZLES)
        left[split], dropped[split] = len(kept), len(table) - len(kept)
    facts = {**source.manifest.facts, **left, "dropped": dropped, "context_tokens": config.context_tokens}
    return attempt.publish(facts, puzzles=puzzles, lengths=lengths)


def identity_of(config: DropOverlongConfig, puzzles: Ref[Puzzles], lengths: Ref[PromptLengths]) -> Identity:
    """Returns the identity of the shorter set."""
    return Identity.of(STAGE, REVISION, config, puzzles=puzzles, lengths=lengths)


def address_of(
    store: Store, config: DropOverlongConfig, puzzles: Ref[Puzzles], lengths: Ref[PromptLengths]
) -> ArtifactAddress[Puzzles]:
    """Returns the address of the shorter set: beside the whole one, named by its identity."""
    return ArtifactAddress(store, shared_key(Shared.PUZZLES, "shorter", identity_of(config, puzzles, lengths)), Puzzles)
