"""Builds the candidates of a comparison: recipes, each adapted to the run on whose rollouts it trains."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from artifacts.errors import BadInputError
from artifacts.identity import sha256_json
from artifacts.refs import Checkpoint, OptimizerState, Ref
from artifacts.store.store import Store
from flows.checks.compared import check_buffer, refuse_other_signals
from flows.checks.learning import check_learns
from flows.checks.soundness import check_rollouts_fit
from flows.compare.algorithm import algorithm
from flows.config.recipe import Recipe
from flows.config.recipe_diff import differences
from flows.config.recipes import load_recipe, overridden, validate, with_functions
from flows.lookup.history import RunRecord
from stages import finetune, grade, pack
from stages.training.launch import Weights
from stages.training.saved_state import state_beside

OWN = "own"
"""The name of the candidate with the run's own settings."""
LEARNING = {"grade": grade, "pack": pack, "finetune": finetune}
"""The sections of a recipe that a comparison uses, and the modules of their stages."""
_DIGITS = 12
_SLUG_CHARACTERS = 180
"""A part of a key has at most 200 characters, including the digits of the digest at its end."""


@dataclass(frozen=True)
class ComparedRecipe:
    """A recipe that is tried on a run's rollouts.

    Attributes:
        name: The name that was given on the command line.
        recipe: The run's recipe with the candidate's changes.
        taken: `sections` if the candidate replaces grade, pack and finetune of the run; `algorithm` if it replaces only
            the settings of `flows.compare.algorithm`.
        mixed_only: Whether groups whose completions are equally accurate are left out. The candidate's dynamic sampling
            would have replaced them; the run kept them because it has no dynamic sampling.
    """

    name: str
    recipe: Recipe
    taken: Literal["sections", "algorithm"]
    mixed_only: bool

    def folder(self, rollouts: Ref[Any]) -> str:
        """Returns the name of its artifacts' folder, with a digest of settings, stages' revisions and rollouts."""
        settings = {
            part: [stage.REVISION, getattr(self.recipe, part).model_dump(mode="json")]
            for part, stage in LEARNING.items()
        }
        digest = sha256_json({**settings, "mixed_only": self.mixed_only, "rollouts": rollouts.digest})
        return f"{_slug(self.name)}-{digest[:_DIGITS]}"

    def laid_over(self, own: Recipe) -> dict[str, Any]:
        """Returns the settings in which it differs from the run, each with the candidate's value."""
        changes = {item.setting: item.values.get("b") for item in differences(own, self.recipe)}
        learning = {name: value for name, value in changes.items() if name.partition(".")[0] in LEARNING}
        return learning | ({"groups of equal accuracy": "left out"} if self.mixed_only else {})


def candidates(own: Recipe, names: Sequence[str], overrides: Sequence[str]) -> list[ComparedRecipe]:
    """Returns the candidates of a comparison.

    A recipe with the run's model and completion length is a variation of the run's recipe. It replaces the sections
    `grade`, `pack` and `finetune`. Any other recipe was written for another scale; its learning rate, number of updates
    and lengths do not apply to this run. It replaces only the settings of its algorithm.

    Args:
        own: The run's recipe.
        names: Names of recipes, paths of TOML files, or `OWN`.
        overrides: Changes (`section.key=value`) that are applied to each candidate last.

    Raises:
        BadInputError: A recipe does not exist, or its settings (a temperature, for instance) contradict the run's.
    """
    return [_candidate(name, own, overrides) for name in dict.fromkeys(names)]


def starting_weights(
    recipe: Recipe, record: RunRecord, number: int, policy: Ref[Checkpoint], base: Ref[Checkpoint], store: Store
) -> Weights:
    """Returns the weights that sampled the rollouts, with the run's optimizer state if the candidate can use it.

    A candidate with `carry_state = false` starts with a new state, as in a run of its own. So does a candidate that
    trains other parameters than the run: the run's state lacks their moments and, with LoRA, the parameters themselves.

    Args:
        recipe: The candidate's recipe.
        record: The run.
        number: Number of the iteration whose rollouts are used.
        policy: The weights that sampled the rollouts.
        base: The reference of a KL term.
        store: The run's store.

    Raises:
        BadInputError: The run has not published the state yet.
    """
    own = record.recipe_at(number)
    usable = recipe.finetune.carry_state and recipe.finetune.trainable == own.finetune.trainable
    return Weights(policy, _state_of_run(record, number, policy, store) if usable else None, reference=base)


def page_folder(tried: Sequence[ComparedRecipe], rollouts: Ref[Any]) -> str:
    """Returns the name of the folder for a comparison's page."""
    names = "-".join(_slug(candidate.name) for candidate in tried)[:80]
    return f"{names}-{sha256_json([candidate.folder(rollouts) for candidate in tried])[:_DIGITS]}"


def _state_of_run(record: RunRecord, number: int, policy: Ref[Checkpoint], store: Store) -> Ref[OptimizerState] | None:
    """Returns the optimizer state from which the run trains an iteration; None if it begins with a new one.

    Before the training, that is the state beside the run's own checkpoint, unless a phase has begun with a new one
    after it. The first weights of the run have none, even if they are another run's checkpoint.
    """
    manifests = {item.number: item.manifests for item in record.iterations}
    trained = manifests.get(number, {}).get("finetune")
    if trained is not None and trained.inputs.get("weights") == policy.as_json():
        state = trained.inputs.get("optimizer_state")
        return Ref[OptimizerState](**state) if state else None
    made_in = record.layout.iteration_of(policy.key)
    if made_in is None:
        return None
    for n in range(made_in, number):
        transition = manifests.get(n, {}).get("advance")
        if transition is not None and transition.facts["ended"]:
            begun = record.typed_recipe().phases[transition.facts["phase"]]  # facts count phases from 1
            if begun.optimizer == "fresh":
                return None
    return state_beside(policy, store)


def _candidate(name: str, own: Recipe, overrides: Sequence[str]) -> ComparedRecipe:
    source = own if name == OWN else load_recipe(name)
    settings = own.model_dump(mode="json")
    same_scale = _scale(source) == _scale(own)
    taken, *others = [_taken(own, part, same_scale=same_scale) for part in ([own] if name == OWN else source.parts)]
    if any(other != taken for other in others):
        raise BadInputError(
            f"--recipes {name}", "phases that differ in what a comparison takes of a recipe", "a recipe without them",
            "name a file with the settings of one phase",
        )  # fmt: skip
    for section, values in taken.items():
        settings[section] |= values
    refuse_other_signals(name, source, own)
    recipe = validate(Recipe, overridden(settings, overrides), name)
    if any(
        one is not None and one.sha256 is None for one in (recipe.finetune.loss.function, recipe.grade.reward.function)
    ):
        recipe = with_functions(recipe, Path())  # named by `overrides`, so below the working folder
    recipe = recipe.with_rows_of(own.model_dump(mode="json"))  # so that only the algorithm differs
    check_learns(recipe)
    check_buffer(name, recipe, own)
    resamples = source.sample.resample is not None or recipe.sample.resample is not None
    check_rollouts_fit(recipe, drops_groups=resamples)
    return ComparedRecipe(
        name, recipe, "sections" if same_scale else "algorithm", mixed_only=resamples and own.sample.resample is None
    )


def _taken(own: Recipe, source: Recipe, *, same_scale: bool) -> dict[str, dict[str, Any]]:
    """Returns the settings that a comparison takes of a recipe, by section."""
    if same_scale:
        return {section: getattr(source, section).model_dump(mode="json") for section in LEARNING}
    sections: dict[str, dict[str, Any]] = {}
    for setting, value in algorithm(own, source).items():
        section, key = setting.split(".")
        sections.setdefault(section, {})[key] = value
    return sections


def _scale(recipe: Recipe) -> tuple[dict[str, Any], int]:
    """Returns the scale of a recipe: its model without the seed, and the length of its longest completion."""
    return recipe.model.model_dump(mode="json", exclude={"seed"}), recipe.sample.sampling.max_tokens


def _slug(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name.rpartition("/")[2].removesuffix(".toml"))
    return plain[:_SLUG_CHARACTERS] or "recipe"
