"""Refuses a run whose sampling and training cannot overlap although its recipe requires it."""

from typing import Literal

from artifacts.errors import BadInputError
from flows.config.recipe import Recipe
from stages.context import Profile

Role = Literal["both", "sampler", "trainer"]
"""The part of a run with `iterate_ahead` that one flow run executes."""


def check_overlap(recipe: Recipe, profile: Profile, role: Role = "both", *, refreshes: bool = False) -> None:
    """Checks that the recipe allows the role, and that sampling and training can overlap under the profile.

    Args:
        refreshes: Whether stages are requested to run again.

    Raises:
        BadInputError: A role other than `both` needs `iterate_ahead = 1` and cannot refresh stages, or a setting of the
            profile prevents the overlap.
    """
    if not recipe.iterate_ahead:
        if role != "both":
            raise BadInputError("role", role, "both, because the recipe has iterate_ahead = 0", "set iterate_ahead=1")
        return
    if role != "both":
        if refreshes:  # neither of two flow runs knows which artifacts the other makes again
            found = f"a request to refresh stages, and role {role}"
            raise BadInputError("refresh", found, "role both", "run it with role both, then go on")
        return
    if profile.engine.takes_turns:
        raise BadInputError(
            "engine.takes_turns", "true, but iterate_ahead = 1 samples and trains at the same time", "false",
            "set it, or set iterate_ahead=0 in the recipe",
        )  # fmt: skip
    if profile.gpu_slot is not None and profile.gpu_slot_spans == "stage":
        raise BadInputError(
            "gpu_slot_spans", "'stage', but with iterate_ahead = 1 a stage samples while others end", "'run'",
            "set it, or set iterate_ahead=0 in the recipe",
        )  # fmt: skip
