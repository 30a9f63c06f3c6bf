"""Any recipe as one small iteration, to check on two cores that it runs, not that it learns.

* The model (made from scratch), the kind of puzzles and the warm start (with more passes) are those of
  `tests/support/tiny.toml`; a scratch model without a warm start has no signal. A recipe of mathematics learns from
  sums that `write_sums` writes.
* The model itself replaces a teacher of texts or of tokens.
* Iterations, puzzles, group sizes and rounds of dynamic sampling are cut to a limit. There are at most as many
  optimizer steps as puzzles, and no iterations with a frozen policy.
* All lengths of completions are multiplied by one factor, which makes the longest completion 64 tokens; a row keeps
  room for a prompt.
* Everything else, which is the algorithm, stays: reward, advantage, loss, optimizer, schedules, reference, correction,
  early stop, graders, selection of texts.
* Only the first stage of a staged recipe is left. The scaled model replaces all models that are rated.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

from flows.compare.algorithm import algorithm
from flows.config.recipe import Recipe
from flows.config.recipes import load_recipe
from stages.environments.generate import MathsConfig

TINY = Path(__file__).with_name("tiny.toml")
PUZZLES, GROUP, ROUNDS, HELD_OUT, ANSWERS, TEXT_PUZZLES = 16, 8, 2, 8, 2, 48
WARM_START_EPOCHS = 16  # until answers have their form: else no answer is right, and binary rewards have no signal
COMPLETION_TOKENS, EVALUATED_TOKENS, LEAST_ROW_TOKENS = 64, 32, 512


def scaled_settings(recipe: Recipe, sums: str = "sums.jsonl") -> list[str]:
    """Returns the changes that scale a recipe down, as `--set` takes them.

    Args:
        recipe: The recipe.
        sums: The file of `write_sums`, from which a recipe of mathematics learns.
    """
    tiny = tomllib.loads(TINY.read_text())
    if isinstance(recipe.puzzles.puzzle, MathsConfig):
        tiny["puzzles"]["puzzle"] = {**recipe.puzzles.puzzle.model_dump(exclude_unset=True), "path": sums}
    settings: dict[str, Any] = {
        "iterations": 1,
        "model": tiny["model"],
        "puzzles": {**tiny["puzzles"], "val": HELD_OUT, "test": HELD_OUT},
        "warm_start": {**tiny["warm_start"], "epochs": WARM_START_EPOCHS},
        **_scaled_sections(recipe),
    }
    if recipe.stages:
        stage = recipe.stages[0].model_dump(mode="json", exclude={"iterations", "until"})
        for name, value in _scaled_sections(recipe.in_stage(0)).items():
            _set(stage, name.split("."), value)
        settings["stages"] = [stage]
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


def _scaled_sections(recipe: Recipe) -> dict[str, Any]:
    """The changes to sections that a stage may have."""
    sampling, reward = recipe.sample.sampling, recipe.grade.reward
    factor = min(1.0, COMPLETION_TOKENS / sampling.max_tokens)
    puzzles = min(PUZZLES, recipe.sample.puzzles_per_iteration)
    rounds = min(ROUNDS, recipe.sample.resample.max_rounds) if recipe.sample.resample else 0
    settings: dict[str, Any] = {
        "sample.puzzles_per_iteration": puzzles,
        "sample.sampling.samples_per_prompt": min(GROUP, sampling.samples_per_prompt),
        "sample.sampling.max_tokens": _scaled(sampling.max_tokens, factor),
        "pack.row_tokens": max(LEAST_ROW_TOKENS, _scaled(recipe.pack.row_size, factor)),
        "pack.updates": min(puzzles, recipe.pack.updates),
    }
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
        table = table[key]
    table[path[-1]] = value


def write_sums(path: Path) -> None:
    """Writes small sums with the columns `problem` and `answer`, more than a scaled recipe takes."""
    rows = [{"problem": f"What is {a} + {b}?", "answer": f"{a + b}"} for a in range(12) for b in range(12)]
    path.write_text("\n".join(map(json.dumps, rows)))


def settings_of(base: Recipe, name: str) -> list[str]:
    """The algorithm of a published recipe at the base recipe's scale, as `--set` takes it."""
    return [f"{setting}={as_toml(value)}" for setting, value in algorithm(base, load_recipe(name)).items()]


def as_toml(value: Any) -> str:
    """Returns a value as `--set` takes it; None becomes the string "null"."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {as_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return json.dumps("null" if value is None else value)


def _scaled(length: int, factor: float) -> int:
    return max(1, round(length * factor))
