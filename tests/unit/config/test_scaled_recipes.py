"""The scale-down rule: every recipe survives it, and what makes the algorithm is left as it was."""

from pathlib import Path

import pytest

from flows.config.recipe_diff import differences
from flows.config.recipes import load_recipe, recipe_names
from stages.models.merging.config import MergedModel
from tests.support.scaled_recipes import in_order, needed_runs, scaled_settings, write_sums

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
    "phases",
    *(f"{name}.puzzles" for name in ("evaluate", "final")),
    *(f"{name}.sampled.{key}" for name in ("evaluate", "final") for key in ("samples_per_prompt", "max_tokens")),
}


@pytest.mark.parametrize("name", recipe_names())
def test_a_scaled_recipe_is_valid_small_and_the_same_algorithm(name: str) -> None:
    full = load_recipe(name)
    settings = scaled_settings(full)
    assert max(map(len, settings)) < 4096, "the longest value that `--set` takes"
    small = load_recipe(name, settings)
    assert small.iterations == (2 if full.phases else 1)
    assert small.model.source == (
        "scratch" if full.model.source in ("scratch", "hub", "gguf_package") else full.model.source
    )
    assert small.puzzles.total < 128
    for part in small.parts:
        assert part.sample.stride * part.sample.sampling.samples_per_prompt * part.sample.sampling.max_tokens < 25_000
        row = part.pack.row_tokens
        assert row == "auto" or row - part.sample.sampling.max_tokens >= 400, "a prompt needs room"
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
    assert load_recipe("answers_only", scaled_settings(load_recipe("answers_only"))).sample.sampling.max_tokens == 12


OWN_PUZZLES = [
    name for name in recipe_names() if load_recipe(name).model.source != "hub" and name != "maths_small"
]  # that one learns from reasoning-gym, an optional package


@pytest.mark.parametrize("name", OWN_PUZZLES)
def test_a_recipe_with_small_puzzles_keeps_them_and_the_texts_of_its_warm_start(name: str) -> None:
    full = load_recipe(name)
    small = load_recipe(name, scaled_settings(full))
    assert small.puzzles.puzzle == full.puzzles.puzzle
    changed = {one.setting for one in differences(full, small)}
    assert {setting for setting in changed if setting.startswith("puzzles.")} == {
        f"puzzles.{split}" for split in ("train", "val", "test")
    }
    if full.warm_start and small.warm_start:
        assert (small.warm_start.text, small.warm_start.style) == (full.warm_start.text, full.warm_start.style)
    assert (small.warm_start is None) == (full.model.source in ("checkpoint", "merged"))


def test_among_them_are_concepts_mixtures_grids_and_derivations() -> None:
    """Else the test above would say nothing of them."""
    names = {"promptcot", "tinyr1", "tinyr1_mixed", "tinyr1_zebra", "deduce"}
    assert names <= set(OWN_PUZZLES)


def test_a_merge_takes_the_last_iterations_of_runs_that_the_benchmark_makes_first() -> None:
    full = load_recipe("tinyr1")
    small = load_recipe("tinyr1", scaled_settings(full)).model
    assert isinstance(small, MergedModel) and isinstance(full.model, MergedModel)
    assert (small.method, small.models, small.base) == (full.model.method, ("tinyr1_zebra@1",), "tinyr1_clue@1")
    assert needed_runs(full) == ["tinyr1_zebra", "tinyr1_clue"]
    assert in_order(["answers_only", "tinyr1", "tinyr1_base"]) == [
        "answers_only", "tinyr1_base", "tinyr1_zebra", "tinyr1_clue", "tinyr1",
    ]  # fmt: skip
    assert sorted(in_order(recipe_names())) == recipe_names()


@pytest.mark.parametrize("name", ["fastcurl", "deepscaler", "difficulty_aware"])
def test_of_a_staged_recipe_two_phases_of_one_iteration_are_left(name: str) -> None:
    full = load_recipe(name)
    small = load_recipe(name, scaled_settings(full))
    first, second = small.phases
    assert (first.iterations, first.until, second.is_open) == (1, None, True)
    for phase, whole in zip(small.phases, full.phases, strict=False):
        assert (phase.name, phase.reference, phase.optimizer) == (whole.name, whole.reference, whole.optimizer)
        assert phase.sample.where == whole.sample.where
        assert phase.grade == whole.grade and phase.finetune == whole.finetune
    assert first.sample.sampling.max_tokens < second.sample.sampling.max_tokens == 64


def test_there_are_no_more_steps_than_puzzles() -> None:
    full = load_recipe("dapo", ["pack.updates=24"])
    small = load_recipe("dapo", ["pack.updates=24", *scaled_settings(full)])
    assert (small.sample.puzzles_per_iteration, small.pack.updates) == (16, 16)  # 512 and 24
