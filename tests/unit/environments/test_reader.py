"""Text and formal puzzle turn into each other; what cannot be read is named."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.errors import BadInputError
from stages.environments import environment
from stages.environments.published import read_puzzles
from stages.environments.temporal_clue.formal import Not
from stages.environments.temporal_clue.generation.scenario import draw_scenario
from stages.environments.temporal_clue.language.grammar import grammar_of
from stages.environments.temporal_clue.language.reader import Unread, read_formal
from stages.environments.temporal_clue.language.text import formal_digest, write_board, write_prompt, write_statement
from tests.support.puzzle_cases import TWO_ROOMS, VAL
from tests.support.random_puzzles import SHARED, SMALL, random_statement


def test_board() -> None:
    assert write_board(2, 1) == "  N  \nW 1 E\nW 2 E\n  S  "
    assert write_board(5, 3) == "  N N N  \nW 1|2|3 E\nW 4|5|- E\n  S S S  "
    assert write_board(10, 4).splitlines()[3] == "W 09|10|-|- E"


@settings(max_examples=100)
@given(st.integers(0, 10**9), st.sampled_from([SMALL, SHARED]))
def test_statements_round_trip(seed: int, config: object) -> None:
    rng = random.Random(seed)
    scenario = draw_scenario(config, rng)  # type: ignore[arg-type]
    statement = random_statement(scenario.shape, rng)
    sentence = write_statement(scenario, statement)
    read = grammar_of(scenario).statement(sentence)
    assert read is not None, sentence
    assert write_statement(scenario, read) == sentence


def test_puzzle_round_trips_under_any_story() -> None:
    for story in ("One line.", "A story\nof two lines.", "• a list?\n\nAnd a second paragraph."):
        prompt = write_prompt(TWO_ROOMS, story)
        assert read_formal(prompt).puzzle == TWO_ROOMS
        assert read_formal(prompt.replace("\n", "\r\n")).puzzle == TWO_ROOMS


def test_names_what_it_cannot_read() -> None:
    prompt = write_prompt(TWO_ROOMS).replace("The Rope was in the same room as", "The Rope adored")
    prompt = prompt.replace("D. Where was Mrs. White?", "D. How was Mrs. White?")
    reading = read_formal(prompt)
    clue = Unread("clue", 2, "The Rope adored Mr. Boddy")
    assert reading.unread == (clue, Unread("question", 4, "D. How was Mrs. White?"))
    assert len(reading.puzzle.clues) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("And the following weapons", "And the weapons"),
        ("W 1|2 E", "W 1|3 E"),
        ("The available clues are", "The clues are"),
        ("A. SUSPECT", "A. ROOM"),
        ("• Rope", "• Lead Pipe"),
    ],
)
def test_refuses_another_format(old: str, new: str) -> None:
    with pytest.raises(BadInputError):
        read_formal(write_prompt(TWO_ROOMS).replace(old, new))


def test_digest_is_of_the_mystery() -> None:
    base = formal_digest(TWO_ROOMS)
    reordered = type(TWO_ROOMS)(TWO_ROOMS.scenario, TWO_ROOMS.clues[::-1], TWO_ROOMS.questions[:1])
    fewer = type(TWO_ROOMS)(TWO_ROOMS.scenario, TWO_ROOMS.clues[:2], TWO_ROOMS.questions)
    assert formal_digest(reordered) == base != formal_digest(fewer)


def test_published_puzzles_round_trip_and_solve() -> None:
    """Every puzzle's text is read and written back exactly; the quickest third is solved here, all by the command."""
    if not VAL.exists():
        pytest.skip("shared/data/temporal-clue/val.json is absent")
    puzzles = sorted(read_puzzles(VAL), key=lambda p: len(p.prompt))
    for i, puzzle in enumerate(puzzles):
        reading = read_formal(puzzle.prompt)
        assert not reading.unread
        assert write_prompt(reading.puzzle, puzzle.prompt.split("\n\n")[0]) == puzzle.prompt
        if i < 24:
            checked = environment.get("temporal_clue").check(puzzle)
            assert checked.equal
            assert checked.all_unique
            assert checked.answers == puzzle.solution


def test_check_says_where_a_solution_differs_or_cannot_be_had() -> None:
    family = environment.get("temporal_clue")
    solution = {"A": "Mrs. White", "B": "Lounge", "C": "Lounge", "D": "Lounge", "E": "Lounge", "F": "Lounge"}
    wrong = family.read("x", 3, write_prompt(TWO_ROOMS), solution)
    checked = family.check(wrong)
    assert (checked.different, checked.equal, checked.all_unique) == (("C",), False, True)
    open_prompt = write_prompt(replace(TWO_ROOMS, clues=TWO_ROOMS.clues[:2]))
    checked = family.check(family.read("x", 2, open_prompt, solution))
    assert not checked.all_unique
    assert not checked.unique["C"]
    strange = write_prompt(TWO_ROOMS).replace("The Rope was in the same room as", "The Rope adored")
    checked = family.check(family.read("x", 3, strange, solution))
    assert checked.unread == ("clue 2: The Rope adored Mr. Boddy",)
    assert not checked.equal
    impossible = write_prompt(replace(TWO_ROOMS, clues=(*TWO_ROOMS.clues, Not(TWO_ROOMS.clues[0]))))
    checked = family.check(family.read("x", 4, impossible, solution))
    assert (checked.answers, checked.equal, checked.all_unique) == ({}, False, False)
