"""The stage that asks one model, behind an API or as a checkpoint, the puzzles of a benchmark."""

from typing import Annotated, Any, Literal

import polars as pl
from pydantic import Field

from artifacts.address import ArtifactAddress, Attempt
from artifacts.config import Config
from artifacts.identity import Identity
from artifacts.refs import Answers, Checkpoint, Puzzles, Ref
from artifacts.schemas import ANSWERS, ANSWERS_FILE, CUT, as_table
from stages.answering.purchase import PuzzleSample, Service, buy, row_of
from stages.answering.reply import Reply
from stages.answering.settings import ApiRequest
from stages.answering.stored import missing_questions, stored_answers
from stages.context import StageContext
from stages.environments.tables import read_split
from stages.environments.thoughts import THOUGHT_OPENED
from stages.sampling.collect import adopt_rollouts, collect
from stages.sampling.config import SamplingConfig
from stages.sampling.turns import own_lengths

REVISION = 2  # words of tools and environments are no tokens of a checkpoint


class AskedApi(ApiRequest):
    """A model behind an API."""

    kind: Literal["openai"] = "openai"


class AskedCheckpoint(Config):
    """A checkpoint, which Deerstalker's own engine samples from."""

    kind: Literal["checkpoint"] = "checkpoint"
    sampling: SamplingConfig = Field(default_factory=SamplingConfig, description="Sampling settings.")


class AnswerConfig(Config):
    """The questions and the model that is asked."""

    puzzles: int = Field(default=64, ge=1, le=10_000_000, description="Number of puzzles, from the start of the split.")
    samples: int = Field(default=1, ge=1, le=1024, description="Number of answers to each puzzle.")
    asked: Annotated[AskedApi | AskedCheckpoint, Field(discriminator="kind")] = Field(
        description="The model and its parameters."
    )


def answer(
    ctx: StageContext,
    config: AnswerConfig,
    puzzles: Ref[Puzzles],
    weights: Ref[Checkpoint] | None = None,
    *,
    split: str,
    service: Service | None = None,
    out: ArtifactAddress[Answers],
) -> Ref[Answers]:
    """Asks a model each puzzle `samples` times and publishes the answers.

    An answer of an API is stored as soon as it arrives, by address, model, parameters, prompt and sample. A later
    command does not ask the same question again, even after a kill, with more samples, or on another suite that has the
    puzzle.

    Args:
        puzzles: The puzzle set.
        weights: The checkpoint, if one is asked.
        split: Split of the puzzle set.
        service: Key, speed, price and budget, if an API is asked.

    Raises:
        BadInputError: The puzzle set has no such split, or the provider refuses key, model or parameters.
        BudgetReachedError: Another answer might exceed the budget.
        TransientError: Questions had no reply after all retries, or the engine was lost too often.
    """
    identity = identity_of(config, puzzles, weights, split)
    if published := out.find(identity):
        return published
    chosen = read_split(ctx.store, puzzles, split).head(config.puzzles)
    if isinstance(config.asked, AskedApi):
        assert service is not None
        table, facts = _api_answers(ctx, config, config.asked, chosen, service)
    else:
        assert weights is not None
        shards = out.attempt(identity, resumable=True)
        table, facts = _sampled(ctx, config, config.asked, chosen, weights, shards)
    outcomes = dict(sorted(table["outcome"].value_counts().iter_rows()))
    attempt = out.attempt(identity)  # not the folder of the shards, which other writers share
    attempt.write_table(ANSWERS_FILE, table, ANSWERS)
    return attempt.publish({"answers": len(table), "outcomes": outcomes, **facts}, puzzles=puzzles, weights=weights)


def identity_of(config: AnswerConfig, puzzles: Ref[Puzzles], weights: Ref[Checkpoint] | None, split: str) -> Identity:
    """Returns the identity of a model's answers: the request, the number of samples, and the puzzles."""
    settings = {"puzzles": config.puzzles, "samples": config.samples, "split": split, **_asked(config.asked)}
    return Identity.of("answer", REVISION, settings, weights=weights, puzzles=puzzles)


def questions_of(chosen: pl.DataFrame, samples: int) -> list[PuzzleSample]:
    """Returns a question for each sample of each puzzle: first sample 0 of all puzzles, then sample 1, and so on."""
    rows = list(zip(chosen["prompt_id"], chosen["prompt"], strict=True))
    return [
        PuzzleSample(prompt_id, group, sample, prompt)
        for sample in range(samples)
        for group, (prompt_id, prompt) in enumerate(rows)
    ]


def _asked(asked: AskedApi | AskedCheckpoint) -> dict[str, Any]:
    if isinstance(asked, AskedApi):
        return {"asked": asked.identity()}
    return {"sampling": asked.sampling.model_dump(mode="json")}


def _api_answers(
    ctx: StageContext, config: AnswerConfig, asked: AskedApi, chosen: pl.DataFrame, service: Service
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Asks for the missing answers; returns all answers, and facts for the manifest."""
    questions = questions_of(chosen, config.samples)
    attempt, stored = stored_answers(ctx.store, asked)
    missing = missing_questions(questions, stored)
    done, label = len(questions) - len(missing), f"answer {service.name}"

    def count() -> None:
        nonlocal done
        done += 1
        ctx.progress(label, done, len(questions), {"dollars": service.budget.spent})

    if missing:
        ctx.progress(label, done, len(questions), {})
        known_good = not stored.filter(pl.col("outcome") != "failed").is_empty()
        buy(missing, asked, service, attempt, count, known_good=known_good)
        _, stored = stored_answers(ctx.store, asked)
    placed = pl.DataFrame(
        [(question.answer, question.prompt_id, question.group) for question in questions],
        schema={"answer": pl.String, "prompt_id": pl.String, "group": pl.Int32},
        orient="row",
    )
    # Several suites may have the same prompt, under other ids and numbers.
    table = placed.join(stored.drop("prompt_id", "group"), on="answer", how="inner", maintain_order="left")
    return table.select(*ANSWERS.columns).sort("group", "sample"), {"model": asked.model, "bought": len(missing)}


def _sampled(
    ctx: StageContext,
    config: AnswerConfig,
    asked: AskedCheckpoint,
    chosen: pl.DataFrame,
    weights: Ref[Checkpoint],
    shards: Attempt[Answers],
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Samples the answers of a checkpoint; returns them, and facts for the manifest."""
    sampling = asked.sampling.model_copy(update={"samples_per_prompt": config.samples})
    facts = collect(chosen, sampling, weights, shards, ctx, stem="rollouts", label="answer")
    rollouts = adopt_rollouts(shards, "rollouts", sampling)
    assert rollouts is not None  # collect has just written them
    rollouts = rollouts.sort("group", "sample")
    prompts = dict(zip(chosen["prompt_id"], chosen["prompt"], strict=True))
    rows: list[dict[str, Any]] = []
    for row, written in zip(rollouts.iter_rows(named=True), own_lengths(rollouts), strict=True):
        question = PuzzleSample(row["prompt_id"], row["group"], row["sample"], prompts[row["prompt_id"]])
        cut = row["finish_reason"] in CUT
        reply = Reply(
            text=row["text"],
            outcome="length" if cut else "answered" if row["text"].strip() else "empty",
            finish_reason=row["finish_reason"],
            usage={"prompt_tokens": len(row["prompt_token_ids"]), "completion_tokens": written},
            model=row["engine"],
            fingerprint=row["weights_digest"],
            latency_s=row["group_s"],
        )
        rows.append(row_of(question, reply))
    return as_table(rows, ANSWERS), {
        # of a part of the answers it would say too little: the last groups have the engine for themselves
        "tokens_per_s": None if facts["groups_reused"] else facts["tokens_per_s"],
        "compute_dtype": facts["compute_dtype"],
        THOUGHT_OPENED: facts[THOUGHT_OPENED],
    }
