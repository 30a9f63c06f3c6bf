"""Zebra grids, by looking at every way to fill the houses."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.errors import BadInputError
from flows.cli.app import run_command
from stages.environments import environment
from stages.environments.generate import ZebraConfig, generate
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.logic_puzzles.grading import grade
from stages.environments.puzzle import DeductionCounts
from stages.environments.tables import count_deductions
from stages.environments.zebra.config import TIERS
from stages.environments.zebra.deductions import Reasoner
from stages.environments.zebra.environment import generate_formal
from stages.environments.zebra.formal import Clue, Grid, Houses, InHouse, Related, ZebraPuzzle, ZebraQuestion, holds
from stages.environments.zebra.solver import GridModel
from stages.environments.zebra.text import people_of, read_clue, read_prompt, write_clue, write_prompt

ZEBRA = environment.get("zebra")
DIGESTS = ["b11cf7f50fbedc49", "a6b394f2613298e7", "f9ffc0864289ecec"]


def every_world(grid: Grid) -> Houses:
    orders = list(itertools.permutations(range(grid.houses)))
    return np.array(list(itertools.product(orders, repeat=len(grid.attributes))), dtype=np.int8)


def test_by_hand() -> None:
    """Ada is left of the cat's keeper, so she is first, and Bruno keeps the cat in the second house."""
    grid = Grid(("name", "pet"), (("Ada", "Bruno"), ("cat", "ferret")))
    clue = Related((0, 0), "left", (1, 0))
    solution = GridModel(grid, [clue]).solve([0])
    assert solution is not None
    assert solution.tolist() == [[[0, 1], [1, 0]]]
    prompt = write_prompt(ZebraPuzzle(grid, (clue,), (ZebraQuestion((0, 0), None), ZebraQuestion((0, 1), 1))))
    assert "- Ada lives directly to the left of the keeper of the cat\n" in prompt
    puzzle = ZEBRA.read("x", 1, prompt, {"A": "first", "B": "cat"})
    assert grade("A. the first house\nB. **Cat**.", puzzle).exact
    assert grade("A. second\nB. ferret", puzzle).accuracy == 0.0


@settings(max_examples=30)
@given(st.integers(0, 10**9))
def test_unique_minimal_and_readable(seed: int) -> None:
    config = ZebraConfig(houses=(2, 4), attributes=(2, 3))
    formal, world = generate_formal(config, seed)
    worlds = every_world(formal.grid)
    truths = np.array([holds(clue, worlds) for clue in formal.clues])
    allowed = np.flatnonzero(truths.all(axis=0))
    assert worlds[allowed].tolist() == world.tolist()
    for i in range(len(formal.clues)):
        assert np.delete(truths, i, axis=0).all(axis=0).sum() > 1
    puzzle = generate(config, seed)
    assert read_prompt(puzzle.prompt) == formal
    assert grade(write_answer(puzzle), puzzle, "strict").exact
    assert grade(write_answer(puzzle), puzzle, "published").exact
    again = ZEBRA.read("x", puzzle.num_clues, puzzle.prompt, puzzle.solution)
    assert (again.digest, again.prompt, again.solution) == (puzzle.digest, puzzle.prompt, puzzle.solution)


def test_fixed_words_are_those_of_every_grid() -> None:
    config = ZebraConfig(houses=(3, 3), attributes=(2, 2), fixed_words=True)
    formal, worlds = zip(*(generate_formal(config, seed) for seed in range(20)), strict=True)
    assert {one.grid for one in formal} == {
        Grid(("name", "pet"), (("Ada", "Bruno", "Clara"), ("cat", "parrot", "turtle")))
    }
    assert len({world.tobytes() for world in worlds}) > 5
    assert all(read_prompt(write_prompt(one)) == one for one in formal)


@settings(max_examples=15)
@given(st.integers(0, 10**9), st.booleans())
def test_premises_decide_a_statement_and_none_can_be_left_out(seed: int, whole: bool) -> None:
    formal, _ = generate_formal(ZebraConfig(houses=(2, 3), attributes=(2, 3)), seed)
    if not whole:
        formal = replace(formal, clues=formal.clues[1:])
    worlds = every_world(formal.grid)
    puzzle = replace(generate(ZebraConfig(houses=(2, 3), attributes=(2, 3)), seed), prompt=write_prompt(formal))

    def truths(statement: InHouse | Related, clues: list[int]) -> list[bool]:
        allowed = np.logical_and.reduce([holds(formal.clues[i - 1], worlds) for i in clues], axis=0, initial=True)
        return holds(statement, worlds)[np.broadcast_to(allowed, len(worlds))].tolist()

    things = [(a, v) for a in range(len(formal.grid.values)) for v in range(formal.grid.houses)]
    statements: list[InHouse | Related] = [InHouse(thing, 0, no) for thing in things for no in (False, True)]
    for statement in [*statements, Related((0, 0), "next", (1, 1)), *formal.clues]:
        premises = ZEBRA.premises(write_clue(formal.grid, statement), puzzle)
        every = truths(statement, list(range(1, len(formal.clues) + 1)))
        if premises is None:
            assert any(every) and not all(every)
            continue
        assert truths(statement, list(premises)) == [every[0]] * len(truths(statement, list(premises)))
        for dropped in premises:
            fewer = truths(statement, [i for i in premises if i != dropped])
            assert any(fewer) and not all(fewer)
    assert ZEBRA.premises("Nobody lives next to nobody", puzzle) is None


@settings(max_examples=20)
@given(st.integers(0, 10**9), st.booleans())
def test_verdicts_equal_enumeration(seed: int, whole: bool) -> None:
    """On whole puzzles and on ones that lack a clue, so that much is left open."""
    formal, _ = generate_formal(ZebraConfig(houses=(2, 3), attributes=(2, 3)), seed)
    if not whole:
        formal = replace(formal, clues=formal.clues[1:])
    worlds = every_world(formal.grid)
    allowed = np.logical_and.reduce([holds(clue, worlds) for clue in formal.clues], axis=0, initial=True)
    reasoner = Reasoner(formal)
    things = [(a, v) for a in range(len(formal.grid.values)) for v in range(formal.grid.houses)]
    statements = [InHouse(thing, house, no) for thing in things for house in range(2) for no in (False, True)]
    statements += [Related(first, "next", second) for first, second in itertools.permutations(things[:4], 2)]
    for statement in statements:
        truths = holds(statement, worlds)[allowed]
        expected = "proved" if truths.all() else "open" if truths.any() else "contradicted"
        if holds(statement, worlds).all():
            assert reasoner.verdict(statement) == "restated", "the rules alone entail it"
        assert reasoner.verdict(statement) in (expected, "restated")
        assert (reasoner.verdict(statement) == "restated") <= bool(truths.all())
    assert reasoner.needless() == () or not whole


def test_statements_of_a_text_are_counted() -> None:
    grid = Grid(("name", "pet"), (("Ada", "Bruno"), ("cat", "ferret")))
    formal = ZebraPuzzle(
        grid, (Related((0, 0), "left", (1, 0)),), (ZebraQuestion((0, 0), None), ZebraQuestion((0, 1), 1))
    )
    puzzle = ZEBRA.read("x", 1, write_prompt(formal), {"A": "first", "B": "cat"})
    text = (
        "Ada lives directly to the left of the keeper of the cat. So Ada lives in the first house; therefore, Bruno is "
        "the keeper of the cat! Bruno lives in the first house. If Ada lives in the second house, nothing fits. "
        "Ada lives in the sixth house. Bruno is the keeper of the cat. Ada lives in the second house? No."
    )
    assert count_deductions(text, puzzle) == DeductionCounts(4, proved=2, restated=1, open=0, contradicted=1)
    checked = ZEBRA.check(puzzle, minimal=True)
    assert (checked.answers, checked.all_unique, checked.equal) == (puzzle.solution, True, True)
    assert (checked.same_text, checked.needless) == (True, ())
    assert ZEBRA.write_derivation(puzzle) == (
        "1. Ada lives in the first house (clue 1).\n2. Bruno lives in the second house (clue 1).\n"
        "3. The keeper of the cat lives in the second house (clue 1).\n\nA. first\nB. cat"
    )


@pytest.mark.parametrize("seed", range(6))
def test_each_step_of_a_terse_derivation_follows_from_the_premises_that_it_names(seed: int) -> None:
    """By looking at every way to fill the houses; without any one of the premises it does not follow."""
    puzzle = generate(ZebraConfig(houses=(3, 4), attributes=(3, 3)), seed)
    formal = read_prompt(puzzle.prompt)
    worlds, people = every_world(formal.grid), people_of(formal.grid)
    facts: list[Clue] = []
    for line in ZEBRA.write_derivation(puzzle, "terse").partition("\n\n")[0].splitlines():
        names, _, words = line.partition(": ")
        own, *premises = names.split()
        assert own == f"s{len(facts) + 1}"
        clues = [facts[int(name[1:]) - 1] if name[0] == "s" else formal.clues[int(name) - 1] for name in premises]
        fact = read_clue(people, words)
        assert fact is not None
        truths = [holds(clue, worlds) for clue in clues]
        assert follows(truths, holds(fact, worlds))
        assert not any(follows(truths[:i] + truths[i + 1 :], holds(fact, worlds)) for i in range(len(truths)))
        facts.append(fact)


def follows(truths: list[np.ndarray], truth: np.ndarray) -> bool:
    return bool(truth[np.logical_and.reduce(truths, axis=0)].all()) if truths else bool(truth.all())


def test_golden_digests() -> None:
    assert [generate(TIERS["medium"], seed).digest[:16] for seed in range(3)] == DIGESTS


def test_names_what_it_cannot_read() -> None:
    puzzle = generate(TIERS["easy"], 1)
    with pytest.raises(BadInputError, match="clue 1"):
        ZEBRA.read("x", 1, puzzle.prompt.replace("Clues:\n\n- ", "Clues:\n\n- Perhaps "), puzzle.solution)
    with pytest.raises(BadInputError, match="Clues:"):
        ZEBRA.read("x", 1, "Hello", puzzle.solution)
    with pytest.raises(BadInputError, match="environment"):
        environment.get("chess")
    assert holds(InHouse((0, 0), 0, no=True), np.zeros((1, 1, 1), dtype=np.int8)).tolist() == [False]


def test_a_file_keeps_its_prompt_and_must_have_answers_of_the_puzzle() -> None:
    puzzle = generate(TIERS["easy"], 1)
    prompt = f"Think aloud.\n\n{puzzle.prompt}"
    read = ZEBRA.read("x", puzzle.num_clues, prompt, puzzle.solution)
    assert (read.prompt, read.digest) == (prompt, puzzle.digest)
    with pytest.raises(BadInputError, match=r"solution\.A: 'seventh'; expected a [A-Z]+ of the puzzle"):
        ZEBRA.read("x", puzzle.num_clues, prompt, {**puzzle.solution, "A": "seventh"})
    names, pets = (tuple(f"{word}{i}" for i in range(7)) for word in ("person", "animal"))
    large = ZebraPuzzle(Grid(("name", "pet"), (names, pets)), (), (ZebraQuestion((0, 0), 1),))
    heading = "There are 7 houses in a row, the first on the left:"
    rows = f"- name: {', '.join(names)}\n- pet: {', '.join(pets)}"
    rest = write_prompt(replace(large, grid=Grid(("name", "pet"), (names[:6], pets[:6])))).partition("Clues:")[2]
    with pytest.raises(BadInputError, match="7 houses; expected at most 6 houses"):
        ZEBRA.read("x", 0, f"{heading}\n\n{rows}\n\nClues:{rest}", {"A": "animal0"})


def test_a_statement_enters_the_model_once() -> None:
    model = GridModel(Grid(("name",), (("Ada", "Bruno"),)), [])
    assert model.add(InHouse((0, 0), 1)) == model.add(InHouse((0, 0), 1)) == 0
    assert model.add(InHouse((0, 1), 1)) == 1


def test_contradicting_clues_are_reported_and_other_puzzles_of_the_file_solved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = Grid(("name", "pet"), (("Ada", "Bruno"), ("cat", "ferret")))
    clue, questions = Related((0, 0), "left", (1, 0)), (ZebraQuestion((0, 0), None), ZebraQuestion((0, 1), 1))
    both = (clue, Related((0, 0), "same", (1, 0)))
    prompts = [write_prompt(ZebraPuzzle(grid, clues, questions)) for clues in (both, (clue,))]
    solution = {"A": "first", "B": "cat"}
    entries = [{"num_clues": 2 - i, "prompt": prompt, "solution": solution} for i, prompt in enumerate(prompts)]
    path = tmp_path / "zebra.json"
    path.write_text(json.dumps(entries))
    assert run_command(["puzzles", "solve", str(path), "--minimal"]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("zebra-00000: the clues contradict one another; ")
    assert second.startswith("zebra-00001: A first B cat; unique; equal; minimal; ")
    assert last.startswith("2 puzzles: 2 read, 1 unique, 1 equal to the given solution, 1 minimal; ")
    assert run_command(["puzzles", "solve", str(path), "--json"]) == 0
    (bad, good) = json.loads(capsys.readouterr().out)["puzzles"]
    assert (bad["answers"], bad["equal"], bad["different"], bad["same_text"]) == ({}, False, ["A", "B"], True)
    assert good["equal"]
