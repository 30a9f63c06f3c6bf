"""Verdicts on statements are those of looking at every world; derivations rest on what they name."""

import random
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.environments import environment
from stages.environments.generate import TIERS, PuzzleConfig, generate
from stages.environments.logic_puzzles.grading import grade
from stages.environments.puzzle import DeductionCounts
from stages.environments.tables import count_deductions
from stages.environments.temporal_clue.formal import FormalPuzzle, Not, Statement
from stages.environments.temporal_clue.generation.generate import generate_formal
from stages.environments.temporal_clue.language.grammar import grammar_of
from stages.environments.temporal_clue.language.text import canonical, write_statement
from stages.environments.temporal_clue.proofs import chain
from stages.environments.temporal_clue.proofs.deductions import Judge
from stages.environments.temporal_clue.proofs.derivation import derive
from stages.environments.temporal_clue.proofs.encoding import Encoding
from stages.environments.temporal_clue.proofs.steps import answer_statements
from stages.environments.temporal_clue.worlds import enumerate_worlds
from tests.support.puzzle_cases import TWO_ROOMS
from tests.support.random_puzzles import random_statement
from tests.support.tiers import long_except

EASY = PuzzleConfig(suspects=(2, 3), weapons=(2, 2), rooms=(2, 4), motives=(0, 3))


def verdict_by_enumeration(puzzle: FormalPuzzle, statement: Statement) -> str:
    worlds = enumerate_worlds(puzzle.scenario.shape)
    allowed = np.logical_and.reduce([worlds.holds(clue) for clue in puzzle.clues], axis=0)
    truths = worlds.holds(statement)[allowed]
    same = {canonical(puzzle.scenario, clue) for clue in puzzle.clues}
    if canonical(puzzle.scenario, statement) in same or worlds.holds(statement).all():
        return "restated"
    return "proved" if truths.all() else "open" if truths.any() else "contradicted"


@settings(max_examples=60)
@given(st.integers(0, 10**9), st.booleans())
def test_verdicts_equal_enumeration(seed: int, whole: bool) -> None:
    """On whole puzzles and on ones that lack a clue, so that much is left open."""
    rng = random.Random(seed)
    puzzle, _ = generate_formal(EASY, seed)
    if not whole:
        puzzle = replace(puzzle, clues=puzzle.clues[1:])
    judge = Judge(puzzle)
    assert judge.decided == whole
    for statement in [*(random_statement(puzzle.scenario.shape, rng) for _ in range(10)), *puzzle.clues]:
        assert judge.verdict(statement) == verdict_by_enumeration(puzzle, statement)


@settings(max_examples=40)
@given(st.integers(0, 10**9), st.booleans())
def test_premises_decide_a_statement_and_none_can_be_left_out(seed: int, whole: bool) -> None:
    """Entailed in every world that the premises allow; without any one of them in some world not."""
    rng = random.Random(seed)
    puzzle, _ = generate_formal(EASY, seed)
    if not whole:
        puzzle = replace(puzzle, clues=puzzle.clues[1:])
    worlds, judge = enumerate_worlds(puzzle.scenario.shape), Judge(puzzle)

    def decided(statement: Statement, clues: list[int]) -> bool:
        allowed = np.logical_and.reduce([worlds.holds(puzzle.clues[i - 1]) for i in clues], axis=0, initial=True)
        truths = worlds.holds(statement) | ~np.broadcast_to(allowed, len(worlds))
        denied = ~worlds.holds(statement) | ~np.broadcast_to(allowed, len(worlds))
        return bool(denied.all() if judge.verdict(statement) == "contradicted" else truths.all())

    for statement in [*(random_statement(puzzle.scenario.shape, rng) for _ in range(10)), *puzzle.clues]:
        premises = judge.premises(statement)
        if verdict_by_enumeration(puzzle, statement) == "open":
            assert premises is None
            continue
        assert premises is not None and list(premises) == sorted(set(premises))
        assert decided(statement, list(premises))
        for dropped in premises:
            assert not decided(statement, [i for i in premises if i != dropped])


def test_premises_of_words() -> None:
    """A clue has its own number; a written derivation rests on clues; what is no statement has no premises."""
    puzzle = generate(TIERS["reduced"], 3)
    family = environment.get("temporal_clue")
    clues = [line.removeprefix("- ") for line in puzzle.prompt.splitlines() if line.startswith("- ")]
    assert family.premises(clues[1], puzzle) == (2,)
    assert family.premises("Nobody did it", puzzle) is None
    for item in family.deductions(family.write_derivation(puzzle), puzzle) or []:
        premises = family.premises(item.text, puzzle)
        assert premises and set(premises) <= set(range(1, puzzle.num_clues + 1))
    unreadable = replace(puzzle, prompt=puzzle.prompt.replace(clues[0], "Perhaps somebody lies"))
    assert family.premises(clues[1], unreadable) is None


def test_what_the_rules_alone_entail_is_no_deduction() -> None:
    """Otherwise there is no end of statements that earn a reward."""
    puzzle = generate(TIERS["reduced"], 3)
    family = environment.get("temporal_clue")
    text = "\n".join(
        (
            "Mr. Boddy was murdered by the murderer.",
            "Mr. Boddy was in the same room as Mr. Boddy.",
            "The murder weapon was in the same room as the murder weapon.",
        )
    )
    found = family.deductions(text, puzzle) or []
    assert found and {item.verdict for item in found} == {"restated"}
    assert [family.premises(item.text, puzzle) for item in found] == [()] * len(found)
    assert DeductionCounts.of(found).sound == 0.0


JUDGE = Judge(TWO_ROOMS)
THREE_TEXTS = {
    "sound": (
        "The Rope shares a room with the victim. Mr. Boddy was murdered in the Lounge. The Rope was in the Lounge, "
        "and the Lead Pipe was in the Lounge. Miss Peach was in the Billiard Room, so Mr. Boddy was murdered by "
        "Mrs. White.",
        DeductionCounts(statements=5, proved=5, restated=0, open=0, contradicted=0),
    ),
    "unsound": (
        "The Rope was in the Billiard Room. Mr. Boddy was murdered by Miss Peach! Mrs. White was not in the Lounge\n"
        "If Mrs. White was in the Billiard Room, then the Rope was in the Billiard Room. The Rope was in the Lounge?",
        DeductionCounts(statements=3, proved=0, restated=0, open=0, contradicted=3),
    ),
    "restating": (
        "- Mr. Boddy was killed with the Lead Pipe\n- Mr. Boddy was in the same room as the Rope\n"
        "- Mr. Boddy was in the room just east of Miss Peach\n- Mr. Boddy was killed with the Lead Pipe",
        DeductionCounts(statements=3, proved=0, restated=3, open=0, contradicted=0),
    ),
}


@pytest.mark.parametrize("name", THREE_TEXTS)
def test_three_completions(name: str) -> None:
    text, counts = THREE_TEXTS[name]
    deductions = JUDGE.read(text)
    assert DeductionCounts.of(deductions) == counts
    for deduction in deductions:
        assert text[deduction.start : deduction.end] == deduction.text
        statement = grammar_of(TWO_ROOMS.scenario).statement(deduction.text)
        assert statement is not None
        assert deduction.verdict == verdict_by_enumeration(TWO_ROOMS, statement)
    repeated = [item.text for item in deductions if item.repeated]
    assert repeated == (["Mr. Boddy was killed with the Lead Pipe"] if name == "restating" else [])


def test_what_is_left_open_without_a_clue() -> None:
    judge = Judge(replace(TWO_ROOMS, clues=TWO_ROOMS.clues[:2]))
    text = "The Rope was in the Lounge. Mr. Boddy was not murdered by Miss Peach. The murder weapon was in the Lounge."
    assert [d.verdict for d in judge.read(text)] == ["open", "open", "open"]


def test_alternatives_and_doubts_are_not_asserted() -> None:
    for text in (
        "The Rope was in the Lounge or in a bag",
        "The Rope was in the Lounge or the Billiard Room",
        "Suppose that the Rope was in the Lounge",
        "Maybe the Rope was in the Lounge",
        "Was it so that the Rope was in the Lounge?",
        "The Ropes was in the Lounge",
    ):
        assert JUDGE.read(text) == [], text
    (joined,) = JUDGE.read("So the Rope was in the Lounge if and only if the Lead Pipe was in the Lounge.")
    assert joined.verdict == "proved"


@given(st.text(max_size=200))
def test_any_text_has_counts(text: str) -> None:
    counts = DeductionCounts.of(JUDGE.read(text))
    assert counts.statements == counts.proved + counts.restated + counts.open + counts.contradicted


@given(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("\ue000\ue100\ue001"), max_size=60))
def test_found_words_are_where_they_are_said_to_be(noise: str) -> None:
    text = f"{noise} the Rope was in the Lounge. {noise}"
    statements = list(grammar_of(TWO_ROOMS.scenario).find(text))
    assert [text[f.start : f.end] for f in statements] == ["the Rope was in the Lounge"]


@settings(max_examples=40)
@given(st.integers(0, 10**9), st.sampled_from(["reduced", "easy"]), st.booleans())
def test_derivations_are_sound_and_end_in_the_answers(seed: int, tier: str, from_steps: bool) -> None:
    puzzle, _ = generate_formal(TIERS[tier], seed)
    worlds = enumerate_worlds(puzzle.scenario.shape)
    steps = derive(puzzle, from_steps=from_steps)
    for i, step in enumerate(steps):
        assert all(j < i for j in step.steps)
        premises = [puzzle.clues[j] for j in step.clues] + [steps[j].statement for j in step.steps]
        allowed = np.logical_and.reduce([worlds.holds(p) for p in premises], axis=0, initial=True)
        assert (worlds.holds(step.statement) | ~allowed).all()
    answered = len(puzzle.questions + puzzle.bonus)
    assert answered <= len(steps) <= answered + 6


def test_steps_that_follow_from_earlier_steps_name_them_instead_of_clues() -> None:
    """Not more premises than with clues first, and more of them are steps."""
    with_clues, with_steps = [0, 0], [0, 0]
    for seed in range(12):
        puzzle, _ = generate_formal(TIERS["reduced"], seed)
        for sums, from_steps in ((with_clues, False), (with_steps, True)):
            steps = derive(puzzle, from_steps=from_steps)
            sums[0] += max(len(step.clues) + len(step.steps) for step in steps)
            sums[1] += sum(len(step.steps) for step in steps)
    assert with_steps[0] <= with_clues[0]
    assert with_steps[1] > with_clues[1]


def proved_anew(puzzle: FormalPuzzle, premises: list[Statement], statement: Statement) -> bool:
    """Whether the rules and `premises` entail `statement`, by a solver that knows nothing else."""
    encoding = Encoding(puzzle.scenario.shape)
    return encoding.solve([*map(encoding.literal, premises), ~encoding.literal(statement)]) is None


@pytest.mark.long
@settings(max_examples=4)
@given(st.integers(0, 10**9))
def test_derivations_with_times_are_proved_step_by_step_from_nothing_to_spare(seed: int) -> None:
    config = PuzzleConfig(suspects=(3, 3), weapons=(2, 2), rooms=(4, 4), times=(2, 3), motives=(0, 3))
    puzzle, world = generate_formal(config, seed)
    steps = derive(puzzle)
    targets = answer_statements(puzzle.scenario.shape, world, puzzle.questions + puzzle.bonus)
    assert set(targets) <= {step.statement for step in steps}
    assert steps[-1].statement in targets
    assert len({step.statement for step in steps}) == len(steps)
    used = {j for step in steps for j in step.steps}
    for i, step in enumerate(steps):
        assert all(j < i for j in step.steps)
        assert i in used or step.statement in targets
        premises = [puzzle.clues[j] for j in step.clues] + [steps[j].statement for j in step.steps]
        assert proved_anew(puzzle, premises, step.statement)
        for j in range(len(premises)):
            assert not proved_anew(puzzle, premises[:j] + premises[j + 1 :], step.statement)
    assert derive(puzzle) == steps


def test_a_derivation_with_times_goes_over_deductions_between_clues_and_answers() -> None:
    """Most answers follow from a step or more, and seldom from as many clues as the puzzle has."""
    steps = derive(generate_formal(TIERS["small"], 3)[0])
    assert sum(bool(step.steps) for step in steps) > len(steps) // 2
    assert sorted(len(step.clues) + len(step.steps) for step in steps)[len(steps) // 2] <= 4


@pytest.mark.parametrize(("limit", "value"), [("_MOST_PROOFS", 10), ("_MOST_CLUES", 5)])
def test_a_derivation_that_would_take_too_long_states_the_answers_only(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    puzzle, world = generate_formal(TIERS["small"], 3)
    monkeypatch.setattr(chain, limit, value)
    steps = derive(puzzle)
    targets = answer_statements(puzzle.scenario.shape, world, puzzle.questions + puzzle.bonus)
    assert {step.statement for step in steps} == set(targets)
    for i, step in enumerate(steps):
        assert all(j < i for j in step.steps)
        premises = [puzzle.clues[j] for j in step.clues] + [steps[j].statement for j in step.steps]
        assert proved_anew(puzzle, premises, step.statement)


@pytest.mark.parametrize("seed", [0, 3])
def test_no_derivation_from_clues_that_leave_an_answer_open_or_contradict_one_another(seed: int) -> None:
    puzzle, _ = generate_formal(TIERS["small"], seed)
    with pytest.raises(ValueError, match="leave open whether"):
        derive(replace(puzzle, clues=puzzle.clues[:2]))
    with pytest.raises(ValueError, match="contradict one another"):
        derive(replace(puzzle, clues=(*puzzle.clues, Not(puzzle.clues[0]))))


@pytest.mark.parametrize("tier", long_except(["reduced", "easy", "small"], "reduced", "easy"))
def test_a_written_derivation_is_proved_and_graded_right(tier: str) -> None:
    family = environment.get("temporal_clue")
    for seed in range(4):
        puzzle = generate(TIERS[tier], seed)
        text = family.write_derivation(puzzle)
        counts = count_deductions(text, puzzle)
        assert counts.statements == counts.proved + counts.restated > 0
        assert grade(text, puzzle).exact


def test_clues_as_text_are_all_restated() -> None:
    puzzle, _ = generate_formal(TIERS["small"], 3)
    judge = Judge(puzzle)
    text = "\n".join(f"- {write_statement(puzzle.scenario, clue)}" for clue in puzzle.clues)
    assert {d.verdict for d in judge.read(text)} == {"restated"}
    assert len(judge.read(text)) == len(puzzle.clues)


@pytest.mark.parametrize(
    "piece",
    ["the Rope was in ", "Miss Peach and ", "if ", "The Rope was in the Lounge. ", "A suspect motivated by ", "or "],
)
def test_linear_time(piece: str) -> None:
    started = time.perf_counter()
    JUDGE.read(piece * (500_000 // len(piece)))
    assert time.perf_counter() - started < 200
