"""The scale-down rule: every recipe survives it, and what makes the algorithm is left as it was."""

from pathlib import Path

import pytest

from flows.config.recipe_diff import differences
from flows.config.recipes import load_recipe, recipe_names
from tests.support.scaled_recipes import scaled_settings, write_sums

SCALED = {
    "iterations",
    "sample.puzzles_per_iteration",
    "sample.sampling.samples_per_prompt",
    "sample.sampling.max_tokens",
    "sample.resample.max_rounds",
    "grade.reward.overlong_buffer_tokens",
    "grade.reward.length_cosine.limit",
    "distil.teacher",
    "distil.sample.puzzles_per_iteration",
    "distil.sample.sampling.samples_per_prompt",
    "distil.sample.sampling.max_tokens",
    "distil.sft.row_tokens",
    "teach.teacher",
    "teach.hint",
    "pack.row_tokens",
    "pack.updates",
    "finetune.loss.constant_tokens",
    "value.updates",
    "finetune.frozen_iterations",
    "rate.models",
    "rate.sampling.samples_per_prompt",
    "rate.sampling.max_tokens",
    "stages",
    *(f"{name}.puzzles" for name in ("evaluate", "final")),
    *(f"{name}.sampled.{key}" for name in ("evaluate", "final") for key in ("samples_per_prompt", "max_tokens")),
}


@pytest.mark.parametrize("name", recipe_names())
def test_a_scaled_recipe_is_valid_small_and_the_same_algorithm(name: str) -> None:
    full = load_recipe(name)
    small = load_recipe(name, scaled_settings(full))
    assert small.iterations == 1
    assert small.model.source == "scratch"
    assert small.puzzles.total < 128
    for part in small.parts:
        assert part.sample.stride * part.sample.sampling.samples_per_prompt * part.sample.sampling.max_tokens < 25_000
        assert part.pack.row_size >= 8 * part.sample.sampling.max_tokens
    changed = {one.setting for one in differences(full, small)}
    assert {setting for setting in changed if not setting.startswith(("model.", "puzzles.", "warm_start"))} <= SCALED


@pytest.mark.parametrize("name", ["open_rs1", "deepscaler", "dr_grpo"])
def test_a_scaled_recipe_of_mathematics_stays_one(name: str, tmp_path: Path) -> None:
    write_sums(sums := tmp_path / "sums.jsonl")
    full = load_recipe(name)
    small = load_recipe(name, scaled_settings(full, str(sums))).puzzles
    assert small.puzzle == full.puzzles.puzzle.model_copy(update={"path": str(sums)})
    assert len(sums.read_text().splitlines()) >= small.total


def test_lengths_keep_their_proportions() -> None:
    dapo = load_recipe("dapo", scaled_settings(load_recipe("dapo")))
    assert (dapo.sample.sampling.max_tokens, dapo.grade.reward.overlong_buffer_tokens) == (64, 13)  # 20480 to 4096
    dr_grpo = load_recipe("dr_grpo", scaled_settings(load_recipe("dr_grpo")))
    assert (dr_grpo.sample.sampling.max_tokens, dr_grpo.finetune.loss.constant_tokens) == (64, 64)
    assert dr_grpo.pack.updates == 8
    assert load_recipe("quickstart", scaled_settings(load_recipe("quickstart"))).sample.sampling.max_tokens == 12


def test_of_a_staged_recipe_the_first_stage_is_left() -> None:
    full = load_recipe("fastcurl")
    small = load_recipe("fastcurl", scaled_settings(full))
    (stage,) = small.stages
    assert (stage.name, stage.sample.where) == (full.stages[0].name, full.stages[0].sample.where)
    assert (stage.sample.sampling.max_tokens, stage.sample.sampling.samples_per_prompt, stage.pack.updates) == (
        64,
        8,
        2,
    )


def test_there_are_no_more_steps_than_puzzles() -> None:
    full = load_recipe("dapo", ["pack.updates=24"])
    small = load_recipe("dapo", ["pack.updates=24", *scaled_settings(full)])
    assert (small.sample.puzzles_per_iteration, small.pack.updates) == (16, 16)  # 512 and 24
