"""Files in the published format: read, or refused with the place of the fault."""

import json
from pathlib import Path
from typing import Any

import pytest

from artifacts.errors import BadInputError
from stages.environments.published import read_puzzles
from stages.environments.temporal_clue.language.text import write_prompt
from tests.support.puzzle_cases import TWO_ROOMS

SOLUTION = {"A": "Mrs. White", "B": "Lounge", "C": "Billiard Room", "D": "Lounge", "E": "Lounge", "F": "Lounge"}
GOOD: dict[str, Any] = {"num_clues": 3, "prompt": write_prompt(TWO_ROOMS), "solution": SOLUTION}


def write(folder: Path, content: object) -> Path:
    path = folder / "some.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_reads_a_file(tmp_path: Path) -> None:
    (puzzle,) = read_puzzles(write(tmp_path, [GOOD]))
    assert puzzle.prompt_id == "some-00000"
    assert puzzle.solution == SOLUTION
    assert puzzle.difficulty == {"suspects": 2, "weapons": 2, "rooms": 2, "times": 1, "motives": 0}


@pytest.mark.parametrize(
    ("content", "place", "problem"),
    [
        ("{", "some.json", "not JSON"),
        ("[" * 100_000, "some.json", "not JSON"),
        ("[" * 100_000 + "]" * 100_000, "some.json", "nested too deeply"),
        ('[{"num_clues": ' + "9" * 5000 + "}]", "some.json", "an integer of thousands of digits"),
        ('[{"num_clues": ' + "9" * 100 + "}]", "some.json", "an integer of 333 bits"),
        ('[{"num_clues": 1e400}]', "some.json[0].prompt", "missing"),
        ([{**GOOD, "num_clues": float("inf")}], "some.json[0].num_clues", "inf"),
        ([{**GOOD, "prompt": "\ud800"}], "some.json", "a lone surrogate"),
        ([{**GOOD, "prompt": f"{GOOD['prompt']}\0"}], "some.json", "the character 0"),
        ([{**GOOD, "solution": {**SOLUTION, "B": "\udfff"}}], "some.json", "a lone surrogate"),
        ([{**GOOD, "prompt": GOOD["prompt"].replace("W 1|", "W \u00b9|")}], "some.json[0]", "map of the rooms"),
        ([{**GOOD, "prompt": GOOD["prompt"].replace("W 1|", f"W {'9' * 5000}|")}], "some.json[0]", "map of the rooms"),
        ({"a": 1}, "some.json", "object"),
        ([], "some.json", "empty list"),
        ([GOOD, 3], "some.json[1]", "number"),
        ([{**GOOD, "extra": 1}], "some.json[0].extra", "unknown field"),
        ([{k: v for k, v in GOOD.items() if k != "prompt"}], "some.json[0].prompt", "missing"),
        ([{**GOOD, "num_clues": "3"}], "some.json[0].num_clues", "'3'"),
        ([{**GOOD, "num_clues": True}], "some.json[0].num_clues", "True"),
        ([{**GOOD, "num_clues": 4}], "some.json[0].num_clues", "4"),
        ([{**GOOD, "prompt": " "}], "some.json[0].prompt", "empty"),
        ([{**GOOD, "prompt": "Hello"}], "some.json[0]", "missing"),
        ([{**GOOD, "solution": []}], "some.json[0].solution", "list"),
        ([{**GOOD, "solution": {**SOLUTION, "A": 1}}], "some.json[0].solution.A", "number"),
        ([{**GOOD, "solution": {**SOLUTION, "AB": "x"}}], "some.json[0].solution", "AB"),
        ([{**GOOD, "solution": {"A": "Mrs. White"}}], "some.json[0]", "letters A"),
        ([{**GOOD, "solution": {**SOLUTION, "B": "Kitchen"}}], "some.json[0]", "Kitchen"),
    ],
)
def test_names_the_fault(tmp_path: Path, content: object, place: str, problem: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read_puzzles(write(tmp_path, content))
    assert place in str(caught.value)
    assert problem in str(caught.value)


def test_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"nothing\.json"):
        read_puzzles(tmp_path / "nothing.json")
