"""What the recipe of a new run names is looked up before the run begins."""

import pytest

from artifacts.errors import BadInputError
from artifacts.layout import RunLayout
from artifacts.store.store import Store
from flows.checks.named import check_named
from flows.config.recipes import load_recipe
from tests.support.installed import TINY

VALUE = ["grade.advantage={baseline = 'none', scale = 'none'}"]
PRETRAIN = 'value.pretrain={run = "made", first = 1, last = %d}'
RATED = 'rate={models = [{name = "big", source = {source = "checkpoint", name = "%s"}}]}'


@pytest.mark.parametrize(
    "setting",
    ["teach.teacher=made@2", "distil.teacher=made@2", PRETRAIN % 3, RATED % "made@3", "distil.teacher=student",
     "teach.hint=derivation", "distil.teacher=hub:somebody/model"],
)  # fmt: skip
def test_what_exists_is_taken(setting: str, made: tuple[Store, RunLayout]) -> None:
    check_named(load_recipe(str(TINY), [*VALUE, setting]), made[0])


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("teach.teacher=other@2", r"teach.teacher: file:.*/runs/other/iterations/0002/report: no manifest; .*"),
        ("teach.teacher=made", r"teach.teacher: 'made', whose promoted checkpoint may change; .* write runs/made/.*"),
        ("distil.teacher=made@77", r"distil.teacher: file:.*/runs/made/iterations/0077/report: no manifest; .*"),
        ("distil.teacher=answers/deepseek", r"distil.teacher: file:.*/answers/deepseek: no manifest; .*"),
        ("value.source=made@2", r"value.source: made@2: no critic in file:.*"),
        (PRETRAIN % 77, r"value.pretrain: made@[0-9]+: no rollouts in .*; expected those of iterations 1 to 77; .*"),
        (RATED % "other@1", r"rate.models: big: file:.*/runs/other/iterations/0001/report: no manifest; .*"),
    ],
)
def test_what_is_missing_is_refused_in_one_line(setting: str, problem: str, made: tuple[Store, RunLayout]) -> None:
    recipe = load_recipe(str(TINY), [*VALUE, setting])
    with pytest.raises(BadInputError, match=f"^{problem}$"):
        check_named(recipe, made[0])
