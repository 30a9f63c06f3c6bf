"""The stage that counts the tokens of all prompts of a puzzle set."""

import time

import polars as pl

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity, sha256_json
from artifacts.layout import Shared, shared_key
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, PromptLengths, Puzzles, Ref
from artifacts.schemas import LENGTHS_FILE, PROMPT_LENGTHS, PUZZLES
from artifacts.store.store import Store
from stages.context import StageContext
from stages.models.tokenizers.chat import chat_tokenizer
from stages.sampling.collect import longest_sequence

REVISION = 1
_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""Files of a model on which the counts and the facts depend."""


def count_tokens(
    ctx: StageContext, weights: Ref[Checkpoint], puzzles: Ref[Puzzles], *, out: ArtifactAddress[PromptLengths]
) -> Ref[PromptLengths]:
    """Publishes the number of tokens of each prompt, chat template included. Checkpoints of one tokenizer share it.

    The facts hold `longest` (tokens of the longest prompt, by split) and `positions`, the longest sequence that the
    model takes (null if it is not known).

    Args:
        weights: A checkpoint with the tokenizer.
        puzzles: The puzzle set.

    Raises:
        BadInputError: The chat template fails.
    """
    identity = identity_of(ctx.store, weights, puzzles)
    if published := out.find(identity):
        return published
    started = time.perf_counter()
    folder = ctx.local_folder(weights)
    tokenizer, source = chat_tokenizer(folder), Artifact.open(ctx.store, puzzles)
    tables: list[pl.DataFrame] = []
    for name in source.names(".parquet"):
        table, split = source.read_table(name, PUZZLES), name.removesuffix(".parquet")
        tokens = pl.Series("tokens", tokenizer.prompt_lengths(table["prompt"].to_list()), dtype=pl.Int32)
        tables.append(table.select(pl.lit(split).alias("split"), "prompt_id", tokens))
    lengths = pl.concat(tables)
    attempt = out.attempt(identity)
    attempt.write_table(LENGTHS_FILE, lengths, PROMPT_LENGTHS)
    facts = {
        "longest": dict(lengths.group_by("split", maintain_order=True).agg(pl.col("tokens").max()).iter_rows()),
        "positions": longest_sequence(folder, None),
        "seconds": time.perf_counter() - started,
    }
    return attempt.publish(facts, puzzles=puzzles)


def identity_of(store: Store, weights: Ref[Checkpoint], puzzles: Ref[Puzzles]) -> Identity:
    """Returns the identity of the counts: the set, and the files of the model on which they depend."""
    files = Artifact.open(store, weights).manifest.files
    tokenizer = sha256_json({name: files[name].sha256 for name in _FILES if name in files})
    return Identity.of("count_tokens", REVISION, {"tokenizer": tokenizer}, puzzles=puzzles)


def address_of(store: Store, weights: Ref[Checkpoint], puzzles: Ref[Puzzles]) -> ArtifactAddress[PromptLengths]:
    """Returns the address of the counts: beside the puzzle sets, named by their identity."""
    key = shared_key(Shared.PUZZLES, "lengths", identity_of(store, weights, puzzles))
    return ArtifactAddress(store, key, PromptLengths)
