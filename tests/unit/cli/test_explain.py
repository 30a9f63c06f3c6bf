"""`deerstalker solve --explain`: the printed explanation, and what is refused before an engine starts."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from flows.cli.app import run_command
from flows.cli.console.derivations import print_lines
from flows.cli.console.options import Stored
from flows.cli.solve import AskedPrompt, explained_puzzle, print_answers
from flows.report.derivation import read_derivation
from stages.environments import environment
from stages.environments.puzzle import Puzzle
from stages.environments.temporal_clue.language.text import write_prompt
from stages.sampling.client import SampledCompletion
from tests.support.puzzle_cases import TWO_ROOMS

PROMPT = write_prompt(TWO_ROOMS)
SOLUTION = {"A": "Mrs. White", "B": "Lounge", "C": "Billiard Room", "D": "Lounge", "E": "Lounge", "F": "Lounge"}
PUZZLE = environment.get("temporal_clue").read("two-rooms", 3, PROMPT, SOLUTION)
TEXT = """\
1. Miss Peach was in the Billiard Room (clue 3).
2. Mr. Boddy was killed with the Lead Pipe (clue 1), so the murder weapon was in the Billiard Room.
[bold]Hence[/bold] the Rope was in the Lounge.

A. Mrs. White
B. Hall
"""
"""Clue 3 says that the victim is just east of Miss Peach, of two rooms; the murder weapon lies beside the victim."""


def printed(text: str, reason: str, capsys: pytest.CaptureFixture[str], puzzle: Puzzle | None = PUZZLE) -> list[str]:
    """The lines that are printed for a completion."""
    answer = SampledCompletion([1, 2, 3], [-0.1] * 3, reason, text)
    explained = explained_puzzle(AskedPrompt(PROMPT, puzzle), "two.txt")
    print_answers(puzzle, "made", [answer], Stored(), explained=explained)
    return capsys.readouterr().out.splitlines()


def test_a_completion_is_explained_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(TEXT, "stop", capsys)
    assert lines[:8] == [
        "| 1. Miss Peach was in the Billiard Room (clue 3).",
        "    step 1: proved by clue 3",
        "| 2. Mr. Boddy was killed with the Lead Pipe (clue 1), so the murder weapon was in the Billiard Room.",
        "    step 2: restated from clue 1: Mr. Boddy was killed with the Lead Pipe",
        "    step 3: contradicted by clue 3: the murder weapon was in the Billiard Room",
        "| [bold]Hence[/bold] the Rope was in the Lounge.",
        "    step 4: proved by clues 2 and 3",
        "| ",
    ]
    table = "\n".join(lines)
    assert re.search(r"A .* Mrs\. White .* right", table) and re.search(r"B .* Hall .* Lounge .* wrong", table)
    assert lines[-1] == "First false step: step 3 is contradicted by clue 3."


def test_an_unfinished_completion_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed("The Rope was in the Lounge. Miss", "length", capsys)
    assert lines[-2:] == ["No step is false.", "The completion is unfinished (finish reason length)."]
    assert "(ended by length after 3 tokens)" in lines


def test_a_prompt_without_a_known_solution_is_explained_without_answers(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(TEXT, "stop", capsys, puzzle=None)
    assert "    step 3: contradicted by clue 3: the murder weapon was in the Billiard Room" in lines
    assert not any("right answer" in line for line in lines)


def test_colours_are_for_terminals_and_words_of_a_model_steer_none() -> None:
    derivation = read_derivation("\x1b[31m The Rope was in the Lounge.\x1b[0m", "stop", PUZZLE, every_premise=True)
    assert derivation is not None
    for forced in (True, False):
        console = Console(force_terminal=forced, color_system="standard" if forced else None)
        with console.capture() as capture:
            print_lines(console, derivation)
        assert "\\u001b[31m" in capture.get()
        assert ("\x1b[32mThe Rope was in the Lounge\x1b[0m" in capture.get()) == forced
        assert ("\x1b" in capture.get()) == forced


CLUE = "- Mr. Boddy was killed with the Lead Pipe"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("Who did it?", "leave out --explain"),
        (PROMPT.replace(CLUE, "- Perhaps it was the Lead Pipe"), "cannot be read: 'clue 1: Perhaps"),
        (PROMPT.replace(CLUE, "- The Rope was not in the same room as Mr. Boddy"), "the clues contradict one another"),
    ],
    ids=["no puzzle", "unread clue", "contradiction"],
)
def test_what_cannot_be_explained_is_refused_before_an_engine_starts(
    prompt: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text(prompt)
    assert run_command(["solve", str(path), "--checkpoint", "nobody", "--explain"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and words in captured.err and "starting the engine" not in captured.err
    listed = tmp_path / "listed.json"
    if prompt != "Who did it?":
        listed.write_text(json.dumps([{"num_clues": 3, "prompt": prompt, "solution": SOLUTION}]))
        assert run_command(["solve", str(listed), "--checkpoint", "nobody", "--explain"]) == 2
        assert words in capsys.readouterr().err
