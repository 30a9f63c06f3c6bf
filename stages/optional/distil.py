"""The stage that selects the texts of a teacher: good ones to train on, or bad ones as a control.

Sources: rejection-sampled fine-tuning (arXiv 2308.01825), Sky-T1 (arXiv 2502.07374), AM-1.4M (arXiv 2503.19633).
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import Field

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.errors import NEW_RUN, BadInputError, IntegrityError
from artifacts.identity import Added, Identity, settings_of
from artifacts.reading import Artifact
from artifacts.refs import Answers, Checkpoint, Puzzles, Ref, Rollouts, Texts
from artifacts.schemas import ANSWERS, ANSWERS_FILE, BY_TOOL, PUZZLES, ROLLOUTS, TEXTS, TEXTS_FILE, as_table
from stages.context import StageContext
from stages.environments import environment
from stages.environments.capabilities import ChecksFormat, needs
from stages.environments.corruption import CorruptionConfig, corrupted
from stages.environments.puzzle import Grader, Puzzle, Style
from stages.environments.tables import graded_texts, puzzles_by_id, taught_passages
from stages.models.tokenizers.chat import ChatTokenizer
from stages.models.tokenizers.digest import tokenizer_digest
from stages.training.supervised import tokens_to_learn

REVISION = 1

Keep = Literal["exact", "best", "all", "wrong"]


class DistilConfig(Config):
    """Selection of a teacher's texts, and their corruption."""

    keep: Keep = Field(
        default="exact",
        description="`exact`: texts whose answers are all right. `best`: those of a puzzle with its highest accuracy, "
        "if that is above 0. `all`, or `wrong`: those whose answers are not all right, as a control.",
    )
    grader: Grader = Field(default="strict", description="Rules by which answers are read from a text.")
    well_formed: bool = Field(
        default=False, description="Drop texts without the layout that the prompt asks for (see the environment)."
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Drop texts of more tokens of the teacher; null: no limit. Texts of unknown length stay.",
    )
    untrainable: Annotated[Literal["refuse", "drop"], Added(before="refuse")] = Field(
        default="drop",
        description="Texts that with their prompt do not fit into `distil.sft.row_tokens`, or that the student's "
        "tokenizer cannot write. `drop`: reject them; `refuse`: end the run if one is selected.",
    )
    deduplicate: bool = Field(default=True, description="Keep equal texts for one puzzle once; spaces do not count.")
    per_puzzle: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Number of texts of a puzzle that are kept, the first that were sampled; null: all. Easy puzzles "
        "have more right texts than hard ones.",
    )
    written: Style | Literal["answers"] = Field(
        default="plain", description="Texts of the teacher `solver`: a style of derivations, or the answers alone."
    )
    puzzles: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Number of train puzzles, drawn at random, for which the teacher `solver` writes; null: all.",
    )
    corruption: CorruptionConfig | None = Field(
        default=None, description="Corruption of the kept texts, as a control; null: none."
    )
    seed: int = Field(default=0, ge=0, description="Seed of the corruption and of the choice of puzzles.")


@dataclass(frozen=True)
class TeacherText:
    """A text of a teacher.

    Attributes:
        puzzle: Its puzzle.
        sample: Its number among the texts for the puzzle.
        text: The text.
        unusable: Why it cannot be used, such as `truncated` or `refusal`; None if it can.
        token_ids: Its tokens with the end token; None if they are not known.
        tokens: Their number; None if it is not known.
        accuracy: Fraction of right answers.
        exact: Whether all answers are right.
    """

    puzzle: Puzzle
    sample: int
    text: str
    unusable: str | None = None
    token_ids: Sequence[int] | None = None
    tokens: int | None = None
    accuracy: float = 0.0
    exact: bool = False


@dataclass(frozen=True)
class Room:
    """Tells which texts a student can be trained on.

    Attributes:
        tokenizer: The student's.
        row_tokens: Token budget of a row.
        keeps_tokens: Whether the teacher's tokens are the student's.
    """

    tokenizer: ChatTokenizer
    row_tokens: int
    keeps_tokens: bool
    _prompt_tokens: dict[str, int] = field(init=False, default_factory=dict[str, int])

    def lacking_for(self, candidate: TeacherText) -> str | None:
        """Returns why a text cannot be trained on, `unwritable` or `too_long`; None if it can."""
        sampled = candidate.token_ids if self.keeps_tokens else None
        tokens = tokens_to_learn(self.tokenizer, candidate.text, sampled)
        if tokens is not sampled and self.tokenizer.decode(list(tokens)) != candidate.text:
            return "unwritable"
        prompt = candidate.puzzle.prompt
        if prompt not in self._prompt_tokens:
            self._prompt_tokens[prompt] = len(self.tokenizer.prompt_ids(prompt))
        return "too_long" if self._prompt_tokens[prompt] + len(tokens) > self.row_tokens else None


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
    inputs: dict[str, Ref[Any] | None] = {"teacher": teacher, "puzzles": puzzles}
    settings = effective_settings(config, teacher)
    if config.untrainable == "drop":
        inputs["student"], settings["row_tokens"] = student, row_tokens
    identity = Identity.of("distil", REVISION, settings, **inputs)
    if published := out.find(identity):
        return published
    own = Artifact.open(ctx.store, puzzles)
    candidates, tokenizer = _candidates(ctx, config, teacher, own), _tokenizer(ctx, teacher)
    room = _room(ctx, student, row_tokens, tokenizer) if config.untrainable == "drop" else None
    held_out = {digest for split in ("val", "test") for digest in own.read_table(f"{split}.parquet", PUZZLES)["digest"]}
    kept, rejected = select(candidates, config, held_out, room)
    if config.corruption is not None:
        kept, spoiled = _corrupted(kept, config.corruption, config.seed, room)
        rejected = dict((Counter(rejected) + spoiled).most_common())
    facts: dict[str, Any] = {
        "sampled": len(candidates),
        "kept": len(kept),
        "rejected": rejected,
        "puzzles": len({candidate.puzzle.digest for candidate in kept}),
        "tokenizer": tokenizer,
    }
    if not kept:
        best = config.model_copy(update={"keep": "best"})
        some_are_best = config.keep == "exact" and bool(select(candidates, best, held_out, room)[0])
        reasons = ", ".join(f"{count} {reason}" for reason, count in rejected.items()) or "nothing was sampled"
        raise BadInputError(
            f"distil {out.key}",
            f"none of {len(candidates)} texts is left: {reasons}",
            "at least one text",
            _remedy(rejected, teacher, some_are_best=some_are_best),
        )
    attempt = out.attempt(identity)
    attempt.write_table(TEXTS_FILE, _table(kept), TEXTS)
    return attempt.publish(facts, **inputs)


def _remedy(rejected: Mapping[str, int], teacher: Ref[Rollouts] | Ref[Answers] | None, *, some_are_best: bool) -> str:
    """Returns the changes of the recipe that may leave texts; `some_are_best` says whether `keep = "best"` would."""
    changes = ["another teacher or more samples"]
    changes += ["a higher distil.sft.row_tokens"] if "too_long" in rejected else []
    changes += ["a model whose tokenizer can write the texts"] if "unwritable" in rejected else []
    changes += ['distil.texts.keep = "best"'] if some_are_best else []
    again = "; stored answers are used again" if teacher is not None and teacher.kind == Answers.__name__ else ""
    return f"{NEW_RUN}, with {', or '.join(changes)}{again}"


def _room(ctx: StageContext, student: Ref[Checkpoint], row_tokens: int, of_teacher: str | None) -> Room:
    """Returns the room for texts of a student; `of_teacher` is the digest of the teacher's tokenizer."""
    keeps_tokens = of_teacher == tokenizer_digest(ctx.store, student)
    return Room(ChatTokenizer(ctx.local_folder(student)), row_tokens, keeps_tokens)


def _tokenizer(ctx: StageContext, teacher: Ref[Rollouts] | Ref[Answers] | None) -> str | None:
    """Returns the digest of the tokenizer with which the teacher sampled; None if it is not known."""
    if teacher is None or teacher.kind != Rollouts.__name__:
        return None
    return tokenizer_digest(ctx.store, Ref(**Artifact.open(ctx.store, teacher).manifest.inputs["weights"]))


def effective_settings(config: DistilConfig, teacher: Ref[Any] | None) -> dict[str, Any]:
    """Returns the settings that enter the identity: those of the solver's texts only if the solver teaches."""
    settings = settings_of(config)
    if teacher is not None:
        del settings["written"], settings["puzzles"]
    return settings


def select(
    candidates: Sequence[TeacherText], config: DistilConfig, held_out: Iterable[str] = (), room: Room | None = None
) -> tuple[list[TeacherText], dict[str, int]]:
    """Returns the candidates that are kept, in order, and the numbers of the others by reason, most frequent first.

    Args:
        candidates: The texts of a teacher; those of a puzzle in the order of their samples.
        config: The rules of selection.
        held_out: Digests of puzzles that no model may be trained on.
        room: The student's tokenizer and rows; None: texts of any length and characters fit.
    """
    barred = frozenset(held_out)
    reasons: Counter[str] = Counter()
    fitting: list[TeacherText] = []
    for candidate in candidates:
        reason = _unfit(candidate, config, barred) or (room.lacking_for(candidate) if room else None)
        if reason:
            reasons[reason] += 1
        else:
            fitting.append(candidate)
    best: dict[str, float] = {}
    for candidate in fitting:
        digest = candidate.puzzle.digest
        best[digest] = max(candidate.accuracy, best.get(digest, 0.0))
    kept: list[TeacherText] = []
    seen: set[tuple[str, str]] = set()
    of_puzzle: Counter[str] = Counter()
    for candidate in fitting:
        digest, words = candidate.puzzle.digest, " ".join(candidate.text.split())
        if reason := _unwanted(candidate, config.keep, best[digest]):
            reasons[reason] += 1
        elif config.deduplicate and (digest, words) in seen:
            reasons["duplicate"] += 1
        elif config.per_puzzle is not None and of_puzzle[digest] == config.per_puzzle:
            reasons["surplus"] += 1
        else:
            kept.append(candidate)
            seen.add((digest, words))
            of_puzzle[digest] += 1
    return kept, dict(reasons.most_common())


def _unfit(candidate: TeacherText, config: DistilConfig, held_out: frozenset[str]) -> str | None:
    """Returns why a text is not fit for any selection; None if it is."""
    if candidate.unusable is not None:
        return candidate.unusable
    if candidate.puzzle.digest in held_out:
        return "contaminated"
    if config.well_formed and not _well_formed(candidate):
        return "malformed"
    if config.max_tokens is not None and candidate.tokens is not None and candidate.tokens > config.max_tokens:
        return "long"
    return None


def _unwanted(candidate: TeacherText, keep: Keep, best: float) -> str | None:
    """Returns why a fit text is not to be kept; None if it is."""
    match keep:
        case "exact":
            return None if candidate.exact else "wrong"
        case "wrong":
            return "right" if candidate.exact else None
        case "best":
            if best == 0.0:
                return "wrong"
            return None if candidate.accuracy == best else "worse"
        case "all":
            return None


def _well_formed(candidate: TeacherText) -> bool:
    where, remedy = "distil.texts.well_formed", "set it to false"
    checker = needs(environment.get(candidate.puzzle.environment), ChecksFormat, where, remedy)
    return checker.well_formed(candidate.text, candidate.puzzle)


def _candidates(
    ctx: StageContext, config: DistilConfig, teacher: Ref[Rollouts] | Ref[Answers] | None, own: Artifact
) -> list[TeacherText]:
    if teacher is None:
        return _graded(_of_solver(config, own.read_table("train.parquet", PUZZLES)), config.grader)
    source = Artifact.open(ctx.store, teacher)
    if teacher.kind == Answers.__name__:
        asked = Artifact.open(ctx.store, Ref(**source.manifest.inputs["puzzles"]))
        split = source.manifest.identity.config["split"]
        known = puzzles_by_id(asked.read_table(f"{split}.parquet", PUZZLES))
        candidates = _of_answers(source.read_table(ANSWERS_FILE, ANSWERS), known)
    else:
        known = puzzles_by_id(own.read_table("train.parquet", PUZZLES))
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
    if BY_TOOL in rollouts.columns:
        raise BadInputError(
            "distil",
            "rollouts with a tool, whose words are not the teacher's",
            "rollouts without a tool",
            "set distil.sample.sampling.tool_calls to 0",
        )
    candidates: list[TeacherText] = []
    for row in rollouts.sort("group", "sample").iter_rows(named=True):
        tokens, ended = row["completion_token_ids"], row["finish_reason"] == "stop"
        unusable = None if ended and row["text"].strip() else "empty" if ended else "truncated"
        puzzle = _puzzle(row["puzzle_id"], known)
        candidates.append(TeacherText(puzzle, row["sample"], row["text"], unusable, tokens, len(tokens)))
    return candidates


def _of_answers(answers: pl.DataFrame, known: Mapping[str, Puzzle]) -> list[TeacherText]:
    candidates: list[TeacherText] = []
    for row in answers.sort("group", "sample").iter_rows(named=True):
        outcome = {"answered": None, "length": "truncated"}.get(row["outcome"], row["outcome"])
        text = row["text"]
        if row["reasoning"]:
            text = f"<think>\n{row['reasoning'].strip()}\n</think>\n\n{text}"
        unusable = outcome or (None if text.strip() else "empty")
        puzzle, tokens = _puzzle(row["puzzle_id"], known), row["completion_tokens"]
        candidates.append(TeacherText(puzzle, row["sample"], text, unusable, None, tokens))
    return candidates


def _puzzle(puzzle_id: str, known: Mapping[str, Puzzle]) -> Puzzle:
    if puzzle_id not in known:
        raise IntegrityError(f"puzzle {puzzle_id}", "answered but not in the puzzle set", "the texts of this set")
    return known[puzzle_id]


def _graded(candidates: Sequence[TeacherText], grader: Grader) -> list[TeacherText]:
    known = {candidate.puzzle.puzzle_id: candidate.puzzle for candidate in candidates}
    answered = [(candidate.text, candidate.puzzle.puzzle_id) for candidate in candidates]
    return [
        replace(candidate, accuracy=graded.accuracy, exact=graded.exact)
        for candidate, graded in zip(candidates, graded_texts(answered, known, grader), strict=True)
    ]


def _corrupted(
    kept: Sequence[TeacherText], config: CorruptionConfig, seed: int, room: Room | None
) -> tuple[list[TeacherText], Counter[str]]:
    """Returns the texts after a corruption, and the numbers of those that it empties or makes untrainable."""
    seeds = [f"{seed}/{candidate.puzzle.puzzle_id}/{candidate.sample}" for candidate in kept]
    texts = corrupted([(candidate.text, candidate.puzzle) for candidate in kept], config, seeds)
    usable: list[TeacherText] = []
    reasons: Counter[str] = Counter()
    for candidate, text in zip(kept, texts, strict=True):
        changed = replace(candidate, text=text, token_ids=None)
        reason = "emptied" if not text.strip() else room.lacking_for(changed) if room else None
        if reason:
            reasons[reason] += 1
        else:
            usable.append(changed)
    return usable, reasons


def _table(kept: Sequence[TeacherText]) -> pl.DataFrame:
    names = [name for name in TEXTS.columns if name not in ("puzzle_id", "digest", "prompt")]
    rows = [
        {
            "puzzle_id": candidate.puzzle.puzzle_id,
            "digest": candidate.puzzle.digest,
            "prompt": candidate.puzzle.prompt,
            **{name: getattr(candidate, name) for name in names},
        }
        for candidate in kept
    ]
    return as_table(rows, TEXTS)
