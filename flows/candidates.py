"""The recipes of a comparison, each fitted to the run whose rollouts it learns from."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from artifacts.errors import BadInputError
from artifacts.identity import settings_of, sha256_json
from artifacts.refs import Checkpoint, Ref
from artifacts.store import Store
from flows.algorithm import algorithm
from flows.recipe_diff import differences
from flows.recipes import Recipe, load_recipe, overridden, validate
from stages.training.launch import Weights, state_beside

OWN = "own"
"""Stands for the settings that the run itself was made with."""
LEARNING = ("grade", "pack", "finetune")
"""Sections of a recipe that a comparison looks at."""
_DIGITS = 12
_SLUG_CHARACTERS = 200
"""A folder's name has room for 255, and the digits come after."""


@dataclass(frozen=True)
class Candidate:
    """A recipe as it is tried on a run's rollouts.

    Attributes:
        name: What the person called it.
        recipe: The run's recipe with what the candidate brings.
        taken: `sections`: grade, pack and finetune as the candidate has them; `algorithm`: see `flows.algorithm`.
        mixed_only: Whether groups are left out whose completions are equally right: what dynamic sampling, which the
            candidate has and the run has not, would have sampled others in place of.
    """

    name: str
    recipe: Recipe
    taken: Literal["sections", "algorithm"]
    mixed_only: bool

    def folder(self, rollouts: Ref[Any]) -> str:
        """Name of the folder that its artifacts go to: other settings, or other rollouts, have another."""
        told = {part: settings_of(getattr(self.recipe, part)) for part in LEARNING}
        digest = sha256_json({**told, "mixed_only": self.mixed_only, "rollouts": rollouts.digest})
        return f"{_slug(self.name)}-{digest[:_DIGITS]}"

    def laid_over(self, own: Recipe) -> dict[str, Any]:
        """The settings in which it differs from the run, with its values."""
        changes = {found.setting: found.values.get("b") for found in differences(own, self.recipe)}
        learning = {name: value for name, value in changes.items() if name.partition(".")[0] in LEARNING}
        return learning | ({"groups of equal accuracy": "left out"} if self.mixed_only else {})


def candidates(own: Recipe, names: Sequence[str], overrides: Sequence[str]) -> list[Candidate]:
    """Fits recipes to a run.

    A recipe for the run's model and completion length is a variation of the run's own: its `grade`, `pack` and
    `finetune` are taken as they stand. Any other was written for another scale, at which its learning rate, its number
    of updates or its lengths say nothing about this run: its algorithm is taken.

    Args:
        own: The run's recipe.
        names: Of recipes, paths of TOML files, or `OWN`.
        overrides: Changes of every one, behind all else.

    Raises:
        BadInputError: There is no such recipe, or its settings contradict the run's, as a temperature would.
    """
    return [_candidate(name, own, overrides) for name in dict.fromkeys(names)]


def starting_weights(
    recipe: Recipe, own: Recipe, policy: Ref[Checkpoint], base: Ref[Checkpoint], store: Store
) -> Weights:
    """What a candidate trains on from: the weights that were sampled, and the state beside them where it can use it.

    A candidate that carries no state begins afresh, as it would in a run of its own; one that trains other parameters
    than the run finds neither their moments nor, with LoRA, the parameters themselves in the run's state.

    Args:
        base: The model that a KL term measures from.
    """
    usable = recipe.finetune.carry_state and recipe.finetune.trainable == own.finetune.trainable
    return Weights(policy, state_beside(policy, store) if usable else None, reference=base)


def page_folder(tried: Sequence[Candidate], rollouts: Ref[Any]) -> str:
    """Name of the folder of a comparison's page."""
    names = "-".join(_slug(candidate.name) for candidate in tried)[:80]
    return f"{names}-{sha256_json([candidate.folder(rollouts) for candidate in tried])[:_DIGITS]}"


def _candidate(name: str, own: Recipe, overrides: Sequence[str]) -> Candidate:
    named = own if name == OWN else load_recipe(name)
    settings = own.model_dump(mode="json")
    whole = _scale(named) == _scale(own)
    if whole:
        settings |= {part: getattr(named, part).model_dump(mode="json") for part in LEARNING}
    else:
        for setting, value in algorithm(own, named).items():
            if setting != "sample.resample":  # nothing is sampled: what it would have left out is `mixed_only`
                section, key = setting.split(".")
                settings[section][key] = value
    recipe = validate(Recipe, overridden(settings, overrides), name)
    _check_buffer(name, recipe, own)
    resamples = named.sample.resample is not None or recipe.sample.resample is not None
    return Candidate(
        name, recipe, "sections" if whole else "algorithm", mixed_only=resamples and own.sample.resample is None
    )


def _scale(recipe: Recipe) -> tuple[dict[str, Any], int]:
    """Model, whatever its seed, and longest completion."""
    return recipe.model.model_dump(mode="json", exclude={"seed"}), recipe.sample.sampling.max_tokens


def _check_buffer(name: str, recipe: Recipe, own: Recipe) -> None:
    """An overlong buffer that begins before a completion does makes the reward a function of the length.

    Raises:
        BadInputError: The candidate has one, and not because the run has it.
    """
    buffer, longest = recipe.grade.reward.overlong_buffer_tokens, own.sample.sampling.max_tokens
    if buffer is not None and buffer >= longest and recipe.grade.reward != own.grade.reward:
        raise BadInputError(
            name,
            f"grade.reward.overlong_buffer_tokens is {buffer}, but the run's completions have at most {longest} tokens",
            "a buffer shorter than the longest completion",
            f"for instance --set grade.reward.overlong_buffer_tokens={max(1, longest // 5)}",
        )


def _slug(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name.rpartition("/")[2].removesuffix(".toml"))
    return plain[:_SLUG_CHARACTERS] or "recipe"
