"""Mixtures: shares of their parts, disjoint splits, and what a recipe may ask of them."""

from collections import Counter
from typing import Any

import pytest

from artifacts.errors import BadInputError
from flows.config.recipe import Recipe
from flows.config.recipes import load_recipe
from flows.config.settings import validate
from stages.environments.generate import generate_nth
from stages.environments.mixture import MixtureConfig
from stages.prepare import PrepareConfig

REDUCED = {"connectives": False, "fixed_cast": True, "fixed_rooms": True, "questions": "placements"}
ZEBRA = {"environment": "zebra", "houses": [3, 3], "attributes": [2, 2]}


def mixture(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"environment": "mixture", "parts": list(parts)}


def parsed(*parts: dict[str, Any]) -> MixtureConfig:
    puzzle = validate(PrepareConfig, {"puzzle": mixture(*parts)}, "puzzles").puzzle
    assert isinstance(puzzle, MixtureConfig)
    return puzzle


@pytest.mark.parametrize("weights", [(1,), (1, 1), (3, 1), (2, 3, 5), (1, 7, 1, 1)])
def test_every_stretch_has_the_shares_of_the_parts(weights: tuple[int, ...]) -> None:
    parts = [{"puzzle": {**REDUCED, "suspects": [n + 2, n + 2]}, "weight": weight} for n, weight in enumerate(weights)]
    config = parsed(*parts)
    total = sum(weights)
    numbers = [config.tasks.index(config.nth(number)) for number in range(10 * total)]
    for first in range(9 * total):
        counts = Counter(numbers[first : first + total])
        assert [counts[part] for part in range(len(weights))] == list(weights)
    for length in range(1, total):
        counts = Counter(numbers[:length])
        assert all(abs(counts[part] - length * weight / total) <= 1.0 for part, weight in enumerate(weights))


def test_puzzles_keep_the_name_of_their_environment_and_come_from_seed_and_number() -> None:
    config = parsed({"puzzle": REDUCED}, {"puzzle": ZEBRA})
    puzzles = [generate_nth(config, 7, number) for number in range(4)]
    assert [puzzle.environment for puzzle in puzzles] == ["temporal_clue", "zebra"] * 2
    assert puzzles == [generate_nth(config, 7, number) for number in range(4)]
    assert puzzles[1] == generate_nth(config.tasks[1], 7, 1), "as without the mixture"
    assert len({puzzle.prompt_id for puzzle in puzzles}) == 4


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "parts"),
        ([{"puzzle": ZEBRA, "weight": 0}], "weight"),
        ([{"puzzle": {"environment": "file", "path": "x.jsonl"}}], "file"),
        ([{"puzzle": mixture({"puzzle": ZEBRA})}], "mixture"),
        ([{"puzzle": {"environment": "zebra", "house": 3}}], "house"),
        ([{"environment": "zebra"}], "environment"),
    ],
)
def test_bad_mixtures(parts: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        parsed(*parts)


def test_a_recipe_may_ask_only_what_every_part_can() -> None:
    recipe = load_recipe("answers_only").model_dump(mode="json")
    mixed = {**recipe, "puzzles": {**recipe["puzzles"], "puzzle": mixture({"puzzle": REDUCED}, {"puzzle": ZEBRA})}}
    assert Recipe.model_validate(Recipe.model_validate(mixed).model_dump(mode="json")) == Recipe.model_validate(mixed)
