"""Reads a prompt, its text only, into the formal puzzle; what it cannot read it names."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from artifacts.errors import BadInputError
from stages.puzzles.temporal_clue.formal import FormalPuzzle, Question, Statement
from stages.puzzles.temporal_clue.grammar import grammar_of
from stages.puzzles.temporal_clue.sections import cut


@dataclass(frozen=True)
class Unread:
    """A sentence that the grammar does not know.

    Attributes:
        part: Where it stands.
        position: Its place in that part, from 1.
        text: The sentence.
    """

    part: Literal["clue", "question"]
    position: int
    text: str


@dataclass(frozen=True)
class Reading:
    """What was read of a prompt.

    Attributes:
        puzzle: The formal puzzle; its clues and questions are those that were read.
        unread: The others. A puzzle with any of them must not be solved as if they were not there.
    """

    puzzle: FormalPuzzle
    unread: tuple[Unread, ...]


@lru_cache(maxsize=1024)
def read_formal(prompt: str) -> Reading:
    """Reads `prompt`.

    Raises:
        BadInputError: A part that every puzzle has is missing, or an answer type does not fit its question.
    """
    sections = cut(prompt)
    grammar = grammar_of(sections.scenario)
    unread: list[Unread] = []
    clues: list[Statement] = []
    for position, sentence in enumerate(sections.clues, start=1):
        statement = grammar.statement(sentence)
        if statement is None:
            unread.append(Unread("clue", position, sentence))
        else:
            clues.append(statement)
    form = dict(sections.form)
    asked: list[list[Question]] = [[], []]
    for position, (letter, sentence) in enumerate(sections.questions + sections.bonus, start=1):
        question = grammar.question(sentence)
        if question is None:
            unread.append(Unread("question", position, f"{letter}. {sentence}"))
            continue
        if form.get(letter) != question.answer_type:
            raise BadInputError(
                f"prompt, answer format of {letter}", str(form.get(letter)), f"{question.answer_type} for {sentence!r}"
            )
        asked[0 if position <= len(sections.questions) else 1].append(question)
    return Reading(FormalPuzzle(sections.scenario, tuple(clues), tuple(asked[0]), tuple(asked[1])), tuple(unread))
