"""The stage that asks one model, behind an API or as a checkpoint, the puzzles of a benchmark."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import Field

from artifacts.address import ArtifactAddress, Attempt
from artifacts.config import Config
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.layout import Shared, shared_key
from artifacts.reading import Artifact
from artifacts.refs import Answers, Checkpoint, Puzzles, Ref
from artifacts.schemas import ANSWERS, ANSWERS_FILE, PUZZLES, as_table
from artifacts.store.store import Store
from stages.answering.client import Reply
from stages.answering.purchase import STEM, PuzzleSample, Service, buy, row_of
from stages.answering.settings import ApiRequest
from stages.context import StageContext
from stages.environments.thoughts import THOUGHT_OPENED
from stages.sampling.collect import adopt_rollouts, collect
from stages.sampling.config import SamplingConfig

REVISION = 1


class AskedApi(ApiRequest):
    """A model behind an API."""

    kind: Literal["openai"] = "openai"


class AskedCheckpoint(Config):
    """A checkpoint, answered by our own engine."""

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

    An answer of an API is stored as soon as it arrives, by address, model, parameters, prompt and sample. No later
    command asks the same again: neither after a kill, nor with more samples, nor on another suite with the same puzzle.

    Args:
        puzzles: The puzzle set.
        weights: The checkpoint, if one is asked.
        split: Split of the puzzle set.
        service: Key, speed, price and budget, if an API is asked.

    Raises:
        BadInputError: The puzzle set has no such split, or the provider refuses key, model or parameters.
        BudgetReachedError: Another answer might pass the budget.
        TransientError: Questions had no reply after all retries, or the engine was lost too often.
    """
    identity = identity_of(config, puzzles, weights, split)
    if published := out.find(identity):
        return published
    chosen = chosen_puzzles(ctx.store, puzzles, split, config.puzzles)
    if isinstance(config.asked, AskedApi):
        assert service is not None
        table, facts = _bought(ctx, config, config.asked, chosen, service)
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


def answers_key(name: str, identity: Identity) -> str:
    """Returns the key of a model's answers; `name` must be fit for keys."""
    return shared_key(Shared.ANSWERS, name, identity)


def chosen_puzzles(store: Store, puzzles: Ref[Puzzles], split: str, count: int) -> pl.DataFrame:
    """Returns the first puzzles of a split.

    Raises:
        BadInputError: The puzzle set has no such split.
    """
    source = Artifact.open(store, puzzles)
    if f"{split}.parquet" not in source.manifest.files:
        raise BadInputError(f"split {split!r}", "not in the puzzle set", ", ".join(source.names(".parquet")))
    return source.read_table(f"{split}.parquet", PUZZLES).head(count)


def questions_of(chosen: pl.DataFrame, samples: int) -> list[PuzzleSample]:
    """Returns a question for each sample of each puzzle: first sample 0 of all puzzles, then sample 1, and so on."""
    rows = list(zip(chosen["puzzle_id"], chosen["prompt"], strict=True))
    return [
        PuzzleSample(puzzle_id, group, sample, prompt)
        for sample in range(samples)
        for group, (puzzle_id, prompt) in enumerate(rows)
    ]


def stored_answers(store: Store, asked: ApiRequest) -> tuple[Attempt[Answers], pl.DataFrame]:
    """Returns the attempt that holds a model's answers to such requests, and the table of these answers, each once."""
    identity = Identity.of("answer", REVISION, {"asked": asked.identity()})
    attempt = ArtifactAddress(store, answers_key("bought", identity), Answers).attempt(identity, resumable=True)
    stored = attempt.adopt_shards(STEM, ANSWERS, by="answer", rows=1)
    return attempt, as_table([], ANSWERS) if stored is None else stored


def missing_questions(questions: Iterable[PuzzleSample], stored: pl.DataFrame) -> list[PuzzleSample]:
    """Returns the questions without a stored answer; of several with the same prompt and sample, the first."""
    known, missing = set(stored["answer"]), list[PuzzleSample]()
    for question in questions:
        if question.answer not in known:
            known.add(question.answer)
            missing.append(question)
    return missing


def _asked(asked: AskedApi | AskedCheckpoint) -> dict[str, Any]:
    if isinstance(asked, AskedApi):
        return {"asked": asked.identity()}
    return {"sampling": asked.sampling.model_dump(mode="json")}


def _bought(
    ctx: StageContext, config: AnswerConfig, asked: AskedApi, chosen: pl.DataFrame, service: Service
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Buys the missing answers; returns all answers, and facts for the manifest."""
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
        [(question.answer, question.puzzle_id, question.group) for question in questions],
        schema={"answer": pl.String, "puzzle_id": pl.String, "group": pl.Int32},
        orient="row",
    )
    # The same prompt may stand in several suites, under other ids and numbers.
    table = placed.join(stored.drop("puzzle_id", "group"), on="answer", how="inner", maintain_order="left")
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
    prompts = dict(zip(chosen["puzzle_id"], chosen["prompt"], strict=True))
    rows: list[dict[str, Any]] = []
    for row in rollouts.sort("group", "sample").iter_rows(named=True):
        counts = {name: len(row[f"{name}_token_ids"]) for name in ("prompt", "completion")}
        question = PuzzleSample(row["puzzle_id"], row["group"], row["sample"], prompts[row["puzzle_id"]])
        cut = row["finish_reason"] in ("length", "early_stop")
        reply = Reply(
            text=row["text"],
            reasoning=None,
            outcome="length" if cut else "answered" if row["text"].strip() else "empty",
            finish_reason=row["finish_reason"],
            detail=None,
            usage={f"{name}_tokens": count for name, count in counts.items()},
            response_id="",
            model=row["engine"],
            fingerprint=row["weights_digest"],
            provider=None,
            latency_s=row["group_s"],
            attempts=1,
            charged=0,
        )
        rows.append(row_of(question, reply))
    return as_table(rows, ANSWERS), {
        "tokens_per_s": facts["tokens_per_s"] or None,
        "compute_dtype": facts["compute_dtype"],
        THOUGHT_OPENED: facts[THOUGHT_OPENED],
    }
