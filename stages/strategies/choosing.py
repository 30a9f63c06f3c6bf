"""Chooses one answer among samples of a puzzle: votes, scores, and unbiased figures of k samples. Pure functions.

Shapes: P puzzles, S samples of each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def best_at(values_PS: Floats, scores_PS: Floats, k: int) -> Floats:
    """Returns the expected value of the sample with the highest score among k, drawn without replacement, [P].

    It is exact over all choices of k samples: the sample of rank r (from 0, best first) is the best one of
    C(S - 1 - r, k - 1) of the C(S, k) choices. With `values_PS` also as scores it is best@k. Of equal scores the first
    is chosen.

    Args:
        values_PS: Value of each sample, [P, S].
        scores_PS: Score of each sample, [P, S].
        k: Number of samples, 1 to S.

    Raises:
        ValueError: There are fewer than k samples.
    """
    count = values_PS.shape[1]
    if not 1 <= k <= count:
        raise ValueError(f"the best of {k} of {count} samples is not defined")
    order_PS = np.argsort(-scores_PS, axis=1, kind="stable")
    chances_S = np.array([math.comb(count - 1 - rank, k - 1) / math.comb(count, k) for rank in range(count)])
    return np.take_along_axis(values_PS, order_PS, axis=1) @ chances_S


def sizes(count: int) -> list[int]:
    """Returns the powers of two up to the number of samples, and this number: 1, 2, 4, 6 for 6."""
    return sorted({2**power for power in range(count.bit_length()) if 2**power <= count} | {count})


def read_votes(results: pl.DataFrame) -> pl.DataFrame:
    """Returns the answers of samples, one row each: `prompt_id`, `sample`, `question`, `value`, `right`.

    Args:
        results: Columns `prompt_id`, `sample` and `answers` of the `results` schema. A value is null if none was read.
    """
    rows = [
        (prompt_id, sample, question, answer["value"], answer["correct"])
        for prompt_id, sample, answers in results.select("prompt_id", "sample", "answers").iter_rows()
        for question, answer in json.loads(answers).items()
    ]
    schema = {
        "prompt_id": pl.String, "sample": results.schema["sample"], "question": pl.String, "value": pl.String,
        "right": pl.Boolean,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def elected(votes: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Returns the most frequent value of each group: the row of the first sample that votes for it.

    Of equally frequent values, that with the higher mean score is chosen, then that of the first sample. Null does not
    count as a vote; a group without a vote is left out.

    Args:
        votes: Columns `value`, `sample`, `score` (of the sample, such as its mean log-probability), those of `by`, and
            others, which are kept.
        by: Columns that name a group.
    """
    counted = (
        votes.drop_nulls("value")
        .sort("sample")
        .with_columns(
            pl.len().over(*by, "value").alias("votes"), pl.col("score").mean().over(*by, "value").alias("support")
        )
    )
    ranked = counted.sort(["votes", "support", "sample"], descending=[True, True, False])
    return ranked.unique(list(by), keep="first", maintain_order=True)


def majority_of_letters(samples: pl.DataFrame, votes: pl.DataFrame, k: int) -> pl.DataFrame:
    """Returns the accuracy of voting on each question by itself: `prompt_id`, `accuracy`, `exact`.

    A puzzle's figures are means over the disjoint blocks of k consecutive samples, so they are unbiased for k samples.
    A question without a vote is wrong; without any vote, any of the samples answers. The answers to different questions
    may contradict one another. That to the only question of a puzzle has the accuracy of the sample that gave it, which
    may be partial.

    Args:
        samples: Columns `prompt_id`, `sample`, `score`, `accuracy` and `exact`, one row a sample; samples are numbered
            from 0.
        votes: As `read_votes` returns them.
        k: Number of samples that vote.
    """
    figures = samples.select("prompt_id", "sample", "score", pl.col("accuracy", "exact").cast(pl.Float64))
    scored = _in_blocks(votes.join(figures, on=["prompt_id", "sample"]), k)
    questions = votes.group_by("prompt_id").agg(pl.col("question").n_unique().alias("questions"))
    winners = elected(scored, ("prompt_id", "block", "question")).join(questions, on="prompt_id")
    right, count = pl.col("right").sum(), pl.col("questions").first()
    only = count == 1
    by_block = winners.group_by("prompt_id", "block").agg(
        pl.when(only).then(pl.col("accuracy").first()).otherwise(right / count).alias("accuracy"),
        pl.when(only).then(pl.col("exact").first()).otherwise((right == count).cast(pl.Float64)).alias("exact"),
    )
    return _or_any(_in_blocks(samples, k), by_block)


def majority_of_answers(samples: pl.DataFrame, votes: pl.DataFrame, k: int) -> pl.DataFrame:
    """Returns the accuracy of voting on whole answers: `prompt_id`, `accuracy`, `exact`.

    A sample votes with all of its values together; one in which no value was read does not vote. If none votes, as in
    the tasks of users, any of the samples answers. Blocks and arguments are those of `majority_of_letters`; `samples`
    also has the columns `accuracy` and `exact`.
    """
    ordered = votes.sort("question").with_columns(pl.col("value").fill_null("\0"))
    whole = (
        ordered.group_by("prompt_id", "sample")
        .agg(pl.col("value").str.join("\1"), (pl.col("value") != "\0").any().alias("read"))
        .with_columns(pl.when("read").then("value").alias("value"))
    )
    blocks = _in_blocks(samples.join(whole, on=["prompt_id", "sample"], how="left", maintain_order="left"), k)
    return _or_any(blocks, elected(blocks, _BLOCK))


_BLOCK = ("prompt_id", "block")


def _or_any(blocks: pl.DataFrame, chosen: pl.DataFrame) -> pl.DataFrame:
    """Returns means over the blocks of the sample chosen in each, or of all its samples if none was chosen."""
    figures = pl.col("accuracy", "exact").cast(pl.Float64)
    joined = (
        blocks.group_by(_BLOCK, maintain_order=True)
        .agg(figures.mean())
        .join(chosen.select(*_BLOCK, figures), on=_BLOCK, how="left", suffix="_chosen", maintain_order="left")
    )
    means = (pl.coalesce(f"{name}_chosen", name).mean().alias(name) for name in ("accuracy", "exact"))
    return joined.group_by("prompt_id", maintain_order=True).agg(*means)


def _in_blocks(rows: pl.DataFrame, k: int) -> pl.DataFrame:
    """Returns the rows of complete blocks of k samples, with the number of the block."""
    count = rows.select(pl.col("sample").max()).item() + 1
    return rows.filter(pl.col("sample") < count - count % k).with_columns((pl.col("sample") // k).alias("block"))
