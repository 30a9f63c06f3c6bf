"""The selection of a teacher's texts: which are kept, and for which reason others are rejected."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import Field

from artifacts.config import Config
from stages.environments import environment
from stages.environments.capabilities import ChecksFormat, needs
from stages.environments.corruption import CorruptionConfig, corrupted
from stages.environments.puzzle import Grader, Puzzle, Style
from stages.models.tokenizers.chat import ChatTokenizer
from stages.texts.supervised import tokens_to_learn

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
        description="Drop texts with more of the teacher's tokens than this; null: no limit. Texts of unknown length "
        "are kept.",
    )
    untrainable: Literal["refuse", "drop"] = Field(
        default="drop",
        description="Texts that with their prompt do not fit into `distil.sft.row_tokens`, or that the student's "
        "tokenizer cannot write. `drop`: reject them; `refuse`: end the run if one is selected.",
    )
    deduplicate: bool = Field(default=True, description="Keep one of equal texts for a puzzle; spaces do not count.")
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
class TextLimits:
    """Decides which texts a student can be trained on.

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
            self._prompt_tokens[prompt] = len(self.tokenizer.prompt_token_ids(prompt))
        return "too_long" if self._prompt_tokens[prompt] + len(tokens) > self.row_tokens else None


def select(
    candidates: Sequence[TeacherText],
    config: DistilConfig,
    held_out: Iterable[str] = (),
    limits: TextLimits | None = None,
) -> tuple[list[TeacherText], dict[str, int]]:
    """Returns the candidates that are kept, in order, and the numbers of the others by reason, most frequent first.

    Args:
        candidates: The texts of a teacher; the texts of a puzzle are in the order of their samples.
        config: The rules of selection.
        held_out: Digests of puzzles that no model may be trained on.
        limits: The limits of the student's texts; None accepts texts of any length and characters.
    """
    barred = frozenset(held_out)
    reasons: Counter[str] = Counter()
    fitting: list[TeacherText] = []
    for candidate in candidates:
        reason = _unfit(candidate, config, barred) or (limits.lacking_for(candidate) if limits else None)
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


def after_corruption(
    kept: Sequence[TeacherText], config: CorruptionConfig, seed: int, limits: TextLimits | None
) -> tuple[list[TeacherText], Counter[str]]:
    """Returns the texts after a corruption, and the numbers of those that it empties or makes untrainable."""
    seeds = [f"{seed}/{candidate.puzzle.prompt_id}/{candidate.sample}" for candidate in kept]
    texts = corrupted([(candidate.text, candidate.puzzle) for candidate in kept], config, seeds)
    usable: list[TeacherText] = []
    reasons: Counter[str] = Counter()
    for candidate, text in zip(kept, texts, strict=True):
        changed = replace(candidate, text=text, token_ids=None)
        reason = "emptied" if not text.strip() else limits.lacking_for(changed) if limits else None
        if reason:
            reasons[reason] += 1
        else:
            usable.append(changed)
    return usable, reasons
