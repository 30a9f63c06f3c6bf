"""The stage that selects the texts of a teacher: good ones to train on, or bad ones as a control.

Sources: rejection-sampled fine-tuning (arXiv 2308.01825), Sky-T1 (arXiv 2502.07374), AM-1.4M (arXiv 2503.19633).
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from artifacts.address import ArtifactAddress
from artifacts.errors import NEW_RUN, BadInputError, IntegrityError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Answers, Checkpoint, Puzzles, Ref, Rollouts, Texts
from artifacts.schemas import ANSWERS, ANSWERS_FILE, PUZZLES, ROLLOUTS, TEXTS, TEXTS_FILE, as_table
from stages.context import StageContext
from stages.environments.puzzle import Grader, Puzzle
from stages.environments.solver_tool import own_words
from stages.environments.tables import are_episodes, graded_texts, puzzles_by_id, taught_passages, thinking_of
from stages.environments.thoughts import thought_opened
from stages.models.tokenizers.chat import chat_tokenizer
from stages.models.tokenizers.digest import tokenizer_digest
from stages.sampling.collect import opens_thought
from stages.texts.selection import DistilConfig, TeacherText, TextLimits, after_corruption, select

REVISION = 2  # thoughts are not read


def distil(
    ctx: StageContext,
    config: DistilConfig,
    teacher: Ref[Rollouts] | Ref[Answers] | None,
    puzzles: Ref[Puzzles],
    student: Ref[Checkpoint],
    *,
    row_tokens: int,
    out: ArtifactAddress[Texts],
) -> Ref[Texts]:
    """Grades a teacher's texts, keeps those that the config names, and publishes them with the counts of the others.

    The facts count every text once: `kept`, or `rejected` by the first reason that applies, in this order: the reasons
    of an unusable text (`truncated`, or the outcome of an API's answer), `contaminated` (its puzzle is in the val or
    test split of `puzzles`, with its clues in any order), `malformed`, `long`, `unwritable` (the student's tokenizer
    does not decode its tokens to the same text), `too_long` (with its prompt, for a row), `wrong`, `right`, `worse`,
    `duplicate`, `surplus`; then, by the corruption, `emptied`, `unwritable` or `too_long`.

    If the student's chat template opens a thought, texts without one begin with its end, so that graders read them.

    Args:
        teacher: Rollouts of a checkpoint on train puzzles, or the stored answers of a benchmark to its own puzzles;
            None for the solver's own texts.
        puzzles: The puzzle set of the run. Rollouts and the solver's texts are for its train split.
        student: The checkpoint that will learn the texts.
        row_tokens: Token budget of a row when it does.

    Raises:
        BadInputError: No text is left, or an environment lacks a capability that the config needs.
        IntegrityError: The rollouts name a puzzle that is not in the set.
    """
    inputs: dict[str, Ref[Any] | None] = {"teacher": teacher, "puzzles": puzzles, "student": student}
    settings = {**effective_settings(config, teacher), "row_tokens": row_tokens}
    identity = Identity.of("distil", REVISION, settings, **inputs)
    if published := out.find(identity):
        return published
    own = Artifact.open(ctx.store, puzzles)
    candidates, tokenizer = _candidates(ctx, config, teacher, own), _tokenizer(ctx, teacher)
    reader = chat_tokenizer(ctx.local_folder(student))
    thinking = thinking_of(own.read_table("train.parquet", PUZZLES))
    mark = thinking.after_prompt(opens_thought(reader, thinking)).before_answer
    limits = None
    if config.untrainable == "drop":
        keeps_tokens = tokenizer == tokenizer_digest(ctx.store, student)
        limits = TextLimits(reader, row_tokens - len(reader.text_ids(mark)), keeps_tokens)
    held_out = {digest for split in ("val", "test") for digest in own.read_table(f"{split}.parquet", PUZZLES)["digest"]}
    kept, rejected = select(candidates, config, held_out, limits)
    if config.corruption is not None:
        kept, spoiled = after_corruption(kept, config.corruption, config.seed, limits)
        rejected = dict((Counter(rejected) + spoiled).most_common())
    kept = [_marked(candidate, mark) for candidate in kept]
    facts: dict[str, Any] = {
        "sampled": len(candidates),
        "kept": len(kept),
        "rejected": rejected,
        "puzzles": len({candidate.puzzle.digest for candidate in kept}),
        "tokenizer": tokenizer,
    }
    if not kept:
        best = config.model_copy(update={"keep": "best"})
        some_are_best = config.keep == "exact" and bool(select(candidates, best, held_out, limits)[0])
        raise _nothing_left(out.key, rejected, teacher, some_are_best=some_are_best)
    attempt = out.attempt(identity)
    attempt.write_table(TEXTS_FILE, _table(kept), TEXTS)
    return attempt.publish(facts, **inputs)


def _nothing_left(
    key: str, rejected: Mapping[str, int], teacher: Ref[Rollouts] | Ref[Answers] | None, *, some_are_best: bool
) -> BadInputError:
    """Returns the error of a selection that keeps no text; `some_are_best` says whether `keep = "best"` would."""
    changes = ["another teacher or more samples"]
    changes += ["a higher distil.sft.row_tokens"] if "too_long" in rejected else []
    changes += ["a model whose tokenizer can write the texts"] if "unwritable" in rejected else []
    changes += ['distil.texts.keep = "best"'] if some_are_best else []
    again = "; stored answers are used again" if teacher is not None and teacher.kind == Answers.__name__ else ""
    reasons = ", ".join(f"{count} {reason}" for reason, count in rejected.items()) or "nothing was sampled"
    return BadInputError(
        f"distil {key}",
        f"none of {sum(rejected.values())} texts is left: {reasons}",
        "at least one text",
        f"{NEW_RUN}, with {', or '.join(changes)}{again}",
    )


def _marked(candidate: TeacherText, mark: str) -> TeacherText:
    """Returns a text as the student learns it: after the mark that the student's graders need and the teacher's do not.

    Args:
        candidate: The text of a teacher.
        mark: See `ThinkingConfig.before_answer`.
    """
    if not mark or candidate.puzzle.thinking.rule == "required" or mark.strip() in candidate.text:
        return candidate
    return replace(candidate, text=f"{mark}{candidate.text}", token_ids=None)


def _tokenizer(ctx: StageContext, teacher: Ref[Rollouts] | Ref[Answers] | None) -> str | None:
    """Returns the digest of the tokenizer with which the teacher sampled; None if it is not known."""
    if teacher is None or teacher.kind != Rollouts.__name__:
        return None
    return tokenizer_digest(ctx.store, Ref(**Artifact.open(ctx.store, teacher).manifest.inputs["weights"]))


def effective_settings(config: DistilConfig, teacher: Ref[Any] | None) -> dict[str, Any]:
    """Returns the settings that enter the identity: those of the solver's texts only if the solver teaches."""
    settings = config.model_dump(mode="json")
    if teacher is not None:
        del settings["written"], settings["puzzles"]
    return settings


def _candidates(
    ctx: StageContext, config: DistilConfig, teacher: Ref[Rollouts] | Ref[Answers] | None, own: Artifact
) -> list[TeacherText]:
    if teacher is None:
        return _graded(_of_solver(config, own.read_table("train.parquet", PUZZLES)), config.grader)
    source = Artifact.open(ctx.store, teacher)
    if teacher.kind == Answers.__name__:
        asked = Artifact.open(ctx.store, Ref(**source.manifest.inputs["puzzles"]))
        split = source.manifest.identity.config["split"]
        asked_table = asked.read_table(f"{split}.parquet", PUZZLES)
        if are_episodes(asked_table):
            raise BadInputError("distil.teacher", "answers to episodes", "answers of one turn", "name other answers")
        known = puzzles_by_id(asked_table, thought_opened=thought_opened(source.manifest.facts))
        of_api = "weights" not in source.manifest.inputs
        candidates = _of_answers(source.read_table(ANSWERS_FILE, ANSWERS), known, of_api=of_api)
    else:
        own_train = own.read_table("train.parquet", PUZZLES)
        known = puzzles_by_id(own_train, thought_opened=thought_opened(source.manifest.facts))
        candidates = _of_rollouts(source.read_tables(ROLLOUTS), known)
    return _graded(candidates, config.grader)


def _of_solver(config: DistilConfig, train: pl.DataFrame) -> list[TeacherText]:
    if config.puzzles is not None:
        if config.puzzles > len(train):
            raise BadInputError(
                "distil.texts.puzzles",
                f"{config.puzzles}, more than the {len(train)} train puzzles",
                f"at most {len(train)}",
                "raise puzzles.train",
            )
        train = train[random.Random(config.seed).sample(range(len(train)), config.puzzles)]
    texts = taught_passages(train, None if config.written == "answers" else config.written)
    puzzles = puzzles_by_id(train).values()
    return [
        TeacherText(puzzle, 0, "".join(part.text for part in parts))
        for puzzle, parts in zip(puzzles, texts, strict=True)
    ]


def _of_rollouts(rollouts: pl.DataFrame, known: Mapping[str, Puzzle]) -> list[TeacherText]:
    candidates: list[TeacherText] = []
    for row in rollouts.sort("group", "sample").iter_rows(named=True):
        tokens, ended = row["completion_token_ids"], row["finish_reason"] == "stop"
        unusable = None if ended and row["text"].strip() else "empty" if ended else "truncated"
        puzzle = _puzzle(row["prompt_id"], known)
        candidates.append(TeacherText(puzzle, row["sample"], row["text"], unusable, tokens, len(tokens)))
    return candidates


def _of_answers(answers: pl.DataFrame, known: Mapping[str, Puzzle], *, of_api: bool) -> list[TeacherText]:
    if not of_api and any(own_words(text) != text for text in answers["text"]):
        raise BadInputError(
            "distil.teacher",
            "answers with words of a tool, which are not the teacher's",
            "answers without a tool",
            "ask the checkpoint with tool_calls = 0",
        )
    candidates: list[TeacherText] = []
    for row in answers.sort("group", "sample").iter_rows(named=True):
        outcome = {"answered": None, "length": "truncated"}.get(row["outcome"], row["outcome"])
        text, puzzle = row["text"], _puzzle(row["prompt_id"], known)
        if of_api:
            puzzle = replace(puzzle, thinking=puzzle.thinking.of_an_api())
        if row["reasoning"]:
            marks = puzzle.thinking
            text = f"{marks.opening}\n{row['reasoning'].strip()}\n{marks.closing}\n\n{text}"
        unusable = outcome or (None if text.strip() else "empty")
        candidates.append(TeacherText(puzzle, row["sample"], text, unusable, None, row["completion_tokens"]))
    return candidates


def _puzzle(prompt_id: str, known: Mapping[str, Puzzle]) -> Puzzle:
    if prompt_id not in known:
        raise IntegrityError(f"puzzle {prompt_id}", "answered but not in the puzzle set", "the texts of this set")
    return known[prompt_id]


def _graded(candidates: Sequence[TeacherText], grader: Grader) -> list[TeacherText]:
    known = {candidate.puzzle.prompt_id: candidate.puzzle for candidate in candidates}
    answered = [(candidate.text, candidate.puzzle.prompt_id) for candidate in candidates]
    return [
        replace(candidate, accuracy=graded.accuracy, exact=graded.exact)
        for candidate, graded in zip(candidates, graded_texts(answered, known, grader), strict=True)
    ]


def _table(kept: Sequence[TeacherText]) -> pl.DataFrame:
    names = [name for name in TEXTS.columns if name not in ("prompt_id", "digest", "prompt")]
    rows = [
        {
            "prompt_id": candidate.puzzle.prompt_id,
            "digest": candidate.puzzle.digest,
            "prompt": candidate.puzzle.prompt,
            **{name: getattr(candidate, name) for name in names},
        }
        for candidate in kept
    ]
    return as_table(rows, TEXTS)
