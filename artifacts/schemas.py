"""Schemas of all tables. They are strict and are checked when a table is written and when it is read."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import pandera.polars as pa
import polars as pl
from pandera.errors import SchemaError, SchemaErrors

from artifacts.errors import IntegrityError

TableSchema = pa.DataFrameSchema

GRADES_FILE = "grades.parquet"
STEPS_FILE = "steps.parquet"
"""The steps of completions with their rewards; in the artifact of the grades if the recipe supervises the process."""
TOKEN_ADVANTAGES_FILE = "token_advantages.parquet"
"""Advantages of tokens: in the artifact of the values, or in that of the grades if a completion's tokens differ."""
VALUES_FILE = "values.parquet"
ANSWERS_FILE = "answers.parquet"
TEXTS_FILE = "texts.parquet"
ROUNDS_FILE = "rounds.parquet"
"""The rounds of strategies that ask a model several times; in the report if the evaluation has such strategies."""
PASS_RATES_FILE = "pass_rates.parquet"
BY_TOOL = "by_tool"
"""Column of rollouts; only those that were sampled with a tool have it."""
THINKING = "thinking"
"""Column of puzzles: which part of a completion is the answer, as JSON."""
LOGPROB = "logprob"
"""Column of results: log-probability of the completion."""

CUT = ("length", "early_stop")
"""Finish reasons of completions that the sampler cut: at the token limit, or by `early_stop`."""

_ID = pa.Column(pl.String, pa.Check.str_length(min_value=1))
_COUNT = pa.Column(pl.Int32, pa.Check.ge(0))
_FRACTION = pa.Column(pl.Float64, pa.Check.in_range(0.0, 1.0))
_JSON_OBJECT = pa.Column(pl.String, pa.Check.str_startswith("{"))
_DEDUCTIONS = {  # numbers of statements by verdict; null if they were not checked or nothing can be proved
    name: pa.Column(pl.Int32, pa.Check.ge(0), nullable=True)
    for name in ("statements", "proved", "restated", "open", "contradicted")
}
StepVerdict = Literal["proved", "restated", "repeated", "open", "contradicted", "right", "wrong"]
STEP_VERDICTS = get_args(StepVerdict)
Outcome = Literal["answered", "length", "refusal", "empty", "error", "rejected", "failed"]
OUTCOMES = get_args(Outcome)
"""Outcomes of a question to a model. All of them count: a question without an answer is graded by the text received.

length: the answer was cut at its token limit. refusal: the model or its provider's filter declined. empty: a reply
without text. error: the provider aborted the answer. rejected: the provider refused this prompt after it had accepted
another one. failed: no reply after all retries.
"""
_FINISH_REASONS = ("stop", "abort", *CUT)


def _table(name: str, columns: dict[str, pa.Column], **rules: Any) -> TableSchema:
    """Returns the schema of a table that has exactly these columns, in this order."""
    return TableSchema(columns, strict=True, ordered=True, name=name, **rules)


def _equal_lengths(data: pa.PolarsData) -> pl.LazyFrame:
    return data.lazyframe.select(pl.col("completion_token_ids").list.len() == pl.col("sampler_logprobs").list.len())


def _equal_marks(data: pa.PolarsData) -> pl.LazyFrame:
    if BY_TOOL not in data.lazyframe.collect_schema():
        return data.lazyframe.select(pl.lit(True))
    return data.lazyframe.select(pl.col("completion_token_ids").list.len() == pl.col(BY_TOOL).list.len())


PUZZLES = _table(
    "puzzles",
    {
        "prompt_id": pa.Column(pl.String, pa.Check.str_length(min_value=1), unique=True),
        "environment": _ID,
        "prompt": _ID,
        "solution": _JSON_OBJECT,  # letter or other name -> answer
        "num_clues": _COUNT,
        "difficulty": _JSON_OBJECT,  # dimension -> size
        "seed": pa.Column(pl.Int64, nullable=True),
        "digest": _ID,
        THINKING: _JSON_OBJECT,
    },
)

LENGTHS_FILE = "lengths.parquet"
"""The table of a puzzle set's prompt lengths."""
PROMPT_LENGTHS = _table(
    "prompt_lengths",
    {
        "split": pa.Column(pl.String, pa.Check.isin(["train", "val", "test"])),
        "prompt_id": _ID,
        "tokens": pa.Column(pl.Int32, pa.Check.ge(0)),  # chat template included
    },
)

ROLLOUTS = _table(
    "rollouts",
    {
        "prompt_id": _ID,
        "group": _COUNT,  # index of the puzzle in the sampled set
        "sample": _COUNT,  # index of the completion in its group
        "prompt_token_ids": pa.Column(pl.List(pl.Int32)),
        "completion_token_ids": pa.Column(pl.List(pl.Int32)),
        "sampler_logprobs": pa.Column(pl.List(pl.Float32)),
        "text": pa.Column(pl.String),
        "finish_reason": pa.Column(pl.String, pa.Check.isin(_FINISH_REASONS)),
        "sampling": _JSON_OBJECT,  # the parameters as sent
        "weights_digest": _ID,
        "engine": _ID,
        "group_s": pa.Column(pl.Float64, pa.Check.ge(0.0)),  # seconds from sending the group to its last token
        BY_TOOL: pa.Column(pl.List(pl.Boolean), required=False),  # for each token whether a tool wrote it
    },
    checks=[
        pa.Check(_equal_lengths, error="as many logprobs as completion tokens"),
        pa.Check(_equal_marks, error="as many marks of the tool as completion tokens"),
    ],
)

GRADES = _table(
    "grades",
    {
        "prompt_id": _ID,
        "group": _COUNT,
        "sample": _COUNT,
        "accuracy": _FRACTION,
        "exact": pa.Column(pl.Boolean),
        "truncated": pa.Column(pl.Boolean),  # cut by the sampler: at the token limit or by early_stop
        "reward": pa.Column(pl.Float64),
        "advantage": pa.Column(pl.Float64, nullable=True),  # null: not trained on; the mean if tokens differ
        "answers": _JSON_OBJECT,  # letter -> the answer that was read, and its note
        "grader": _ID,
        **_DEDUCTIONS,
    },
)

STEPS = _table(
    "steps",
    {
        "group": _COUNT,
        "sample": _COUNT,
        "step": _COUNT,  # number in the completion, from 0
        "verdict": pa.Column(pl.String, pa.Check.isin(STEP_VERDICTS)),
        "end_token": _COUNT,  # number of the completion's tokens up to the end of the step
        "reward": pa.Column(pl.Float64, nullable=True),  # null: the recipe leaves such steps out
    },
)

TOKEN_ADVANTAGES = _table(
    "token advantages",
    {
        "group": _COUNT,
        "sample": _COUNT,
        "advantages": pa.Column(pl.List(pl.Float32)),  # one for each token of the completion
    },
)

VALUES = _table(
    "values",
    {
        "group": _COUNT,
        "sample": _COUNT,
        "reward": pa.Column(pl.Float64),
        # before each token of the completion, so the first is at the prompt's last token; null for tokens of a tool
        "values": pa.Column(pl.List(pl.Float32)),
    },
)

TEXTS = _table(
    "texts",
    {
        "prompt_id": _ID,
        "digest": _ID,  # of the puzzle, without the order of its clues
        "sample": _COUNT,  # number of the teacher's text for this puzzle
        "prompt": _ID,
        "text": pa.Column(pl.String, pa.Check.str_length(min_value=1)),
        # as the teacher sampled them, with the end token; null: no model sampled exactly this text
        "token_ids": pa.Column(pl.List(pl.Int32), nullable=True),
        "accuracy": _FRACTION,  # of the teacher's text, before a corruption
        "exact": pa.Column(pl.Boolean),
        "tokens": pa.Column(pl.Int32, pa.Check.ge(0), nullable=True),  # of the teacher; null: not known
    },
)

RESULTS = _table(
    "results",
    {
        "prompt_id": _ID,
        "mode": pa.Column(pl.String, pa.Check.isin(("sampled", "greedy"))),
        "sample": _COUNT,
        "accuracy": _FRACTION,
        "exact": pa.Column(pl.Boolean),
        "finish_reason": pa.Column(pl.String, pa.Check.isin(_FINISH_REASONS)),
        "completion_tokens": _COUNT,
        "text": pa.Column(pl.String),
        "answers": _JSON_OBJECT,
        **_DEDUCTIONS,
        LOGPROB: pa.Column(pl.Float64, pa.Check.le(0.0)),  # nats, summed over the tokens that the model wrote
    },
)

ROUNDS = _table(
    "rounds",
    {
        "strategy": _ID,  # as on the command line: `think_twice:rounds=3`
        "prompt_id": _ID,
        "sample": _COUNT,
        "round": _COUNT,  # number of the request in the strategy, from 1
        "step": _ID,  # purpose of the request: answer, sticker, wait, ...
        "point": pa.Column(pl.String, nullable=True),  # name of a measurement of this answer by itself; null: none
        "final": pa.Column(pl.Boolean),  # whether the text is the strategy's answer
        "text": pa.Column(pl.String),
        "finish_reason": pa.Column(pl.String, pa.Check.isin(_FINISH_REASONS)),
        "completion_tokens": _COUNT,  # of this request
        "spent_tokens": _COUNT,  # of the strategy up to this text
        "accuracy": pa.Column(pl.Float64, pa.Check.in_range(0.0, 1.0), nullable=True),  # null: not an answer
        "exact": pa.Column(pl.Boolean, nullable=True),
        "answers": pa.Column(pl.String, pa.Check.str_startswith("{"), nullable=True),
        **_DEDUCTIONS,  # of notes (stickers) only
    },
)

PASS_RATES = _table(
    "pass_rates",
    {
        "prompt_id": _ID,
        "name": _ID,  # of the rated model; `run` is the policy of the run itself
        "iteration": _COUNT,  # the iteration that sampled the puzzle; 0: rated before the first one
        "weights_digest": _ID,
        "samples": pa.Column(pl.Int32, pa.Check.ge(1)),
        "accuracy": _FRACTION,  # mean over the samples
        "exact": _FRACTION,  # share of the samples with all answers right
        "tokens": pa.Column(pl.Float64, pa.Check.ge(0.0)),  # mean length
        "truncated": _FRACTION,
    },
    unique=["prompt_id", "name"],
)

ANSWERS = _table(
    "answers",
    {
        "answer": _ID,  # digest of prompt and sample: the same question to the same model is asked once
        "prompt_id": _ID,
        "group": _COUNT,  # index of the puzzle in the split
        "sample": _COUNT,
        "text": pa.Column(pl.String),
        "reasoning": pa.Column(pl.String, nullable=True),  # null: the reply has none
        "outcome": pa.Column(pl.String, pa.Check.isin(OUTCOMES)),
        "finish_reason": pa.Column(pl.String),  # as the provider wrote it; empty if there is none
        "detail": pa.Column(pl.String, nullable=True),  # words of a refusal or an error
        "prompt_tokens": pa.Column(pl.Int32, pa.Check.ge(0), nullable=True),  # null: the reply does not state it
        "completion_tokens": pa.Column(pl.Int32, pa.Check.ge(0), nullable=True),
        "usage": _JSON_OBJECT,  # the reply's whole usage
        "response_id": pa.Column(pl.String),
        "model": pa.Column(pl.String),  # as the reply names it
        "fingerprint": pa.Column(pl.String, nullable=True),  # of the provider's system, or of a checkpoint's weights
        "provider": pa.Column(pl.String, nullable=True),  # to which a router passed the question
        "latency_s": pa.Column(pl.Float64, pa.Check.ge(0.0)),  # of the last attempt; for a checkpoint, of the group
        "attempts": pa.Column(pl.Int32, pa.Check.ge(1)),
        "answered_at": _ID,  # ISO 8601, UTC
    },
)


def as_table(rows: Sequence[Mapping[str, Any]], schema: TableSchema) -> pl.DataFrame:
    """Returns rows as a table with the columns and types of a schema, in its order, without validating it.

    A column that is not required is left out if the first row lacks it.
    """
    columns = {name: column for name, column in schema.columns.items() if column.required or (rows and name in rows[0])}
    return pl.DataFrame(rows, schema={name: column.dtype.type for name, column in columns.items()})


def tool_marks(rollouts: pl.DataFrame) -> list[list[bool] | None]:
    """Returns for each completion which of its tokens a tool wrote; None if the model wrote all."""
    return rollouts[BY_TOOL].to_list() if BY_TOOL in rollouts.columns else [None] * len(rollouts)


def validated(frame: pl.DataFrame, schema: TableSchema, where: str) -> pl.DataFrame:
    """Returns the table if it obeys the schema.

    Args:
        frame: The table.
        schema: The schema.
        where: Address of the table, for error messages.

    Raises:
        IntegrityError: The table breaks the schema; the message names the column and the rule, with an example.
    """
    try:
        return schema.validate(frame)
    except (SchemaError, SchemaErrors) as error:
        raise IntegrityError(
            where, str(error).splitlines()[0], f"the schema of {schema.name}", "remake the artifact"
        ) from error
