"""Refuses rows into which the longest prompt with its completion does not fit."""

from artifacts.errors import BadInputError
from flows.config.recipe import Recipe
from flows.plan.workload import Lengths


def check_rows(recipe: Recipe, lengths: Lengths, shortest: int = 1) -> None:
    """Checks that every row has room for the longest prompt with a completion at its longest.

    A recipe with `pack.overlong = "drop"` leaves out completions that do not fit, so its rows may be shorter, but the
    shortest prompt must fit with one token of a completion.

    Args:
        lengths: Lengths of the prompts.
        shortest: Tokens of the shortest prompt.

    Raises:
        BadInputError: A row is too short.
    """
    for number, part in enumerate(recipe.parts):
        drops = part.pack.overlong == "drop"
        needed = shortest + 1 if drops else lengths.longest(part.sample.sampling)
        if part.pack.row_size >= needed:
            continue
        calls = part.sample.sampling.tool_calls
        outputs = f" and {calls} answers of the solver of up to {lengths.tool_tokens} tokens" if calls else ""
        longest = f"prompts of up to {lengths.prompt} tokens, completions of up to {part.sample.sampling.max_tokens}"
        raise BadInputError(
            f"phases.{number}.pack.row_tokens" if recipe.phases else "pack.row_tokens",
            f"{part.pack.row_size}, too short for {longest}{outputs}",
            f"at least {needed}, or auto",
            "set it; nothing fits into these rows"
            if drops
            else 'set it, lower sample.sampling.max_tokens, or leave what does not fit out with pack.overlong = "drop"',
        )
