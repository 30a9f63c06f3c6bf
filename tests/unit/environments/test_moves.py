"""Moves are to a time from the one before it: none is to the first time, and the others are proved by enumeration."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from stages.environments import environment
from stages.environments.temporal_clue.formal import At, Carried, FormalPuzzle, Moved, Not, Question, Ref, Scenario
from stages.environments.temporal_clue.language.grammar import grammar_of
from stages.environments.temporal_clue.language.reader import Unread, read_formal
from stages.environments.temporal_clue.language.text import write_prompt, write_statement
from stages.environments.temporal_clue.proofs.deductions import Judge
from stages.environments.temporal_clue.worlds import World, Worlds
from tests.support.random_puzzles import lawful

TIMES = ("11:30 PM", "12:00 AM", "12:30 AM")
PEACH, GREEN, ROPE = Ref("suspect", 0), Ref("suspect", 1), Ref("weapon", 0)
NIGHT = FormalPuzzle(
    Scenario(("Miss Peach", "Mr. Green"), ("Rope",), ("Hall", "Lounge"), columns=2, times=TIMES),
    (At(PEACH, 0, 0), At(PEACH, 1, 1), At(GREEN, 1, 2), At(ROPE, 1, 2)),
    (Question("murderer"),),
)
"""Miss Peach begins in the Hall and goes to the Lounge; much else is open."""


def allowed_worlds() -> Worlds:
    """Every lawful world in which the clues hold, found by looking at all of them."""
    paths = list(itertools.product(range(2), repeat=len(TIMES)))
    shape = NIGHT.scenario.shape
    every = (
        World(rooms, (), murderer, 0, time)
        for rooms in itertools.product(paths, repeat=4)
        for murderer in range(2)
        for time in range(len(TIMES))
    )
    worlds = Worlds.of(shape, [world for world in every if lawful(shape, world)])
    return worlds.where(np.logical_and.reduce([worlds.holds(clue) for clue in NIGHT.clues], axis=0))


def test_verdicts_on_moves_equal_enumeration_and_none_is_to_the_first_time() -> None:
    worlds, judge, scenario = allowed_worlds(), Judge(NIGHT), NIGHT.scenario
    assert len(worlds) > 1
    verdicts: set[str] = set()
    for ref, origin, time in itertools.product((PEACH, GREEN, ROPE, Ref("murderer")), range(2), range(1, len(TIMES))):
        moves = [Moved(ref, origin, 1 - origin, time)]
        if ref.kind != "weapon":
            moves.append(Carried(ref, ROPE, origin, 1 - origin, time))
        for statement in (*moves, *map(Not, moves)):
            truths = worlds.holds(statement)
            expected = "proved" if truths.all() else "open" if truths.any() else "contradicted"
            (item,) = judge.read(f"{write_statement(scenario, statement)}.")
            assert (grammar_of(scenario).statement(item.text), item.verdict) == (statement, expected)
            verdicts.add(expected)
    assert verdicts == {"proved", "open", "contradicted"}


@pytest.mark.parametrize(
    "words",
    [
        "Miss Peach moved from the {0} to the {1} at 11:30 PM",
        "Miss Peach did not move from the {0} to the {1} at 11:30 PM",
        "the murderer moved from the {0} to the {1} at 11:30 PM",
        "Mr. Green moved the Rope from the {0} to the {1} at 11:30 PM",
    ],
)
def test_nothing_moves_to_the_first_time(words: str) -> None:
    judge = Judge(NIGHT)
    for rooms in itertools.permutations(("Hall", "Lounge")):
        sentence = words.format(*rooms)
        assert grammar_of(NIGHT.scenario).statement(sentence) is None
        assert grammar_of(NIGHT.scenario).statement(f"It is not true that {sentence}") is None
        for text in (f"{sentence}.", f"Miss Peach was in the Hall at 11:30 PM or {sentence}."):
            assert judge.read(text) == []


def test_a_clue_that_says_so_is_named_and_the_puzzle_not_solved() -> None:
    prompt = write_prompt(replace(NIGHT, clues=(*NIGHT.clues, Moved(PEACH, 1, 0, 0))))
    sentence = "Miss Peach moved from the Lounge to the Hall at 11:30 PM"
    reading = read_formal(prompt)
    assert reading.unread == (Unread("clue", 5, sentence),)
    family = environment.get("temporal_clue")
    checked = family.check(family.read("x", 5, prompt, {"A": "Mr. Green"}))
    assert (checked.unread, checked.answers) == ((f"clue 5: {sentence}",), {})
