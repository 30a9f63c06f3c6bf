"""The solver that completions ask: its answers are those of all worlds, and what it cannot do it says."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.errors import BadInputError
from stages.environments import environment
from stages.environments.capabilities import AnswersCalls
from stages.environments.generate import TIERS, ZebraConfig, generate
from stages.environments.logic_puzzles.grading import grade
from stages.environments.puzzle import Puzzle
from stages.environments.solver_tool import (
    ANSWER_END,
    ANSWER_START,
    IMPOSSIBLE,
    NO_RESULT,
    NOTHING,
    UNREADABLE,
    own_words,
    read_call,
    write_call,
    write_tool_output,
)
from stages.environments.tables import taught_passages, to_table, tool_outputs
from stages.environments.temporal_clue.environment import TEMPORAL_CLUE
from stages.environments.temporal_clue.formal import FormalPuzzle, MurderedIn
from stages.environments.temporal_clue.language.reader import read_formal
from stages.environments.temporal_clue.language.text import write_statement
from stages.environments.temporal_clue.proofs import solver
from stages.environments.temporal_clue.proofs.steps import answer_statements
from stages.environments.temporal_clue.worlds import enumerate_worlds
from stages.environments.zebra.deductions import statement_of
from stages.environments.zebra.environment import ZEBRA
from stages.environments.zebra.formal import ZebraPuzzle, holds
from stages.environments.zebra.text import read_prompt, write_clue


def sentences_of_all_worlds(puzzle: FormalPuzzle) -> set[str]:
    """The answers on which all worlds of a puzzle agree, by enumeration."""
    worlds = enumerate_worlds(puzzle.scenario.shape)
    every = worlds.holds(MurderedIn(0)) | ~worlds.holds(MurderedIn(0))
    allowed = np.flatnonzero(np.logical_and.reduce([every, *(worlds.holds(clue) for clue in puzzle.clues)]))
    answers = [
        answer_statements(puzzle.scenario.shape, worlds.world(int(i)), puzzle.questions + puzzle.bonus) for i in allowed
    ]
    return {write_statement(puzzle.scenario, same[0]) for same in zip(*answers, strict=True) if len(set(same)) == 1}


def sentences_of_all_houses(puzzle: ZebraPuzzle) -> set[str]:
    """The answers on which all worlds of a zebra puzzle agree, by enumeration."""
    orders = list(itertools.permutations(range(puzzle.grid.houses)))
    worlds = np.array(list(itertools.product(orders, repeat=len(puzzle.grid.attributes))), dtype=np.int8)
    every = np.ones(len(worlds), np.bool_)
    allowed = worlds[np.logical_and.reduce([every, *(holds(clue, worlds) for clue in puzzle.clues)])]
    answers = [[statement_of(puzzle.grid, world[None], question) for question in puzzle.questions] for world in allowed]
    return {write_clue(puzzle.grid, same[0]) for same in zip(*answers, strict=True) if len(set(same)) == 1}


@pytest.mark.parametrize("seed", range(6))
def test_temporal_clue_tells_what_all_worlds_of_some_clues_share(seed: int) -> None:
    puzzle = generate(TIERS["reduced"], seed)
    formal = read_formal(puzzle.prompt).puzzle
    kept = random.Random(seed).sample(formal.clues, seed % (len(formal.clues) + 1))
    tool_output = TEMPORAL_CLUE.tool_output([write_statement(formal.scenario, clue) for clue in kept], puzzle)
    expected = sentences_of_all_worlds(FormalPuzzle(formal.scenario, tuple(kept), formal.questions, formal.bonus))
    assert set(tool_output) == (expected or {NOTHING})
    assert len(TEMPORAL_CLUE.tool_output(TEMPORAL_CLUE.asked(puzzle), puzzle)) == len(puzzle.solution)


@pytest.mark.parametrize("seed", range(6))
def test_zebra_tells_what_all_worlds_of_some_clues_share(seed: int) -> None:
    puzzle = ZEBRA.generate(ZebraConfig(houses=(3, 3), attributes=(3, 3)), seed)
    formal = read_prompt(puzzle.prompt)
    kept = random.Random(seed).sample(formal.clues, seed % (len(formal.clues) + 1))
    tool_output = ZEBRA.tool_output([write_clue(formal.grid, clue) for clue in kept], puzzle)
    expected = sentences_of_all_houses(ZebraPuzzle(formal.grid, tuple(kept), formal.questions))
    assert set(tool_output) == (expected or {NOTHING})
    assert len(ZEBRA.tool_output(ZEBRA.asked(puzzle), puzzle)) == len(puzzle.solution)


@pytest.fixture(params=[TEMPORAL_CLUE.name, ZEBRA.name])
def puzzle(request: pytest.FixtureRequest) -> Puzzle:
    level = TIERS["reduced"] if request.param == TEMPORAL_CLUE.name else ZebraConfig()
    return generate(level, 5)


def test_a_line_that_cannot_be_read_is_named_as_such_and_the_others_count(puzzle: Puzzle) -> None:
    tool_output = tool_outputs(to_table([puzzle]))
    tool = environment.get(puzzle.environment)
    assert isinstance(tool, AnswersCalls)
    clues = tool.asked(puzzle)
    answers = tool_output(puzzle.prompt_id, clues)
    assert tool_output(puzzle.prompt_id, [*clues, *clues, "the butler did it", ""]) == [UNREADABLE, *answers]
    assert tool_output(puzzle.prompt_id, ["the butler did it"]) == [UNREADABLE, NOTHING]
    assert tool_output(puzzle.prompt_id, []) == [NOTHING]


def test_statements_that_contradict_one_another_have_no_solution() -> None:
    puzzle = generate(TIERS["reduced"], 5)
    named = read_formal(puzzle.prompt).puzzle.scenario
    there = [f"{named.suspects[0]} was in the {room}" for room in named.rooms[:2]]
    assert TEMPORAL_CLUE.tool_output(there, puzzle) == [IMPOSSIBLE]
    grid = ZEBRA.generate(ZebraConfig(), 5)
    name = read_prompt(grid.prompt).grid.values[0][0]
    assert ZEBRA.tool_output([f"{name} lives in the {house} house" for house in ("first", "second")], grid) == [
        IMPOSSIBLE
    ]


@pytest.mark.long
def test_the_limit_is_the_same_on_every_machine() -> None:
    """CP-SAT's deterministic time: a puzzle that needs more than its limit has no result, every time."""
    puzzle = generate(TIERS["full"], 3)
    clues = TEMPORAL_CLUE.asked(puzzle)[:3]
    assert TEMPORAL_CLUE.tool_output(clues, puzzle) == [NO_RESULT]
    solver.shared_answers.cache_clear()
    assert TEMPORAL_CLUE.tool_output(clues, puzzle) == [NO_RESULT]


@given(st.lists(st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs", "Cc", "Z"]), min_size=1)))
def test_a_call_is_read_as_it_was_written(lines: list[str]) -> None:
    read = [line.strip().removeprefix("- ").removesuffix(".") for line in lines]
    assert read_call("Let us see. " + write_call(lines)) == [line for line in read if line]


def test_a_call_without_a_beginning_begins_with_the_text() -> None:
    assert read_call("Mr. Boddy was in the Hall.\n</ask>") == ["Mr. Boddy was in the Hall"]
    assert read_call("<ask>\na\n<ask>\n- b.\n\n</ask>") == ["b"]
    assert read_call("nothing") == []


@given(st.lists(st.sampled_from([ANSWER_START, ANSWER_END, "A. Miss Scarlet\n", "x"]), max_size=12))
def test_what_the_solver_said_is_not_read_and_places_stay(parts: list[str]) -> None:
    text = "".join(parts)
    own = own_words(text)
    assert len(own) == len(text)
    assert all(mine in (theirs, "\n") for mine, theirs in zip(own, text, strict=True))
    assert ANSWER_START not in own or ANSWER_END not in own.partition(ANSWER_START)[2]


def test_what_the_solver_said_can_be_left_out() -> None:
    said = "so " + write_call(["x"]) + write_tool_output(["y", "z"]) + "A. b"
    assert own_words(said, filler="") == "so <ask>\nx\n</ask>\n\nA. b"
    assert own_words("a <told> b", filler="") == "a <told> b"


def test_answers_and_statements_of_the_solver_earn_nothing(puzzle: Puzzle) -> None:
    """A completion in which the solver says everything has said nothing."""
    tool = environment.get(puzzle.environment)
    assert isinstance(tool, AnswersCalls)
    tool_output = write_tool_output(
        [*tool.tool_output(tool.asked(puzzle), puzzle), *(f"{k}. {v}" for k, v in puzzle.solution.items())]
    )
    assert grade(tool_output, puzzle).accuracy == 0.0
    known = TEMPORAL_CLUE if puzzle.environment == TEMPORAL_CLUE.name else ZEBRA
    assert known.deductions(tool_output, puzzle) == []
    assert known.answer_ends(tool_output, puzzle) == {}


def test_transcripts_are_a_call_its_answer_and_the_right_answers(puzzle: Puzzle) -> None:
    ((call, tool_output, answer),) = taught_passages(to_table([puzzle]), "transcripts")
    assert (call.by_tool, tool_output.by_tool, answer.by_tool) == (False, True, False)
    assert grade(call.text + tool_output.text + answer.text, puzzle).exact


def test_an_environment_without_a_solver_is_refused(puzzle: Puzzle) -> None:
    question = Puzzle("q", "file:number", "1 + 1?", {"answer": "2"}, 0, None, "d", {})
    with pytest.raises(BadInputError, match=r"sampling\.tool_calls: the environment 'file.*' cannot answer calls"):
        tool_outputs(to_table([question]))
    with pytest.raises(BadInputError, match=r"warm_start\.text = 'transcripts': the environment 'file.*' cannot"):
        taught_passages(to_table([question]), "transcripts")


def test_a_puzzle_that_the_solver_does_not_decide_teaches_nothing() -> None:
    """Its clues leave answers open."""
    puzzle = generate(TIERS["reduced"], 5)
    clue = TEMPORAL_CLUE.asked(puzzle)[0]
    fewer = Puzzle(**{**vars(puzzle), "prompt": puzzle.prompt.replace(f"- {clue}\n", "")})
    with pytest.raises(BadInputError, match="the solver does not decide all answers of puzzle"):
        taught_passages(to_table([fewer]), "transcripts")
