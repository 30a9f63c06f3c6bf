"""The rule by which published algorithms are laid over a recipe for another task."""

import pytest

from flows.compare.algorithm import TAKEN, algorithm
from flows.config.recipe_diff import differences
from flows.config.recipes import load_recipe, recipe_names
from tests.support.scaled_recipes import settings_of

BASE = load_recipe("answers_only")


@pytest.mark.parametrize("name", recipe_names())
def test_only_the_algorithm_changes(name: str) -> None:
    laid = load_recipe("answers_only", settings_of(BASE, name))
    for difference in differences(BASE, laid):
        assert difference.setting.startswith((*TAKEN, "sample.resample"))


def test_what_dapo_and_dr_grpo_bring() -> None:
    dapo = load_recipe("answers_only", settings_of(BASE, "dapo"))
    assert (dapo.finetune.loss.clip_high, dapo.grade.advantage.scale) == (0.28, "sample_std")
    assert dapo.sample.resample is not None
    assert dapo.sample.resample.max_rounds == 2
    dr_grpo = load_recipe("answers_only", settings_of(BASE, "dr_grpo"))
    assert (dr_grpo.finetune.loss.aggregation, dr_grpo.finetune.loss.constant_tokens) == ("constant", 12)
    assert dr_grpo.pack.uniform_groups == "kept"


def test_a_loss_has_the_temperature_that_its_algorithm_gives_it() -> None:
    """That at which the base recipe samples, or, with Open-RS, 1 whatever that is."""
    warm = load_recipe("answers_only", ["sample.sampling.temperature=0.7", "finetune.loss.temperature=0.7"])
    own = load_recipe("answers_only", settings_of(warm, "open_rs1")).finetune.loss
    assert (own.temperature, own.temperature_of, own.aggregation) == (1.0, "loss", "group_mean")
    dapo = algorithm(warm, load_recipe("dapo"))["finetune.loss"]
    assert (dapo["temperature"], dapo["temperature_of"]) == (0.7, "sampler")
    of_open_rs = algorithm(load_recipe("open_rs1"), load_recipe("grpo"))["finetune.loss"]
    assert (of_open_rs["temperature"], of_open_rs["temperature_of"]) == (0.7, "sampler")


def test_grpo_brings_its_reference_and_keeps_the_tasks_learning_rate() -> None:
    grpo = load_recipe("answers_only", settings_of(BASE, "grpo"))
    assert (grpo.finetune.reference, grpo.finetune.loss.kl_coef) == ("base", 0.04)
    assert grpo.finetune.learning_rate == BASE.finetune.learning_rate
