"""Corruptions of texts that reason in steps, to test what a model learns from: structure or content.

The test is that of Sky-T1 (arXiv 2502.07374). The same text and seed give the same result. A step is a line before the
answers, without a mark that begins or ends a thought: such a line keeps its place, because graders need it.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from artifacts.config import Config
from stages.environments import environment
from stages.environments.capabilities import ListsValues, LocatesAnswers, WritesAnswers, needs
from stages.environments.puzzle import Puzzle
from stages.environments.tables import answer_ends

CorruptionKind = Literal["shuffle_steps", "delete_steps", "insert_steps", "wrong_answers", "swap_names"]

NEEDED: dict[CorruptionKind, tuple[type[Any], ...]] = {
    "shuffle_steps": (LocatesAnswers,),
    "delete_steps": (LocatesAnswers,),
    "insert_steps": (LocatesAnswers,),
    "wrong_answers": (LocatesAnswers, ListsValues, WritesAnswers),
    "swap_names": (ListsValues,),
}
"""The capabilities of an environment that a corruption needs."""


class CorruptionConfig(Config):
    """One corruption of texts."""

    kind: CorruptionKind = Field(
        description="`shuffle_steps`: steps change places. `delete_steps`: steps are left out. `insert_steps`: steps "
        "of texts for other puzzles are added. `wrong_answers`: answers become other values of the puzzle. "
        "`swap_names`: names change places in the whole text, each with one of its kind, but not in the prompt."
    )
    share: float = Field(
        default=1.0,
        ge=0.0,
        le=1.0,
        description="Share of the steps, answers or names that are affected; of inserted steps, in units of the text's "
        "own steps.",
    )


@dataclass(frozen=True)
class SteppedText:
    """A text that is divided into steps and answers.

    Attributes:
        lines: Its lines before the answers, without empty ones.
        answers: The rest, from the line of the first answer on, without a thought that ends on this line.
        marks: Texts that begin or end a thought; a line with one is no step.
    """

    lines: tuple[str, ...]
    answers: str
    marks: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, answer_ends: Mapping[str, int], marks: tuple[str, ...] = ()) -> "SteppedText":
        """Divides a text; without answers, all its lines come before them.

        Args:
            text: The text.
            answer_ends: Number of characters up to the end of each answer (see `LocatesAnswers`).
            marks: See the attribute.
        """
        first = min(answer_ends.values(), default=len(text) + 1)
        start = len(text) if first > len(text) else text.rfind("\n", 0, max(0, first - 1)) + 1
        for mark in marks:
            start = first - len(text[start:first].rpartition(mark)[2])
        return cls(tuple(line for line in text[:start].splitlines() if line.strip()), text[start:], marks)

    def __str__(self) -> str:
        """Returns the text: the lines, an empty line, the answers."""
        return "\n\n".join(part for part in ("\n".join(self.lines), self.answers) if part)

    @property
    def places(self) -> list[int]:
        """The places of the steps among the lines."""
        return [place for place, line in enumerate(self.lines) if not any(mark in line for mark in self.marks)]

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps."""
        return tuple(self.lines[place] for place in self.places)


def shuffled(text: SteppedText, share: float, chance: random.Random) -> SteppedText:
    """Returns a text after a random share of its steps has exchanged places. A single drawn step stays where it is."""
    places = chance.sample(text.places, _count(text.steps, share))
    lines = list(text.lines)
    # One random cycle through the drawn places moves every drawn step. Equal steps still leave an equal text.
    for place, following in zip(places, [*places[1:], *places[:1]], strict=True):
        lines[place] = text.lines[following]
    return replace(text, lines=tuple(lines))


def shortened(text: SteppedText, share: float, chance: random.Random) -> SteppedText:
    """Returns a text without a random share of its steps."""
    dropped = set(chance.sample(text.places, _count(text.steps, share)))
    return replace(text, lines=tuple(line for place, line in enumerate(text.lines) if place not in dropped))


def lengthened(text: SteppedText, share: float, others: Sequence[str], chance: random.Random) -> SteppedText:
    """Returns a text with further steps, each directly before or after another step.

    Args:
        text: A text with N steps.
        share: Number of further steps, in units of N.
        others: Steps of other texts, from which the further ones are drawn without replacement; if there are too few,
            all are added.
        chance: The random generator.
    """
    for step in chance.sample(list(others), min(len(others), _count(text.steps, share))):
        place = chance.choice(sorted({beside for own in text.places for beside in (own, own + 1)}))
        text = replace(text, lines=(*text.lines[:place], step, *text.lines[place:]))
    return text


def misanswered(
    solution: Mapping[str, str], values: Mapping[str, Sequence[str]], share: float, chance: random.Random
) -> dict[str, str]:
    """Returns the answers after a random share of them is replaced by wrong values.

    Args:
        solution: The right answers by letter.
        values: The values that each answer may have; an answer with only one value stays right.
        share: Share of the letters that are answered wrong.
        chance: The random generator.
    """
    answers = dict(solution)
    for letter in chance.sample(sorted(solution), _count(solution, share)):
        if others := [value for value in values[letter] if value != solution[letter]]:
            answers[letter] = chance.choice(others)
    return answers


def renamed(text: str, kinds: Sequence[Sequence[str]], share: float, chance: random.Random) -> str:
    """Returns a text in which names have changed places, the same everywhere in the text.

    Args:
        text: The text.
        kinds: Names by kind; a name changes place with one of its kind only. A kind with one name is left alone.
        share: Share of each kind's names that change places, at least two.
        chance: The random generator.
    """
    new: dict[str, str] = {}
    for names in kinds:
        known = [name for name in dict.fromkeys(names) if name not in new]
        chosen = chance.sample(known, min(len(known), max(2, _count(known, share)))) if share else []
        new |= dict(zip(chosen, [*chosen[1:], *chosen[:1]], strict=True))
    if not new:
        return text
    longest_first = sorted(new, key=len, reverse=True)
    words = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)")
    return words.sub(lambda match: new[match.group()], text)


def corrupted(texts: Sequence[tuple[str, Puzzle]], config: CorruptionConfig, seeds: Sequence[str]) -> list[str]:
    """Returns texts after a corruption, in order.

    Args:
        texts: Each text with its puzzle.
        config: The corruption.
        seeds: Seed of each text. A result depends only on its own text and seed, except under `insert_steps`, which
            draws steps of the other texts.

    Raises:
        BadInputError: An environment lacks a capability that the corruption needs.
    """
    where, remedy = f"distil.texts.corruption.kind = '{config.kind}'", "choose another corruption, or none"
    divided: list[SteppedText] = []
    if config.kind != "swap_names":
        for text, puzzle in texts:
            needs(environment.get(puzzle.environment), LocatesAnswers, where, remedy)
            marks = (puzzle.thinking.opening, puzzle.thinking.closing)
            divided.append(SteppedText.of(text, answer_ends(text, puzzle), marks))
    pool = _Pool(divided, [puzzle.digest for _, puzzle in texts]) if config.kind == "insert_steps" else None
    result: list[str] = []
    for number, ((text, puzzle), seed) in enumerate(zip(texts, seeds, strict=True)):
        chance, share = random.Random(seed), config.share
        match config.kind:
            case "shuffle_steps":
                result.append(str(shuffled(divided[number], share, chance)))
            case "delete_steps":
                result.append(str(shortened(divided[number], share, chance)))
            case "insert_steps":
                assert pool is not None
                others = pool.draw(puzzle.digest, _count(divided[number].steps, share), chance)
                result.append(str(lengthened(divided[number], share, others, chance)))
            case "wrong_answers":
                task_environment = environment.get(puzzle.environment)
                values = needs(task_environment, ListsValues, where, remedy).answer_values(puzzle)
                wrong = replace(puzzle, solution=misanswered(puzzle.solution, values, share, chance))
                answers = needs(task_environment, WritesAnswers, where, remedy).write_answer(wrong)
                result.append(str(replace(divided[number], answers=answers)))
            case "swap_names":
                task_environment = needs(environment.get(puzzle.environment), ListsValues, where, remedy)
                kinds = list(dict.fromkeys(task_environment.answer_values(puzzle).values()))
                result.append(renamed(text, kinds, share, chance))
    return result


class _Pool:
    """The steps of all texts, from which those of other puzzles are drawn."""

    def __init__(self, texts: Sequence[SteppedText], digests: Sequence[str]) -> None:
        self._steps = [
            (digest, step) for text, digest in zip(texts, digests, strict=True) for step in dict.fromkeys(text.steps)
        ]

    def draw(self, digest: str, count: int, chance: random.Random) -> list[str]:
        """Returns `count` random steps of other puzzles; fewer if other puzzles have too few steps."""
        drawn: list[str] = []
        for _ in range(8 * count if self._steps else 0):
            owner, step = chance.choice(self._steps)
            if len(drawn) < count and owner != digest:
                drawn.append(step)
        return drawn


def _count(items: Sequence[object] | Mapping[str, object], share: float) -> int:
    return round(share * len(items))
