"""`docs/reference/settings.md` lists every setting of recipes and profiles as the config models have it."""

import re
from typing import Any

import pytest
from pydantic import BaseModel, create_model

from artifacts.config import Config
from flows.config.recipes import Recipe, load_profile, load_recipe, recipe_names
from flows.config.settings import settings_names
from stages.context import Profile
from tests.support import settings_page

LISTED = {
    re.sub(r"\[[^]]+\]", "", path) for path in re.findall(r"^\| `([^`]+)` \|", settings_page.PAGE.read_text(), re.M)
}
"""Names on the page, without the kind of a section that has several."""


def leaves(value: Any, path: str = "") -> set[str]:
    """Names of the settings of a recipe or profile."""
    if isinstance(value, dict) and value and path not in LISTED:
        return set().union(*(leaves(item, f"{path}.{key}" if path else key) for key, item in value.items()))
    return {path}


def test_the_page_is_fresh() -> None:
    assert settings_page.PAGE.read_text() == settings_page.settings_page(), (
        "a setting has changed: write the page again with `python -m tests.support.settings_page`"
    )


@pytest.mark.parametrize("name", recipe_names())
def test_every_setting_of_a_recipe_is_listed(name: str) -> None:
    recipe = load_recipe(name).model_dump(mode="json")
    final = {path for path in leaves(recipe) if path.startswith("final.")}
    assert {path.replace("final.", "evaluate.", 1) for path in final} | (leaves(recipe) - final) <= LISTED


@pytest.mark.parametrize("name", settings_names("profiles"))
def test_every_setting_of_a_profile_is_listed(name: str) -> None:
    assert leaves(load_profile(name).model_dump(mode="json")) <= LISTED


@pytest.mark.parametrize("model", [Recipe, Profile])
def test_a_new_setting_changes_the_page(model: type[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    more: type[BaseModel] = create_model("More", __base__=model, added=(int, 7))
    monkeypatch.setattr(settings_page, model.__name__, more)
    assert "| `added` | whole number | `7` |  |" in settings_page.settings_page()


def test_every_setting_has_a_meaning() -> None:
    assert not re.findall(r"^\| `[^`]+` \|.*\|  \|$", settings_page.PAGE.read_text(), re.M)
