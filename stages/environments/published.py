"""Reads puzzles in the published format: a JSON list of `{num_clues, prompt, solution}`."""

from pathlib import Path
from typing import Any, cast

from artifacts.documents.parsing import parse_json
from artifacts.errors import BadInputError
from artifacts.local.input_files import LARGEST_TABLE, read_input
from stages.environments import environment
from stages.environments.capabilities import ReadsPublished
from stages.environments.puzzle import Puzzle

_FIELDS = {"num_clues", "prompt", "solution"}


def read_puzzles(path: Path | str) -> list[Puzzle]:
    """Returns the puzzles of a file, of any environment, in order.

    The `prompt_id` consists of the file's name and the position in the file.

    Raises:
        BadInputError: The file cannot be read, is not JSON, or does not hold such puzzles; the message names the file,
            the index and the field.
    """
    path = Path(path)
    data = read_input(path, "a readable JSON file", most_bytes=LARGEST_TABLE)
    content = parse_json(data, str(path), "a JSON list of puzzles")
    if not isinstance(content, list):
        raise BadInputError(str(path), _described(content), "a JSON list of puzzles")
    entries = cast(list[Any], content)
    if not entries:
        raise BadInputError(str(path), "an empty list", "at least one puzzle")
    return [_read_one(f"{path}[{i}]", f"{path.stem}-{i:05d}", entry) for i, entry in enumerate(entries)]


def of_text(prompt: str) -> ReadsPublished:
    """Returns the environment whose mark is in a prompt.

    If there is none, returns the first environment, whose reader then reports the error.
    """
    readers = [item for name in environment.names() if isinstance(item := environment.get(name), ReadsPublished)]
    return next((item for item in readers if item.mark in prompt), readers[0])


def _described(value: object) -> str:
    """Returns the JSON type of a value in words, such as `a list` or `an empty string`."""
    if value == {}:
        return "an empty object"
    if isinstance(value, str) and not value.strip():
        return "an empty string"
    names: dict[type, str] = {
        dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"
    }  # fmt: skip
    return names.get(type(value), "null")


def _read_one(where: str, prompt_id: str, entry: Any) -> Puzzle:
    if not isinstance(entry, dict):
        raise BadInputError(where, _described(entry), "an object with num_clues, prompt and solution")
    fields = cast(dict[str, Any], entry)
    for name in sorted(_FIELDS - set(fields)):
        raise BadInputError(f"{where}.{name}", "the field is missing", "num_clues, prompt and solution")
    for name in sorted(set(fields) - _FIELDS):
        raise BadInputError(f"{where}.{name}", "an unknown field", "num_clues, prompt and solution only")
    num_clues, prompt, solution = fields["num_clues"], fields["prompt"], fields["solution"]
    if type(num_clues) is not int or num_clues < 0:
        raise BadInputError(f"{where}.num_clues", repr(num_clues)[:80], "a whole number, 0 or more")
    if not isinstance(prompt, str) or not prompt.strip():
        raise BadInputError(f"{where}.prompt", _described(prompt), "the text of the puzzle")
    if not isinstance(solution, dict) or not solution:
        raise BadInputError(f"{where}.solution", _described(solution), "an object from letter to answer")
    answers = cast(dict[str, Any], solution)
    for letter, answer in answers.items():
        if not (len(letter) == 1 and "A" <= letter <= "Z"):
            raise BadInputError(f"{where}.solution", f"key {letter[:40]!r}", "single letters A to Z")
        if not isinstance(answer, str) or not answer.strip():
            raise BadInputError(f"{where}.solution.{letter}", _described(answer), "a string that is not empty")
    try:
        return of_text(prompt).read(prompt_id, num_clues, prompt, cast(dict[str, str], answers))
    except BadInputError as error:
        raise BadInputError(f"{where}.{error.where}", error.found, error.expected, error.remedy) from error
