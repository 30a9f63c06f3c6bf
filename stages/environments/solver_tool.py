"""A solver that a completion can ask: the syntax of a call and of its answer, and of what an environment replies.

A call is a list of statements in the words of the puzzle's clues, one a line. The solver answers with statements, too:
the answers to the puzzle's questions that all solutions of the call's statements share:

    <ask>
    Miss Scarlet was in the room just north of Mr. Green
    Mr. Boddy was in the Lounge
    </ask>
    <told>
    Mr. Boddy was murdered in the Lounge
    </told>

The text between the marks of an answer is the solver's, so graders do not read it (see `own_words`). The stored text of
an episode has its observations between the same marks; the model reads them as messages of the user.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

CALL_START, CALL_END = "<ask>", "</ask>"
ANSWER_START, ANSWER_END = "<told>", "</told>"
UNREADABLE = "A line cannot be read"
IMPOSSIBLE = "No solution"
NOTHING = "Nothing follows"
NO_RESULT = "No result in time"
LIMIT = 1.0
"""Limit of one answer in CP-SAT's deterministic time, whose unit is about a second. It is equal on all machines."""

S = TypeVar("S")
_OBSERVATION = re.compile(rf"\n{ANSWER_START}\n(.*?)\n{ANSWER_END}\n", re.DOTALL)


@dataclass(frozen=True)
class Passage:
    """A part of a text that the model or the tool writes."""

    text: str
    by_tool: bool = False


def without_marks(text: str) -> str:
    """Returns a text in which no answer of a tool begins or ends."""
    return text.replace(ANSWER_START, f" {ANSWER_START[1:-1]} ").replace(ANSWER_END, f" {ANSWER_END[1:-1]} ")


def write_episode(turns: Sequence[str], observations: Sequence[str]) -> str:
    """Returns the text of an episode: what the model wrote, with an observation after each turn but the last.

    Args:
        turns: Texts without marks.
        observations: Texts without marks, one fewer.
    """
    pairs = zip(observations, turns[1:], strict=True)
    return "".join([turns[0], *(write_tool_output([observation]) + turn for observation, turn in pairs)])


def read_episode(text: str) -> tuple[list[str], list[str]]:
    """Returns the turns and the observations that `write_episode` wrote."""
    pieces = _OBSERVATION.split(text)
    return pieces[::2], pieces[1::2]


def write_call(statements: Iterable[str]) -> str:
    """Returns the text of a call."""
    return "\n".join([CALL_START, *statements, CALL_END])


def write_tool_output(sentences: Iterable[str]) -> str:
    """Returns the text of an answer, which continues the line of the call's end."""
    return "\n".join(["", ANSWER_START, *sentences, ANSWER_END, ""])


def read_call(text: str) -> list[str]:
    """Returns the statements of the call at the end of a text, without bullets and full stops.

    A call without `<ask>` begins where the text begins.
    """
    words = text.rpartition(CALL_END)[0].rpartition(CALL_START)[2]
    return [line for raw in words.splitlines() if (line := raw.strip().removeprefix("- ").removesuffix("."))]


def shared_sentences(
    statements: Iterable[str], read: Callable[[str], S | None], follow: Callable[[tuple[S, ...]], list[str] | None]
) -> list[str]:
    """Returns the sentences of an answer.

    Args:
        statements: Lines of a call.
        read: Returns the statement of a line; None if the line is not one.
        follow: Returns the sentences that follow from statements without duplicates, or `NO_RESULT`; None if the
            statements have no solution.
    """
    statements = list(statements)
    formal = [statement for line in statements if (statement := read(line)) is not None]
    unread = [UNREADABLE] * (len(formal) < len(statements))
    sentences = follow(tuple(dict.fromkeys(formal)))
    if sentences is None:
        return [*unread, IMPOSSIBLE]
    return [*unread, *(sentences or [NOTHING])]


def own_words(text: str, filler: str = "\n") -> str:
    """Returns a completion without the solver's answers.

    Args:
        text: The completion.
        filler: Replaces each character of the answers: a line end, so that offsets stay as they are, or nothing.
    """
    pieces: list[str] = []
    done = 0
    while (start := text.find(ANSWER_START, done)) >= 0 and (end := text.find(ANSWER_END, start)) >= 0:
        end += len(ANSWER_END)
        pieces += [text[done:start], filler * (end - start)]
        done = end
    return "".join([*pieces, text[done:]])
