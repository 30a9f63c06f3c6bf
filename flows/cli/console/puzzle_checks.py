"""Checks of the puzzles that commands are given, with their errors."""

from collections.abc import Sequence

from artifacts.documents.suggestions import listed
from artifacts.errors import BadInputError
from stages.environments.puzzle import Checked, Puzzle

_UNREAD_SHOWN = 3
"""Maximum number of sentences that an error quotes; it counts the others."""


def puzzle_at(puzzles: Sequence[Puzzle], index: int, file: str) -> Puzzle:
    """Returns one of the puzzles of a file or split.

    Raises:
        BadInputError: There is no puzzle with that index; the message names the option `--index`.
    """
    if not 0 <= index < len(puzzles):
        raise BadInputError(f"--index {index}", f"{len(puzzles)} puzzles in {file}", f"0 to {len(puzzles) - 1}")
    return puzzles[index]


def not_provable(where: str, checked: Checked) -> BadInputError:
    """Returns the error for a puzzle about which nothing can be proved.

    Either some of its sentences cannot be read, which the error quotes, or its clues contradict one another.
    """
    if not checked.unread:
        return BadInputError(where, "the clues contradict one another", "clues that have a solution")
    return BadInputError(
        where,
        f"cannot be read: {listed([repr(sentence) for sentence in checked.unread], _UNREAD_SHOWN)}",
        "sentences as `deerstalker puzzles make` writes them",
        "correct the sentence; `deerstalker puzzles solve` lists all of them",
    )
