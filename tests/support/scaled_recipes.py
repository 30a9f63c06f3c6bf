"""Any recipe as one small iteration, to check on two cores that it runs, not that it learns.

* A model that is fetched becomes a small one from scratch, that of `tests/support/tiny.toml`; so does one from scratch.
  A model that is a checkpoint of another run, or merged from several, stays one. The benchmark first makes these runs,
  scaled down themselves (`needed_runs`); a merge takes them after their iteration, whatever was promoted.
* A recipe of mathematics from a file, or of reasoning-gym, which is an optional package, learns from sums that
  `write_sums` writes. Other recipes for a model of the hub learn from the board of `tiny.toml`. All others keep their
  puzzles: board, environments of a mixture, concepts. The numbers of puzzles are cut.
* The warm start is that of `tiny.toml` with more passes, also where the recipe has none: without it, a scratch model
  has no signal. It teaches the texts that the recipe's own one teaches. A checkpoint or a merged model gets none.
* The model itself replaces a teacher of texts or of tokens, and all models that are rated.
* Puzzles, group sizes and rounds of dynamic sampling are cut to a limit, in evaluations and in the sampling of texts,
  too. There are at most as many optimizer steps as puzzles, and no iterations with a frozen policy. A recipe without
  iterations has one.
* Of a recipe with phases the first two phases are left, with one iteration each and the transition between them.
* If completions in training may be longer than 128 tokens, all lengths are multiplied by one factor, which makes the
  longest completion 64 tokens. A row has at least 512 tokens, so that it has room for a prompt. Answers in evaluations
  have at most 32 tokens, sampled texts at most 64.
* Everything else, which is the algorithm, stays: reward, advantage, loss, optimizer, schedules, reference, correction,
  early stop, graders, selection of texts.
"""

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flows.compare.algorithm import algorithm
from flows.config.recipe import Recipe
from flows.config.recipes import load_recipe
from stages.curriculum.overlay import SECTIONS
from stages.environments.generate import MathsConfig
from stages.environments.reasoning_gym.config import ReasoningGymConfig
from stages.models.merging.config import MergedModel
from stages.models.source import HubModel, StoredModel

TINY = Path(__file__).with_name("tiny.toml")
PUZZLES, GROUP, ROUNDS, HELD_OUT, ANSWERS, TEXT_PUZZLES, PHASES = 16, 8, 2, 8, 2, 48, 2
WARM_START_EPOCHS = 16  # until answers have their form: else no answer is right, and binary rewards have no signal
SHORT_TOKENS, COMPLETION_TOKENS, EVALUATED_TOKENS, LEAST_ROW_TOKENS = 128, 64, 32, 512


def scaled_settings(recipe: Recipe, sums: str = "sums.jsonl") -> list[str]:
    """Returns the changes that scale a recipe down, as `--set` takes them.

    Args:
        recipe: The recipe.
        sums: The file of `write_sums`, from which a recipe of mathematics learns.
    """
    factor = _length_factor(recipe)
    settings: dict[str, Any] = {
        **_scaled_source(recipe, tomllib.loads(TINY.read_text()), sums),
        "iterations": 1,
        **_scaled_sections(recipe, factor),
    }
    if recipe.phases:
        settings["iterations"] = PHASES
        settings["phases"] = [_scaled_phase(recipe, number, factor) for number in range(PHASES)]
    if recipe.rate is not None:
        sampled = recipe.rate.sampling
        settings["rate.models"] = [{"name": model.name} for model in recipe.rate.models]
        settings["rate.sampling.samples_per_prompt"] = min(GROUP, sampled.samples_per_prompt)
        settings["rate.sampling.max_tokens"] = min(EVALUATED_TOKENS, sampled.max_tokens)
    if recipe.distil is not None:  # the student samples for itself; texts of some right answers are enough
        drawn = recipe.distil.sample.sampling
        settings["distil.teacher"] = "student"
        settings["distil.sample.puzzles_per_iteration"] = TEXT_PUZZLES
        settings["distil.sample.sampling.samples_per_prompt"] = GROUP
        settings["distil.sample.sampling.max_tokens"] = min(COMPLETION_TOKENS, drawn.max_tokens)
        settings["distil.sft.row_tokens"] = LEAST_ROW_TOKENS
    if recipe.teach is not None:  # there is no other model with the tokenizer of this one
        settings["teach.teacher"], settings["teach.hint"] = "policy", "derivation"
    if recipe.value is not None:
        settings["value.updates"] = min(PUZZLES, recipe.value.updates)
        settings["finetune.frozen_iterations"] = 0  # the one iteration trains the policy, too
    for name, config in (("evaluate", recipe.evaluate), ("final", recipe.final)):
        settings[f"{name}.puzzles"] = min(HELD_OUT, config.puzzles)
        settings[f"{name}.sampled.samples_per_prompt"] = min(ANSWERS, config.sampled.samples_per_prompt)
        settings[f"{name}.sampled.max_tokens"] = min(EVALUATED_TOKENS, config.sampled.max_tokens)
    return [f"{key}={as_toml(value)}" for key, value in settings.items()]


def needed_runs(recipe: Recipe) -> list[str]:
    """Returns the names of the runs whose checkpoints a recipe starts from; they must be in the same store."""
    match recipe.model:
        case StoredModel(name=name):
            return [name]
        case MergedModel(models=models, base=base):
            return [*models, *([base] if base else [])]
        case _:
            return []


def in_order(names: Iterable[str]) -> list[str]:
    """Returns the names with those of the runs that they start from, each after those that it needs."""
    ordered: list[str] = []
    for name in names:
        needed = needed_runs(load_recipe(name))
        ordered += [one for one in [*in_order(needed), name] if one not in ordered]
    return ordered


def _scaled_source(recipe: Recipe, tiny: dict[str, Any], sums: str) -> dict[str, Any]:
    """The changes to model, puzzles and warm start."""
    sizes = {"train": tiny["puzzles"]["train"], "val": HELD_OUT, "test": HELD_OUT}
    settings: dict[str, Any] = {f"puzzles.{split}": size for split, size in sizes.items()}
    if isinstance(recipe.puzzles.puzzle, MathsConfig):
        settings["puzzles.puzzle.path"] = sums
    elif isinstance(recipe.puzzles.puzzle, ReasoningGymConfig):
        settings["puzzles"] = {**sizes, "puzzle": {"environment": "maths", "path": sums, "question": "problem"}}
    elif isinstance(recipe.model, HubModel):
        settings["puzzles"] = {**sizes, "puzzle": tiny["puzzles"]["puzzle"]}
    if isinstance(recipe.model, MergedModel):
        settings["model.models"] = [f"{name}@1" for name in recipe.model.models]
        if recipe.model.base:
            settings["model.base"] = f"{recipe.model.base}@1"
    elif not isinstance(recipe.model, StoredModel):
        texts = recipe.warm_start.model_dump(include={"text", "style"}) if recipe.warm_start else {}
        settings["model"] = tiny["model"]
        settings["warm_start"] = {**tiny["warm_start"], **texts, "epochs": WARM_START_EPOCHS}
    return settings


def _length_factor(recipe: Recipe) -> float:
    """The factor of all lengths of completions, by the longest completion of the recipe and of the phases left."""
    parts = [recipe, *(recipe.in_phase(number) for number in range(min(PHASES, len(recipe.phases))))]
    longest = max(part.sample.sampling.max_tokens for part in parts)
    return 1.0 if longest <= SHORT_TOKENS else COMPLETION_TOKENS / longest


def _scaled_phase(recipe: Recipe, number: int, factor: float) -> dict[str, Any]:
    """A phase of one iteration, as its changes to the recipe; the last one that is left ends with the run."""
    base = recipe.model_dump(mode="json", include=set(SECTIONS))
    whole = recipe.phases[number].model_dump(mode="json", exclude={"iterations", "until"})
    phase = _changes(base, whole)
    for name, value in _scaled_sections(recipe.in_phase(number), factor).items():
        _set(phase, name.split("."), value)
    return phase if number == PHASES - 1 else {**phase, "iterations": 1}


def _changes(base: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a table that differ from those of a base; `--set` takes no long values."""
    different = {name: value for name, value in table.items() if name not in base or value != base[name]}
    return {
        name: _changes(base[name], value) if isinstance(value, dict) and isinstance(base.get(name), dict) else value
        for name, value in different.items()
    }


def _scaled_sections(recipe: Recipe, factor: float) -> dict[str, Any]:
    """The changes to sections that a phase may have."""
    sampling, reward = recipe.sample.sampling, recipe.grade.reward
    puzzles = min(PUZZLES, recipe.sample.puzzles_per_iteration)
    rounds = min(ROUNDS, recipe.sample.resample.max_rounds) if recipe.sample.resample else 0
    settings: dict[str, Any] = {
        "sample.puzzles_per_iteration": puzzles,
        "sample.sampling.samples_per_prompt": min(GROUP, sampling.samples_per_prompt),
        "sample.sampling.max_tokens": _scaled(sampling.max_tokens, factor),
        "pack.updates": min(puzzles, recipe.pack.updates),
    }
    if recipe.pack.row_tokens != "auto":
        settings["pack.row_tokens"] = max(LEAST_ROW_TOKENS, _scaled(recipe.pack.row_size, factor))
    if rounds:
        settings["sample.resample.max_rounds"] = rounds
    if reward.overlong_buffer_tokens is not None:
        settings["grade.reward.overlong_buffer_tokens"] = _scaled(reward.overlong_buffer_tokens, factor)
    if reward.length_cosine is not None and reward.length_cosine.limit is not None:
        settings["grade.reward.length_cosine.limit"] = _scaled(reward.length_cosine.limit, factor)
    if recipe.finetune.loss.constant_tokens is not None:
        settings["finetune.loss.constant_tokens"] = _scaled(recipe.finetune.loss.constant_tokens, factor)
    return settings


def _set(table: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        table = table.setdefault(key, {})
    table[path[-1]] = value


def write_sums(path: Path) -> None:
    """Writes small sums with the columns `problem` and `answer`, more than a scaled recipe takes."""
    rows = [{"problem": f"What is {a} + {b}?", "answer": f"{a + b}"} for a in range(12) for b in range(12)]
    path.write_text("\n".join(map(json.dumps, rows)))


def settings_of(base: Recipe, name: str) -> list[str]:
    """The algorithm of a published recipe at the base recipe's scale, as `--set` takes it."""
    published = load_recipe(name)
    settings, again = algorithm(base, published), published.sample.resample
    settings["sample.resample"] = again and {
        "max_rounds": min(ROUNDS, again.max_rounds), "grader": base.grade.grader,
    }  # fmt: skip
    return [f"{setting}={as_toml(value)}" for setting, value in settings.items()]


def as_toml(value: Any) -> str:
    """Returns a value as `--set` takes it; None becomes the string "null"."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {as_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return json.dumps("null" if value is None else value)


def _scaled(length: int, factor: float) -> int:
    return max(1, round(length * factor))
