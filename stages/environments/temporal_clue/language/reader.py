"""Reads the text of a prompt into a formal puzzle, and lists the sentences that it cannot read."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from artifacts.errors import BadInputError
from stages.environments.temporal_clue.formal import FormalPuzzle, Question, Statement
from stages.environments.temporal_clue.language.grammar import grammar_of
from stages.environments.temporal_clue.language.sections import cut


@dataclass(frozen=True)
class Unread:
    """A sentence that is not in the grammar.

    Attributes:
        part: Part of the prompt that it belongs to.
        position: Its position in that part, from 1.
        text: The sentence.
    """

    part: Literal["clue", "question"]
    position: int
    text: str


@dataclass(frozen=True)
class PromptReading:
    """The result of reading a prompt.

    Attributes:
        puzzle: The formal puzzle with the clues and questions that could be read.
        unread: Sentences that could not be read. A puzzle with such sentences must not be solved without them.
    """

    puzzle: FormalPuzzle
    unread: tuple[Unread, ...]


@lru_cache(maxsize=1024)
def read_formal(prompt: str) -> PromptReading:
    """Returns the formal puzzle of a prompt, and the sentences that could not be read.

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
    questions: list[list[Question]] = [[], []]
    for position, (letter, sentence) in enumerate(sections.questions + sections.bonus, start=1):
        question = grammar.question(sentence)
        if question is None:
            unread.append(Unread("question", position, f"{letter}. {sentence}"))
            continue
        if form.get(letter) != question.answer_type:
            raise BadInputError(
                f"prompt, answer format of {letter}", str(form.get(letter)), f"{question.answer_type} for {sentence!r}"
            )
        questions[0 if position <= len(sections.questions) else 1].append(question)
    formal = FormalPuzzle(sections.scenario, tuple(clues), tuple(questions[0]), tuple(questions[1]))
    return PromptReading(formal, tuple(unread))
