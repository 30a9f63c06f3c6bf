"""Reads the completions of a run with their prompts and grades, as tables."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import polars as pl
import pyarrow.parquet as pq

from artifacts.documents.conversation import messages_of
from artifacts.errors import BadInputError
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.schemas import (
    GRADES,
    GRADES_FILE,
    ROLLOUTS,
    TOKEN_ADVANTAGES,
    TOKEN_ADVANTAGES_FILE,
    VALUES,
    VALUES_FILE,
    validated,
)
from artifacts.store.store import Store
from flows.lookup.stages import PARTS
from stages.environments.tables import read_split
from stages.sampling.turns import own_lengths

if TYPE_CHECKING:
    from flows.lookup.history import IterationRecord, RunRecord

COMPLETION = ["prompt_id", "group", "sample"]
"""The columns that name a completion of an iteration."""
_MESSAGES = pl.List(pl.Struct({"role": pl.String, "content": pl.String}))
_COLUMNS = [*COMPLETION, "text", "finish_reason"]


def read_grades(item: IterationRecord, layout: RunLayout, store: Store) -> pl.DataFrame:
    """Returns the grades of an iteration, with the advantages that its completions are trained with.

    Those of `teach` or `value` replace those of `grade`. If each token has its own advantage, that of a completion is
    the mean over the tokens that the model wrote. It is null if the completion is not trained on.
    """
    stage = "teach" if "teach" in item.manifests else "grade"
    grades = Artifact.at(store, layout.iteration(item.number, PARTS[stage])).read_table(GRADES_FILE, GRADES)
    if "value" not in item.manifests:
        return grades
    values = Artifact.at(store, layout.iteration(item.number, PARTS["value"]))
    advantages, keys = values.read_table(TOKEN_ADVANTAGES_FILE, TOKEN_ADVANTAGES), ["group", "sample"]
    tokens = values.read_table(VALUES_FILE, VALUES).join(advantages, on=keys, validate="1:1")
    own = tokens.explode("values", "advantages").drop_nulls("values")  # a token of a tool has no value
    means = own.group_by(keys).agg(pl.col("advantages").cast(pl.Float64).mean().alias("advantage"))
    with_means = grades.drop("advantage").join(means, on=keys, how="left", validate="1:1", maintain_order="left")
    return with_means.select(grades.columns)


def sampled_shards(item: IterationRecord, store: Store) -> Iterator[pl.DataFrame]:
    """Yields the completions of an iteration that is graded, a file at a time, with the tokens that the model wrote."""
    rollouts = Artifact.open(store, Ref(**item.manifests["grade"].inputs["rollouts"]))
    for name in rollouts.names(".parquet"):
        shard = pl.read_parquet(io.BytesIO(rollouts.read_bytes(name)))
        shard = validated(shard, ROLLOUTS, f"{rollouts.key}/{name}")
        yield shard.select(*_COLUMNS, own_lengths(shard).alias("completion_tokens"))


def read_puzzles(item: IterationRecord, store: Store) -> pl.DataFrame:
    """Returns the train split from which an iteration was sampled (see `artifacts.schemas.PUZZLES`)."""
    return read_split(store, Ref(**item.manifests["grade"].inputs["puzzles"]), "train")


def asked_puzzles(report: Artifact) -> pl.DataFrame:
    """Returns the split of a puzzle set from which a report took its puzzles (see `artifacts.schemas.PUZZLES`)."""
    facts = report.manifest.facts
    return read_split(report.store, Ref(**report.manifest.inputs["puzzles"]), facts["split"])


def graded_rollouts(run: RunRecord, store: Store, iterations: Collection[int] = ()) -> Iterator[pl.DataFrame]:
    """Yields a table for each iteration of a run: a row for each completion, in the order of groups and samples.

    The columns are `iteration`, `prompt`, `text` (the completion), `finish_reason`, `completion_tokens`, and those of
    `artifacts.schemas.GRADES`, such as `reward` and `advantage`.

    Args:
        run: The run.
        store: Its store.
        iterations: Their numbers; empty for all iterations whose completions and grades are still stored.

    Raises:
        BadInputError: One of the iterations, or all of them, are not graded or were pruned.
        IntegrityError: A stored file is damaged.
    """
    stored = {item.number: item for item in run.graded_iterations}
    missing = sorted(set(iterations) - stored.keys())
    if missing or not stored:
        found = f"no graded completions of iteration {missing[0]}" if missing else "no graded completions"
        there = f"iterations {', '.join(map(str, stored))}" if stored else "an iteration that is graded and not pruned"
        raise BadInputError(f"run {run.layout.run!r}", found, there, "see `deerstalker show`")
    for number in sorted(set(iterations) or stored):
        item = stored[number]
        prompts = read_puzzles(item, store).select("prompt_id", "prompt")
        sampled = pl.concat(sampled_shards(item, store)).join(prompts, on="prompt_id", how="left", validate="m:1")
        graded = sampled.join(read_grades(item, run.layout, store), on=COMPLETION, validate="1:1")
        yield graded.sort("group", "sample").select(pl.lit(number, pl.Int32).alias("iteration"), pl.all())


def as_dataset(rollouts: pl.DataFrame) -> pl.DataFrame:
    """Returns a table of `graded_rollouts` with the columns of TRL's conversational data sets.

    `prompt` and `completion` are lists of messages, `step` is the iteration; `reward` and `advantage` have the names of
    TRL's own table of completions. TRL passes the other columns to reward functions.
    """

    def asked(prompts: pl.Series) -> pl.Series:
        return pl.Series([messages_of(prompt) for prompt in prompts], dtype=_MESSAGES)

    written = pl.concat_list(pl.struct(pl.lit("assistant").alias("role"), pl.col("text").alias("content")))
    return rollouts.select(
        pl.col("iteration").alias("step"),
        pl.col("prompt").map_batches(asked, return_dtype=_MESSAGES),
        written.alias("completion"),
        *("reward", "advantage", "accuracy", "exact", *COMPLETION, "completion_tokens", "finish_reason"),
    )


def check_dataset_file(path: Path) -> None:
    """Checks that `write_dataset` can write a file.

    Raises:
        BadInputError: The file exists, its folder does not, or its name ends in neither `.jsonl` nor `.parquet`.
    """
    where, remedy = "--out", "name another file"
    if path.suffix not in {".jsonl", ".parquet"}:
        raise BadInputError(where, repr(path.name), "a name that ends in .jsonl or .parquet", remedy)
    if path.exists():
        raise BadInputError(where, f"{path} exists", "a new file", remedy)
    if not os.access(path.parent, os.W_OK):
        raise BadInputError(where, f"no folder {path.parent}, or it cannot be written", "one that can", remedy)


def write_dataset(rollouts: Iterable[pl.DataFrame], path: Path) -> dict[int, int]:
    """Writes tables of `graded_rollouts` as a data set, and returns the number of completions of each iteration.

    The file appears when it is complete.

    Args:
        rollouts: A table for each iteration; at least one.
        path: The file (see `check_dataset_file`).
    """
    written: dict[int, int] = {}
    with TemporaryDirectory(prefix=".tmp-", dir=path.parent) as folder, ExitStack() as stack:
        part = Path(folder, path.name)
        lines = stack.enter_context(part.open("wb")) if path.suffix == ".jsonl" else None
        parquet: pq.ParquetWriter | None = None
        for table in rollouts:
            dataset = as_dataset(table)
            written[table["iteration"][0]] = len(table)
            if lines:
                dataset.write_ndjson(lines)
                continue
            arrow = dataset.to_arrow(compat_level=pl.CompatLevel.oldest())
            parquet = parquet or stack.enter_context(pq.ParquetWriter(part, arrow.schema, compression="zstd"))
            parquet.write_table(arrow)
        stack.close()
        part.rename(path)
    return written
