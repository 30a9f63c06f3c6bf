"""The figures of one model in a benchmark, computed from its answers."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import polars as pl
from pydantic import Field

from artifacts.schemas import RESULTS, as_table
from stages.answering.prices import HourPrice, TokenPrice, Tokens, cached_tokens
from stages.environments.puzzle import Grader, Puzzle
from stages.environments.soundness import EXAMPLES, Refuted, mean_statements, refuted_statements
from stages.environments.tables import (
    count_deductions,
    deduction_columns,
    grade_columns,
    graded_texts,
    graders_of,
    puzzles_by_id,
)
from stages.statistics.estimates import Interval
from stages.statistics.records import Record
from stages.statistics.totals import totals

_FINISH_REASONS = {"answered": "stop", "length": "length"}
"""Finish reasons of the `results` schema by outcome; `abort` for the others."""


class Accuracy(Record):
    """Accuracy by one grader, with 95% intervals over puzzles.

    Attributes:
        letters: Mean share of right answers.
        all_right: Mean share of replies whose answers are all right.
        unread: Counts of answers that could not be read or compared, by reason.
    """

    letters: Interval
    all_right: Interval
    unread: dict[str, int]


class BenchmarkedModel(Record):
    """One model of a benchmark.

    Attributes:
        name: Its name in the file of models.
        kind: `openai` for a model behind an API, `checkpoint` for a checkpoint of Deerstalker.
        model: Its id at the provider, or the name of the checkpoint.
        puzzles: Number of puzzles.
        samples: Number of answers to each.
        gradings: Accuracy by grader; the first one is the environment's default.
        outcomes: Number of answers by outcome (`artifacts.schemas.Outcome`); they sum to all answers.
        prompt_tokens: Mean tokens of a prompt; None if no reply states them.
        completion_tokens: Mean tokens of a completion, reasoning included; None if no reply states them.
        cost_per_answer: Mean dollars an answer; None without a price or counts.
        without_usage: Number of answers whose tokens are not known; they count with a cost of 0.
        latency_s: Median seconds of a reply.
        answers: Key of the artifact with the answers.
        statements: Mean number of statements of an answer by verdict; None if nothing is stated or can be proved.
        refuted: Examples of statements that the clues contradict.
    """

    name: str
    kind: str
    model: str
    puzzles: int
    samples: int
    gradings: dict[str, Accuracy] = Field(min_length=1)
    outcomes: dict[str, int]
    prompt_tokens: float | None
    completion_tokens: float | None
    cost_per_answer: float | None = Field(ge=0.0, allow_inf_nan=False)
    without_usage: int
    latency_s: float
    answers: str
    statements: dict[str, float] | None = None
    refuted: list[Refuted] = Field(default_factory=list[Refuted])

    @property
    def accuracy(self) -> Interval:
        """Share of right answers by the first grader."""
        return next(iter(self.gradings.values())).letters

    @property
    def all_right(self) -> Interval:
        """Share of replies with all answers right, by the first grader."""
        return next(iter(self.gradings.values())).all_right


def measured(
    answers: pl.DataFrame,
    puzzles: pl.DataFrame,
    *,
    name: str,
    kind: str,
    model: str,
    key: str,
    price: TokenPrice | HourPrice | None,
    tokens_per_s: float | None,
    thought_opened: bool = False,
) -> BenchmarkedModel:
    """Returns the figures of a model.

    Args:
        answers: Rows of the `answers` schema: the same number for each puzzle.
        puzzles: Rows of the `puzzles` schema: the puzzles that were answered.
        name: Its name in the file of models.
        kind: `openai` or `checkpoint`.
        model: Its id at the provider, or the name of the checkpoint.
        key: Key of the artifact with the answers.
        price: Price of tokens, or of the machine; None if it is not known.
        tokens_per_s: Measured speed of a checkpoint's sampling; None if it is not known.
        thought_opened: The fact `THOUGHT_OPENED` of the answers.
    """
    counted = answers.drop_nulls("completion_tokens")
    default, *others = graders_of(puzzles)
    known = puzzles_by_id(puzzles, thought_opened=thought_opened)
    if kind == "openai":
        known = {name: replace(puzzle, thinking=puzzle.thinking.of_an_api()) for name, puzzle in known.items()}
    first = results_of(answers, known, cast(Grader, default), prove=True)  # statements are the same for all graders
    results = {default: first} | {grader: results_of(answers, known, cast(Grader, grader)) for grader in others}
    return BenchmarkedModel(
        name=name,
        kind=kind,
        model=model,
        puzzles=answers["prompt_id"].n_unique(),
        samples=answers["sample"].n_unique(),
        gradings={grader: _accuracy(table) for grader, table in results.items()},
        outcomes=dict(sorted(answers["outcome"].value_counts().iter_rows())),
        prompt_tokens=_mean(counted["prompt_tokens"]),
        completion_tokens=_mean(counted["completion_tokens"]),
        cost_per_answer=_cost_per_answer(answers, counted, price, tokens_per_s),
        without_usage=len(answers) - len(counted),
        latency_s=float(cast(float, answers["latency_s"].median())),
        answers=key,
        statements=mean_statements(first),
        refuted=refuted_statements(first, puzzles, EXAMPLES),
    )


def results_of(
    answers: pl.DataFrame, known: Mapping[str, Puzzle], grader: Grader, *, prove: bool = False
) -> pl.DataFrame:
    """Returns graded answers as rows of the `results` schema, mode `sampled`.

    Every answer has a row, whatever its outcome; an unknown length is 0. With `prove`, the statements of answers are
    proved and counted; otherwise their columns are null.
    """
    graded = graded_texts(answers.select("text", "prompt_id").iter_rows(), known, grader)
    rows = [
        {
            "prompt_id": row["prompt_id"],
            "mode": "sampled",
            "sample": row["sample"],
            **grade_columns(grades),
            "finish_reason": _FINISH_REASONS.get(row["outcome"], "abort"),
            "completion_tokens": row["completion_tokens"] or 0,
            "text": row["text"],
            **deduction_columns(count_deductions(row["text"], known[row["prompt_id"]]) if prove else None),
        }
        for row, grades in zip(answers.iter_rows(named=True), graded, strict=True)
    ]
    return as_table(rows, RESULTS)


def check_graders(puzzles: pl.DataFrame) -> None:
    """Grades an empty answer to one puzzle of each environment, so that no answer is bought that cannot be graded.

    Raises:
        BadInputError: An environment is not installed, or another release of its grader is.
    """
    first = puzzles.unique("environment", keep="first", maintain_order=True)
    known = puzzles_by_id(first)
    for grader in graders_of(first):
        graded_texts(
            [(puzzle.thinking.closing, prompt_id) for prompt_id, puzzle in known.items()], known, cast(Grader, grader)
        )


def _accuracy(results: pl.DataFrame) -> Accuracy:
    sampled = totals(results).sampled
    assert sampled is not None  # every answer has a row
    return Accuracy(letters=sampled.accuracy, all_right=sampled.exact, unread=sampled.unread)


def _cost_per_answer(
    answers: pl.DataFrame, counted: pl.DataFrame, price: TokenPrice | HourPrice | None, tokens_per_s: float | None
) -> float | None:
    if price is None or counted.is_empty() or (isinstance(price, HourPrice) and tokens_per_s is None):
        return None
    total = 0.0
    for prompt, completion, usage in counted.select("prompt_tokens", "completion_tokens", "usage").iter_rows():
        tokens = Tokens(prompt or 0, completion, cached_tokens(json.loads(usage)))
        total += price.cost(tokens) if isinstance(price, TokenPrice) else price.cost(tokens, tokens_per_s or 1.0)
    return total / len(answers)


def _mean(counts: pl.Series) -> float | None:
    return float(cast(float, counts.mean())) if counts.drop_nulls().len() else None
