"""The error for puzzles of which nothing can be proved."""

from artifacts.errors import BadInputError
from stages.environments.puzzle import Checked

_UNREAD_SHOWN = 3
"""Sentences that an error names; the others are counted."""


def not_provable(where: str, checked: Checked) -> BadInputError:
    """Returns the error for a puzzle of which nothing can be proved; names the clues that could not be read."""
    if not checked.unread:
        return BadInputError(where, "the clues contradict one another", "clues that have a solution")
    shown = ", ".join(map(repr, checked.unread[:_UNREAD_SHOWN]))
    more = len(checked.unread) - _UNREAD_SHOWN
    return BadInputError(
        where,
        f"cannot be read: {shown}" + (f" and {more} more" if more > 0 else ""),
        "sentences as `deerstalker puzzles make` writes them",
        "correct the sentence; `deerstalker puzzles solve` lists all of them",
    )
