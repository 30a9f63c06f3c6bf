"""Derivations in every style: `deductions` reads each step, and the premises stand where the style says."""

from dataclasses import replace
from itertools import chain

import pytest

from artifacts.errors import BadInputError
from flows.config.recipes import load_recipe
from stages.environments import environment
from stages.environments.generate import TIERS, PuzzleConfig, ZebraConfig, generate
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.logic_puzzles.grading import grade
from stages.environments.puzzle import Asserted, Puzzle, Style
from stages.environments.tables import names_of, to_table
from stages.environments.temporal_clue.environment import TemporalClue
from tests.support.taught import taught_texts

BOARDS: list[PuzzleConfig | ZebraConfig] = [
    TIERS["reduced"],
    TIERS["easy"],
    PuzzleConfig(suspects=(3, 3), weapons=(2, 2), rooms=(3, 3), connectives=False, referents=False),
    PuzzleConfig(suspects=(2, 2), weapons=(1, 1), rooms=(2, 2), times=(2, 2), motives=(0, 2)),
    ZebraConfig(houses=(2, 3), attributes=(2, 3)),
    ZebraConfig(houses=(4, 4), attributes=(3, 3)),
]
HAND = load_recipe("answers_only").puzzles.puzzle


@pytest.mark.parametrize("style", ["terse", "cited", "bare"])
@pytest.mark.parametrize("board", BOARDS)
def test_every_step_is_read_with_its_verdict(board: PuzzleConfig | ZebraConfig, style: Style) -> None:
    for seed in range(12):
        puzzle = generate(board, seed)
        family = environment.get(puzzle.environment)
        text = family.write_derivation(puzzle, style)
        asserted = read(text, puzzle)
        assert {item.verdict for item in asserted} <= {"proved", "restated"}
        conclusions = [conclusion_of(line, style) for line in text.partition("\n\n")[0].splitlines()]
        assert conclusions
        read_words = {item.text.lower() for item in asserted}
        assert [words for words in conclusions if words.lower() not in read_words] == []
        assert style == "cited" or len(asserted) == len(conclusions)
        assert grade(text, puzzle, "strict").exact
        assert grade(text, puzzle, "published") == grade(write_answer(puzzle), puzzle, "published")


def read(text: str, puzzle: Puzzle) -> list[Asserted]:
    asserted = environment.get(puzzle.environment).deductions(text, puzzle)
    assert asserted is not None
    return asserted


def conclusion_of(line: str, style: Style) -> str:
    if style == "bare":
        return line
    return line.partition(": ")[2] if style == "terse" else line.rpartition("; so ")[2].removeprefix("- ")


def test_four_styles_of_one_derivation() -> None:
    """By hand, from the clues that the first lines check."""
    puzzle = generate(HAND, 1)
    clues = puzzle.prompt.partition("clues are as follows:\n\n")[2].partition("\n\n")[0].splitlines()
    assert clues == [
        "- Mrs. White was in the room just north of the Candlestick",
        "- Mr. Green was in the same room as Mrs. White",
        "- Miss Scarlet was in the Lounge",
    ]
    plain, terse, cited, bare = (
        environment.get("temporal_clue").write_derivation(puzzle, style).partition("\n\n")[0].splitlines()
        for style in ("plain", "terse", "cited", "bare")
    )
    assert plain[3:6] == [
        "4. Miss Scarlet was in the Lounge (clue 3).",
        "5. Mr. Green was in the Hall (clue 1, clue 2).",
        "6. Mr. Boddy was murdered in the Lounge (clue 2, clue 3).",
    ]
    assert terse[3:6] == [
        "s4 3: Miss Scarlet was in the Lounge",
        "s5 2 s1: Mr. Green was in the Hall",
        "s6 s3 s4: Mr. Boddy was murdered in the Lounge",
    ]
    assert bare == [line.partition(": ")[2] for line in terse]
    assert cited[1] == f"{clues[0]}; so the Candlestick was in the Dining Room"
    assert cited[3:5] == [clues[2], f"{clues[1]}; Mrs. White was in the Hall; so Mr. Green was in the Hall"]


@pytest.mark.parametrize("style", ["plain", "terse", "cited", "bare"])
def test_a_puzzle_whose_clues_determine_nothing_is_named(style: Style) -> None:
    for board, last in ((BOARDS[2], "\n\nPlease"), (BOARDS[4], "\n\nQuestions:")):
        puzzle = generate(board, 3)
        clues, _, rest = puzzle.prompt.partition(last)
        open_puzzle = replace(puzzle, prompt=f"{clues[: clues.rindex(chr(10))]}{last}{rest}")
        with pytest.raises(BadInputError, match=f"{puzzle.prompt_id}: .*; expected clues with one solution"):
            taught_texts(to_table([open_puzzle]), style)


class _Silent(TemporalClue):
    """An environment that writes no derivation."""

    name = "silent"

    def write_derivation(self, puzzle: Puzzle, style: Style = "plain") -> str:
        return write_answer(puzzle)


SILENT = _Silent()


def test_an_environment_that_writes_no_derivation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environment._ENVIRONMENTS, "silent", f"{__name__}:SILENT")
    puzzle = replace(generate(BOARDS[0], 0), environment="silent")
    table = to_table([puzzle])
    assert taught_texts(table, None) == [write_answer(puzzle)]
    with pytest.raises(BadInputError, match=f"environment silent wrote no step for puzzle {puzzle.prompt_id}"):
        taught_texts(table, "terse")


def test_names_are_those_in_the_texts() -> None:
    for board in BOARDS:
        puzzles = [generate(board, seed) for seed in range(4)]
        names = names_of(to_table(puzzles))
        assert names == sorted(set(names))
        texts = [puzzle.prompt for puzzle in puzzles]
        texts += [" ".join(chain(*environment.get(item.environment).answer_values(item).values())) for item in puzzles]
        assert [name for name in names if not any(name in text for text in texts)] == []
        assert set(chain.from_iterable(puzzle.solution.values() for puzzle in puzzles)) <= set(names)
