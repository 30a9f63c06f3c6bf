"""Lines of derivations in the styles that put the premises before the conclusion, for all environments."""

from collections.abc import Sequence


def terse_line(number: int, premises: Sequence[str], statement: str) -> str:
    """Returns a line such as `s3 1 s2: The Knife was in the Lounge`.

    Args:
        number: Position of the step, from 0; its name is `s` and the number from 1.
        premises: Numbers of clues and names of earlier steps; empty if the statement follows from the rules alone.
        statement: The conclusion, without a full stop.
    """
    return f"s{number + 1} {' '.join(premises) or 'rules'}: {statement}"


def cited_line(premises: Sequence[str], statement: str) -> str:
    """Returns a line such as `- The Knife was in the Hall; Mr. Green was in the Hall; so ...`, with the words of clues.

    If the only premise equals the conclusion, it is written once. Semicolons separate the statements, because a clue
    may itself contain "and" or "or".

    Args:
        premises: Sentences without a full stop; empty if the statement follows from the rules alone.
        statement: The conclusion, without a full stop.
    """
    if not premises or list(premises) == [statement]:
        return f"- {statement}"
    conclusion = f"the {statement.removeprefix('The ')}" if statement.startswith("The ") else statement
    return f"- {'; '.join(premises)}; so {conclusion}"
