"""`deerstalker environments` and `environments try`."""

import json
from pathlib import Path

import pytest

from flows.cli.app import run_command
from stages.environments.reasoning_gym import release
from tests.support.user_tasks import WILD


def test_the_list_has_every_environment_and_says_how_a_recipe_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "_installed", lambda: "0.1.25")
    assert run_command(["environments", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)["environments"]}
    assert listed.keys() >= {
        "temporal_clue", "zebra", "file", "FILE.py:OBJECT", "maths", "mixture", "reasoning_gym:TASK"
    }  # fmt: skip
    for name in ("file", "maths", "mixture", "zebra"):
        assert f'environment = "{name}"' in listed[name]["recipe"]
    gym = listed["reasoning_gym:TASK"]
    assert (gym["from"], gym["error"]) == ("reasoning-gym==0.1.25", None)
    monkeypatch.setattr(release, "_installed", lambda: None)
    assert run_command(["environments"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("reasoning_gym:TASK"))
    assert "not installed" in line and "uv sync --extra reasoning-gym" in line


def test_a_random_grader_shows_itself_when_it_is_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wild.py").write_text(WILD)
    assert run_command(["environments", "try", f"{tmp_path}/wild.py:Wild", "--count", "1", "--answer", "random"]) == 2
    assert "graded the same completion with 0." in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["maths", "mixture", "file:number"])
def test_what_only_a_recipe_can_name_is_not_tried(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["environments", "try", name]) != 0
    assert f'train with environment = "{name.partition(":")[0]}"' in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", [["try", "chess"], ["try", "file:number"], ["try", "zebra", "--level", "huge"]])
def test_what_cannot_be_tried(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["environments", *command]) != 0
    assert len(capsys.readouterr().err.splitlines()) <= 3


def test_our_own_environments_can_be_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["environments", "try", "zebra", "--count", "1", "--level", "easy"]) == 0
    assert "gets 1" in capsys.readouterr().out
    assert run_command(["environments", "try", "zebra", "--count", "1", "--answer", "none"]) == 0
    assert "gets 0 (missing)" in capsys.readouterr().out
