"""Items with one answer, named `answer`, of environments whose answers have no letters."""

import hashlib
from collections.abc import Mapping
from typing import Any

from artifacts.documents.conversation import messages_of
from stages.environments.puzzle import Graded, Parsed, Puzzle

ANSWER, ITEM = "answer", "item"
"""Keys of `Puzzle.solution`: the right answer, and for some environments all other data for grading, as JSON."""
OPEN_TAG, CLOSE_TAG = "<answer>", "</answer>"
MISSING = "missing"
"""The note of a completion without an answer."""
_KEPT_CHARACTERS = 200
"""Characters of an answer that a grade keeps for readers; the completion itself is stored with the rollouts."""


def single_item(
    prompt_id: str,
    environment: str,
    prompt: str,
    solution: Mapping[str, str],
    *,
    seed: int | None = None,
    difficulty: Mapping[str, int] | None = None,
) -> Puzzle:
    """Returns an item without clues, whose digest is that of its prompt; the arguments are the fields of `Puzzle`."""
    return Puzzle(
        prompt_id=prompt_id,
        environment=environment,
        prompt=prompt,
        solution=dict(solution),
        num_clues=0,
        seed=seed,
        digest=hashlib.sha256(prompt.encode()).hexdigest(),
        difficulty=dict(difficulty or {}),
    )


def reward_item(prompt: str, solution: Mapping[str, str]) -> dict[str, Any]:
    """Returns what a user's reward function gets of an item; the prompt is a text, or the list of its messages."""
    messages = messages_of(prompt)
    return {"prompt": prompt if len(messages) == 1 else messages, "solution": dict(solution)}


def single_grade(words: str | None, accuracy: float, note: str = "", *, value: str | None = None) -> Graded:
    """Returns the grade of the only answer, which is right if its accuracy is 1.

    Args:
        words: The answer as it was read; None if there is none.
        accuracy: From 0 to 1.
        note: Why the answer could not be compared (see `Parsed.note`); empty if it was.
        value: What equal answers have in common; None: their words.
    """
    kept, right = None if words is None else words[:_KEPT_CHARACTERS], accuracy >= 1.0
    value = None if note else words if value is None else value
    if value is not None and len(value) > _KEPT_CHARACTERS:  # values that begin alike stay different
        value = f"{value[:_KEPT_CHARACTERS]} {hashlib.sha256(value.encode()).hexdigest()[:12]}"
    return Graded(accuracy, right, {ANSWER: Parsed(kept, value, right, note)})


def is_partial(answer: Parsed) -> bool:
    """Returns whether the words of an answer are only its beginning, or a score in place of an answer."""
    if answer.text is None:
        return False
    return len(answer.text) == _KEPT_CHARACTERS or (answer.value is None and not answer.note)


def between_tags(text: str) -> tuple[int, int] | None:
    """Returns start and end of the words from `<answer>` to the last `</answer>`; None if there is no such pair."""
    close = text.rfind(CLOSE_TAG)
    begin = text.rfind(OPEN_TAG, 0, close) if close >= 0 else -1
    return None if begin < 0 else (begin + len(OPEN_TAG), close)
