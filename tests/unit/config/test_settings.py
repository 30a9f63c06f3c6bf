"""Recipe and profile files, and `--set`: hostile values, and the name that was meant."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from artifacts.documents.suggestions import closest, did_you_mean, setting_names
from artifacts.errors import BadInputError
from flows.config.recipe import Recipe
from flows.config.recipes import load_profile, load_recipe
from stages.context import Profile

Load = Callable[..., BaseModel]
LOADED: list[tuple[type[BaseModel], Load, str]] = [
    (Recipe, load_recipe, "answers_only"),
    (Profile, load_profile, "cpu"),
]
IN_LISTS = ("phases.", "rate.models.", "sample.where.")
"""Settings that `--set` does not reach, because it sets lists as a whole."""
SETTINGS = [
    (load, name, setting)
    for kind, load, name in LOADED
    for setting in dict.fromkeys(setting_names(kind))
    if not setting.startswith(IN_LISTS)
]
DIGITS = "9" * 5000
HOSTILE_VALUES = {
    "infinity": "inf",
    "NaN": "nan",
    "beyond floats": "1e400",
    "digits": DIGITS,
    "hexadecimal digits": "0x" + "f" * 5000,
    "nested": "[" * 5_000,
    "surrogate": "\udcff",
    "zero": "a\0b",
}


def refusal(load: Load, name: str, change: str) -> str:
    """The error that a change ends in; one line that names the setting."""
    with pytest.raises(BadInputError) as caught:
        load(name, [change])
    message = str(caught.value)
    assert len(message) < 1_500
    return message


@pytest.mark.parametrize("value", HOSTILE_VALUES.values(), ids=HOSTILE_VALUES)
def test_no_setting_takes_a_hostile_value(value: str) -> None:
    for load, name, setting in SETTINGS:
        leaf = setting.rpartition(".")[2]
        message = refusal(load, name, f"{setting}={value}")
        assert leaf in message or "puzzles.puzzle" in message or "model" in message, message
        assert message.isprintable() or value in message


@pytest.mark.parametrize("setting", ["engine.dtype", "trainer.compute_dtype", "gpu_slot_spans", "tracker"])
def test_a_profile_knows_its_words(setting: str) -> None:
    for value in ("int8", "bfloat17", "1", "''", "[]"):
        assert setting in refusal(load_profile, "cpu", f"{setting}={value}")


@pytest.mark.parametrize(
    ("change", "meant"),
    [
        ("finetune.lr=1e-3", "'finetune.learning_rate'"),
        ("finetune.learning-rate=1e-3", "'finetune.learning_rate'"),
        ("Finetune={}", "'finetune'"),
        ("finetune.loss.clip_hi=1", "'finetune.loss.clip_high'"),
        ("finetune.clip_high=0.3", "'finetune.loss.clip_high'"),
        ("temperature=0.7", "'sample.sampling.temperature'"),
        ("model.hiden=4", "'model.hidden'"),
        ("puzzles.puzzle.suspect=[2,2]", "'puzzles.puzzle.suspects'"),
        ("sample.resample.max_round=3", "'sample.resample.max_rounds'"),
        ("model.source=scrach", "'scratch'"),
        ("puzzles.puzzle.environment=zebr", "'zebra'"),
        ("grade.grader=publshed", "'published'"),
        ("finetune.loss.kind=ppo", "'ppo_clip'"),
    ],
)
def test_what_was_probably_meant_is_named(change: str, meant: str) -> None:
    assert f"did you mean {meant}?" in refusal(load_recipe, "answers_only", change)


@pytest.mark.parametrize(
    ("puzzle", "message"),
    [
        ("{environment='my_tasks:Countdown'}", r"'my_tasks:Countdown' .*, did you mean 'my_tasks\.py:Countdown'\?"),
        ("{environment='zebar'}", "'zebar' is unknown or does not fit here, did you mean 'zebra'.; expected temp"),
        ("{environment='mixture', parts=[{puzzle={environment='a.py:B'}}, {puzzle={environment='zebra'}}]}",
         r"parts\.0\.puzzle: environment 'a\.py:B' .* fit here; expected temporal_clue, zebra, reasoning_gym:TASK;"),
    ],
)  # fmt: skip
def test_an_environment_that_does_not_fit_is_named_as_recipes_name_it(puzzle: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        load_recipe("answers_only", [f"puzzles.puzzle={puzzle}"])


def test_a_setting_of_another_kind_is_not_suggested_for_itself() -> None:
    """`path` is a setting of `file`, and was suggested as the meaning of `path` there."""
    with pytest.raises(BadInputError, match=r" puzzles\.puzzle\.path: Extra inputs are .* \(found \"x\"\); correct"):
        load_recipe("answers_only", ["puzzles.puzzle={environment='zebra', path='x'}"])


def test_names_of_files_and_profiles_are_suggested_too() -> None:
    assert "did you mean 'quickstart'?" in refusal(load_recipe, "qickstart", "seed=1")
    assert "did you mean 'cuda'?" in refusal(load_profile, "cuda12", "workers=1")
    assert "did you mean 'engine.dtype'?" in refusal(load_profile, "cpu", "engine.dtpe=float32")
    assert "did you mean 'bfloat16'?" in refusal(load_profile, "cpu", "engine.dtype=bf16")


def test_no_name_is_suggested_that_is_not_alike() -> None:
    assert "did you mean" not in refusal(load_recipe, "answers_only", "zzz=1")
    assert "did you mean" not in refusal(load_recipe, "answers_only", f"{'x' * 10_000}=1")
    assert closest("", ["a"]) is None
    assert closest("Learning-Rate", ["learning_rate"]) == "learning_rate"
    assert did_you_mean("x" * 100_000, ["abc"]) == ""


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a = " + b"[" * 100_000, "not TOML (nested too deeply)"),
        (b"a = " + b"9" * 5000, "not TOML (an integer of thousands of digits)"),
        (b"a = 0x" + b"f" * 5000, "an integer of 20000 bits"),
        (".".join("a" * 1_000).encode() + b" = 1", "nested more than 32 levels deep"),
        (b'title = "\xff"', "not TOML (byte 10 is not UTF-8)"),
        (b'title = "\\ud800"', "not TOML"),
        (b'title = "\\u0000"', "the character 0 in a text"),
        (b"iterations = inf", "iterations"),
    ],
)
@pytest.mark.parametrize("load", [load_recipe, load_profile])
def test_a_hostile_file_is_named(tmp_path: Path, load: Any, content: bytes, problem: str) -> None:
    path = tmp_path / "own.toml"
    path.write_bytes(content)
    with pytest.raises(BadInputError) as caught:
        load(str(path))
    assert str(path) in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + ".toml", "", ".toml", "../recipes/quickstart", "a/../b.toml"])
@pytest.mark.parametrize("load", [load_recipe, load_profile])
def test_a_name_that_no_file_has_is_unknown(load: Any, name: str) -> None:
    with pytest.raises(BadInputError, match=r"unknown|no such file"):
        load(name)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.toml"
    path.write_text("iterations = 1\n")

    def refused(path: str, *_: int, **__: object) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("artifacts.local.input_files.os.open", refused)
    with pytest.raises(BadInputError, match=r"own\.toml: cannot be read \(Permission denied\)"):
        load_recipe(str(path))
