"""Corruptions of texts: each does what its name says, and nothing else."""

import random

import pytest

from artifacts.errors import BadInputError
from stages.environments import environment
from stages.environments.corruption import (
    CorruptionConfig,
    CorruptionKind,
    SteppedText,
    corrupted,
    lengthened,
    misanswered,
    renamed,
    shortened,
    shuffled,
)
from stages.environments.generate import TIERS, ZebraConfig, generate
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.puzzle import Puzzle
from stages.environments.single_answer import single_item
from stages.environments.tables import count_deductions, taught_passages, to_table

STEPS = ("a", "b", "c", "d", "e", "f")
MARKS = ("<think>", "</think>")
ANY = range(20)


def stepped(*lines: str) -> SteppedText:
    return SteppedText(lines, "", MARKS)


@pytest.fixture(scope="module")
def texts() -> list[tuple[str, Puzzle]]:
    puzzles = [generate(TIERS["reduced"], seed) for seed in range(4)]
    return [("".join(p.text for p in parts), puzzle)
            for parts, puzzle in zip(taught_passages(to_table(puzzles), "cited"), puzzles, strict=True)]  # fmt: skip


def test_a_text_is_divided_at_the_line_of_its_first_answer() -> None:
    text = "one\n\ntwo A. not this\nthree\n\nA. Hall\nB. Knife"
    divided = SteppedText.of(text, {"A": text.index("Hall") + 4, "B": len(text)})
    assert divided == SteppedText(("one", "two A. not this", "three"), "A. Hall\nB. Knife")
    assert str(divided) == "one\ntwo A. not this\nthree\n\nA. Hall\nB. Knife"
    assert SteppedText.of("one\ntwo", {}) == SteppedText(("one", "two"), "")
    assert SteppedText.of("A. Hall", {"A": 7}) == SteppedText((), "A. Hall")
    thought = SteppedText.of("<think>\none\n</think>A. Hall\nB. Knife", {"A": 26, "B": 35}, MARKS)
    assert thought == SteppedText(("<think>", "one", "</think>"), "A. Hall\nB. Knife", MARKS)
    assert thought.steps == ("one",)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_shuffled_steps_are_the_same_steps_and_each_chosen_one_moves(share: float) -> None:
    for seed in ANY:
        result = shuffled(stepped(*STEPS), share, random.Random(seed)).lines
        assert sorted(result) == sorted(STEPS)
        assert sum(a != b for a, b in zip(result, STEPS, strict=True)) == share * len(STEPS)
    assert shuffled(stepped("a"), 1.0, random.Random(0)).lines == ("a",)


def test_deleted_steps_are_a_third_and_the_others_keep_their_order() -> None:
    for seed in ANY:
        result = shortened(stepped(*STEPS), 1 / 3, random.Random(seed)).lines
        assert len(result) == 4
        assert list(result) == sorted(result)
    assert shortened(stepped(*STEPS), 1.0, random.Random(0)).lines == ()
    assert len({shortened(stepped(*STEPS), 1 / 3, random.Random(seed)).lines for seed in ANY}) > 5


def test_inserted_steps_are_those_of_others_between_ones_own() -> None:
    for seed in ANY:
        result = lengthened(stepped(*STEPS), 0.5, ["x", "y", "z", "u"], random.Random(seed)).lines
        assert len(result) == 9
        assert [step for step in result if step in STEPS] == list(STEPS)
        assert len({step for step in result if step not in STEPS}) == 3
    assert sorted(lengthened(stepped(*STEPS), 1.0, ["x"], random.Random(0)).lines) == [*STEPS, "x"]


def test_wrong_answers_are_other_values_and_only_as_many_as_asked_for() -> None:
    solution = {"A": "Hall", "B": "Knife", "C": "Hall", "D": "only"}
    values = {"A": ("Hall", "Attic"), "B": ("Knife", "Rope", "Gun"), "C": ("Hall", "Attic"), "D": ("only",)}
    for seed in ANY:
        wrong = misanswered(solution, values, 1.0, random.Random(seed))
        assert (wrong["A"], wrong["C"], wrong["D"]) == ("Attic", "Attic", "only")
        assert wrong["B"] in ("Rope", "Gun")
        half = misanswered({**solution, "D": "Hall"}, {**values, "D": ("Hall", "Attic")}, 0.5, random.Random(seed))
        assert sum(half[letter] != right for letter, right in {**solution, "D": "Hall"}.items()) == 2


def test_names_are_swapped_with_their_kind_everywhere_at_once_and_as_whole_words() -> None:
    text = "Mr. Green met Peach in the Hall; Peachy; Mr. Green left."
    swapped = "Peach met Mr. Green in the Attic; Peachy; Peach left."
    for seed in ANY:
        kinds = [("Mr. Green", "Peach"), ("Hall", "Attic"), ("Knife",)]
        assert renamed(text, kinds, 1.0, random.Random(seed)) == swapped
    assert renamed(text, [("Mr. Green", "Peach")], 0.0, random.Random(0)) == text
    assert renamed("a b c", [("a", "b", "c")], 1.0, random.Random(0)) in ("b c a", "c a b")


@pytest.mark.parametrize(
    ("kind", "share", "exact", "same_steps"),
    [
        ("shuffle_steps", 1.0, True, True),
        ("delete_steps", 0.33, True, False),
        ("insert_steps", 0.33, True, False),
        ("wrong_answers", 1.0, False, True),
        ("swap_names", 1.0, False, False),
    ],
)
def test_what_a_corruption_leaves_of_derivations(
    texts: list[tuple[str, Puzzle]], kind: CorruptionKind, share: float, exact: bool, same_steps: bool
) -> None:
    seeds = [f"7/{number}" for number in range(len(texts))]
    config = CorruptionConfig(kind=kind, share=share)
    first = corrupted(texts, config, seeds)
    assert first == corrupted(texts, config, seeds)
    for text, (clean, puzzle) in zip(first, texts, strict=True):
        assert text != clean
        family = environment.get(puzzle.environment)
        assert family.grade(text, puzzle).exact == exact
        assert family.grade(clean, puzzle).exact
        steps, own = text.split("\n\n")[0].splitlines(), clean.split("\n\n")[0].splitlines()
        assert (sorted(steps) == sorted(own)) == same_steps
        counts = count_deductions(text, puzzle)
        assert counts is not None
        if kind in ("shuffle_steps", "delete_steps", "wrong_answers"):
            assert counts.contradicted == 0
    assert len(first[0].splitlines()) - len(texts[0][0].splitlines()) == {"delete_steps": -2, "insert_steps": 2}.get(
        kind, 0
    )


@pytest.mark.parametrize("kind", ["shuffle_steps", "delete_steps", "insert_steps", "wrong_answers"])
def test_a_thought_begins_and_ends_where_it_did_and_the_answers_are_read(
    texts: list[tuple[str, Puzzle]], kind: CorruptionKind
) -> None:
    """Its marks stand on lines of their own, or its end before the first answer."""
    for opening, closing in (("<think>\n", "\n</think>\n\n"), ("<think>\n", "\n</think> ")):
        thoughts: list[tuple[str, Puzzle]] = []
        for text, puzzle in texts:
            steps, answers = text.split("\n\n")
            thoughts.append((f"{opening}{steps}{closing}{answers}", puzzle))
        for seed in range(5):
            config = CorruptionConfig(kind=kind, share=0.9)
            results = corrupted(thoughts, config, [f"{seed}/{number}" for number in range(len(texts))])
            for text, (clean, puzzle) in zip(results, thoughts, strict=True):
                assert text != clean
                assert text.startswith("<think>\n") and text.count("<think>") == text.count("</think>") == 1
                graded = environment.get(puzzle.environment).grade(text.partition("</think>")[2], puzzle)
                assert graded.exact == (kind != "wrong_answers")
                assert all(answer.text for answer in graded.answers.values())


def test_zebra_names_stay_in_their_kind() -> None:
    puzzle = generate(ZebraConfig(), 1)
    (text,) = corrupted([(write_answer(puzzle), puzzle)], CorruptionConfig(kind="swap_names"), ["0"])
    values = environment.get(puzzle.environment).answer_values(puzzle)  # pyright: ignore[reportAttributeAccessIssue]
    assert text != write_answer(puzzle)
    for letter, line in zip(puzzle.solution, text.splitlines(), strict=True):
        assert line.removeprefix(f"{letter}. ") in values[letter]


def test_an_environment_that_lists_no_values_is_refused() -> None:
    puzzle = single_item("p", "maths:last_box:0.9.0", "What is 1 + 1?", {"answer": "2"})
    with pytest.raises(BadInputError, match=r"corruption\.kind = 'wrong_answers': the environment 'maths' cannot list"):
        corrupted([(r"\boxed{2}", puzzle)], CorruptionConfig(kind="wrong_answers"), ["0"])
