"""Concepts of derivations, with steps worked by hand, and puzzles that are directed by them."""

import random
from collections import Counter

import pytest

from artifacts.errors import BadInputError
from stages.environments.temporal_clue.config import ConceptConfig, PuzzleConfig
from stages.environments.temporal_clue.formal import At, FormalPuzzle, MurderedBy, MurderedIn, Ref, SameRoom, Scenario
from stages.environments.temporal_clue.generation import directed
from stages.environments.temporal_clue.generation.directed import co_occurrence, draw_concepts, generate_directed
from stages.environments.temporal_clue.proofs.concepts import Concepts, concepts_of
from stages.environments.temporal_clue.proofs.propagation import Propagation
from stages.environments.temporal_clue.proofs.solver import rules
from stages.environments.temporal_clue.proofs.steps import ProofStep
from tests.support.concept_proofs import entropy, prove

BOARD = PuzzleConfig(
    suspects=(3, 3), weapons=(2, 2), rooms=(3, 3), connectives=False, referents=False, fixed_cast=True,
    fixed_rooms=True, questions="placements",
)  # fmt: skip
THREE = Scenario(("A", "B", "C"), ("Knife", "Rope"), ("Hall", "Study", "Library"), columns=3)
A, B, C = (Ref("suspect", index) for index in range(3))


def of(clues: list[At | SameRoom | MurderedIn], statement: MurderedBy) -> Concepts:
    return concepts_of(FormalPuzzle(THREE, tuple(clues), ()), [ProofStep(statement, tuple(range(len(clues))), ())])


def test_who_was_elsewhere_did_not_do_it() -> None:
    """Two suspects were in other rooms, so the third is left, because the murderer was at the scene."""
    concepts = of([MurderedIn(0), At(A, 1), At(B, 2)], MurderedBy(C))
    assert concepts == Concepts(frozenset({"MurderedIn", "At", "scene", "elimination"}), steps=1, case_splits=0)


def test_two_that_were_together_need_a_case_each() -> None:
    """If one of them did it, the other would have been there too; propagation alone assumes nothing."""
    concepts = of([SameRoom(A, B)], MurderedBy(C))
    used = frozenset({"SameRoom", "scene", "alone", "elimination", "case_split"})
    assert concepts == Concepts(used, steps=1, case_splits=1)


def test_a_step_that_restates_a_clue_counts_for_nothing() -> None:
    puzzle = FormalPuzzle(THREE, (At(A, 1),), ())
    assert concepts_of(puzzle, [ProofStep(At(A, 1), (0,), ())]) == Concepts(frozenset(), 0, 0)


def test_a_step_that_does_not_follow_is_refused() -> None:
    with pytest.raises(ValueError, match="step 1 does not follow"):
        of([At(A, 1)], MurderedBy(C))


def test_propagation_follows_clauses_and_groups() -> None:
    encoding = rules(THREE.shape).copy()
    at = [encoding.at[piece][0] for piece in range(3)]
    same = encoding.literal(SameRoom(A, B))
    closure = Propagation(encoding.model.proto).closure([same, at[0][1]])
    assert at[1][1] in closure
    assert ~at[1][0] in closure
    assert not {at[2][0], at[2][1]} & closure


def test_concepts_are_drawn_by_share_and_then_by_how_often_they_occur_together() -> None:
    names = ["a", "b", "c"]
    shares = {one: dict.fromkeys(names, 0.0) for one in names}
    shares["a"]["a"] = 1.0
    shares["b"]["a"] = 0.2 * 1.0  # e times as likely as c after a: softmax of 1 and 0 is .731 and .269
    rng = random.Random(0)
    drawn = Counter(draw_concepts(2, names, shares, rng) for _ in range(4000))
    assert drawn[frozenset("ab")] / 4000 == pytest.approx(0.731, abs=0.025)
    assert drawn[frozenset("bc")] < 40
    assert draw_concepts(5, names, shares, rng) == frozenset(names)


def test_large_scores_do_not_overflow() -> None:
    shares = {one: dict.fromkeys("ab", 1e6) for one in "ab"}
    assert draw_concepts(2, "ab", shares, random.Random(0)) == frozenset("ab")


def test_the_stored_table_is_symmetric_and_of_shares() -> None:
    table = co_occurrence()
    assert set(table) == set(PuzzleConfig(times=(1, 2), motives=(0, 3)).possible_concepts)
    for one, row in table.items():
        assert set(row) == set(table)
        assert all(0 <= share <= 1 for share in row.values())
        assert all(table[other][one] == share for other, share in row.items())


@pytest.mark.parametrize("seed", range(4))
def test_a_directed_puzzle_is_unique_minimal_and_uses_what_was_asked(seed: int) -> None:
    concepts = ConceptConfig(count=(3, 3), case_splits=(2, 9), steps=(4, 9))
    config = BOARD.model_copy(update={"concepts": concepts})
    proof = prove(config, seed)
    assert proof.unique and proof.minimal and proof.uses_all and proof.level
    assert len(proof.asked) == 3
    made = generate_directed(config, concepts, seed)
    assert 2 <= made.concepts.case_splits <= 9
    assert 4 <= made.concepts.steps <= 9


def test_only_named_concepts_are_asked_for() -> None:
    concepts = ConceptConfig(count=(2, 2), among=("Beside", "case_split"))
    assert generate_directed(BOARD, concepts, 1).asked == {"Beside", "case_split"}


def test_a_level_that_no_puzzle_has_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directed, "ROUNDS", 1)
    with pytest.raises(BadInputError, match=r"puzzles\.puzzle\.concepts: no such puzzle in 12 attempts"):
        generate_directed(BOARD, ConceptConfig(steps=(500, 600)), 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"among": ["Moved"], "count": [1, 1]}, "'Moved' occurs in no puzzle of these sizes"),
        ({"among": ["At"]}, "count: 3 concepts of the 1 in among"),
        ({"steps": [5, 4]}, "steps: found 5 to 4, expected the smaller number first"),
        ({"among": ["case_split"], "count": [1, 1], "case_splits": [0, 0]}, "case_splits: at most 0"),
    ],
)
def test_concepts_that_cannot_be_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PuzzleConfig.model_validate({**BOARD.model_dump(), "concepts": changes})


def test_entropy_of_four_equal_sets_is_two_bits() -> None:
    assert entropy(frozenset(name) for name in "abcd") == pytest.approx(2.0)
