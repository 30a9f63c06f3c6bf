"""Both graders on strings with hand-counted grades, and on any text at all."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.environments import environment
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.logic_puzzles.grading import answer_ends, grade
from stages.environments.published import read_puzzles
from tests.support.puzzle_cases import FIVE_LETTERS, VAL

PERFECT = "A. Miss Peach\nB. Rope\nC. Lounge\nD. 11:30 PM\nE. Fear"
REST = "\nB. Rope\nC. Lounge\nD. 11:30 PM\nE. Fear"

TEN_STRINGS = {
    "perfect": (PERFECT, 0.8, 1.0),
    "case and spaces": ("A. miss PEACH  \nB.   ROPE\nC.  lounge\nD. 11:30 pm\nE. fear ", 0.8, 1.0),
    "final dot": ("A. Miss Peach." + REST, 0.6, 1.0),
    "bold": ("**A.** Miss Peach\n**B. Rope**\nC. Lounge\nD. 11:30 PM\nE. Fear", 0.6, 1.0),
    "parenthesis": ("A. Miss Peach (x)" + REST, 0.8, 1.0),
    "dash": ("A. Miss Peach - x" + REST, 0.6, 1.0),
    "later answer wins": ("A. Miss Peach\nB. Rope\nC. Lounge\nE. Fear\nA. Miss Scarlet", 0.6, 0.6),
    "colons": ("A: Miss Peach\nB: Rope\nC: Lounge\nD: 11:30 PM\nE: Fear", 0.0, 1.0),
    "empty": ("", 0.0, 0.0),
    "one line": ("A. Miss Peach B. Rope C. Lounge", 0.2, 0.6),
}


@pytest.mark.parametrize("name", TEN_STRINGS)
def test_ten_strings(name: str) -> None:
    text, published, strict = TEN_STRINGS[name]
    assert grade(text, FIVE_LETTERS, "published").accuracy == pytest.approx(published)
    assert grade(text, FIVE_LETTERS, "strict").accuracy == pytest.approx(strict)
    assert grade(text, FIVE_LETTERS, "strict").exact == (strict == 1.0)


@pytest.mark.parametrize(
    ("answer", "value", "note"),
    [
        ("A. **Miss Peach**", "Miss Peach", ""),
        ("- A. the Miss Peach!", "Miss Peach", ""),
        ("A) Miss Peach", "Miss Peach", ""),
        ("A. Miss Peach, because of the rope", "Miss Peach", ""),
        ("A. \\boxed{Miss Peach}", "Miss Peach", ""),
        ("A. $\\textbf{Miss Peach}$", "Miss Peach", ""),
        ("A. Mr. Boddy", None, "outside"),
        ("A. Rope", None, "outside"),
        ("A. Miss Peachy", None, "outside"),
        ("A. Miss Peach or Miss Scarlet", None, "ambiguous"),
        ("A. Miss Scarlet", "Miss Scarlet", ""),
        ("CSA. Miss Peach", None, "missing"),
        ("a. Miss Peach", None, "missing"),
        ("A. Miss Peach\nThe end. A. ", "Miss Peach", ""),
        ("A. Miss Peach\nA. nobody at all", None, "outside"),
    ],
)
def test_strict_reads_as_a_person_would(answer: str, value: str | None, note: str) -> None:
    parsed = grade(answer, FIVE_LETTERS, "strict").answers["A"]
    assert (parsed.value, parsed.note, parsed.correct) == (value, note, value == "Miss Peach")


@pytest.mark.parametrize(
    ("answer", "right"), [("Mr. Green", "Mr. Green"), ("Mr Green", "Mr. Green"), ("SGT gray", "Sgt. Gray")]
)
def test_strict_reads_a_title_without_its_dot(answer: str, right: str) -> None:
    puzzle = read_puzzles(VAL)[0]
    puzzle = replace(puzzle, solution={**puzzle.solution, "A": right})
    assert grade(f"A. {answer}", puzzle, "strict").answers["A"].correct


@pytest.mark.parametrize(
    "answer",
    [
        "A. Miss Peach, because Miss Scarlet was in the Hall",
        "A. Miss Peach (Miss Scarlet was in the Hall)",
        "A. Miss Peach - Miss Scarlet has an alibi",
        "A. Miss Peach is the murderer, because Miss Scarlet was in the Hall",
        "A. Miss Peach, not Miss Scarlet",
        "A. Miss Peach and not Miss Scarlet",
        "A. Miss Peach. It could not be Miss Scarlet",
        "A. SUSPECT: Miss Peach",
        "**A. SUSPECT** Miss Peach",
        "A. SUSPECT (Miss Peach)",
        "A. The murderer is Miss Peach",
        "A. The murderer must be **Miss Peach**, since Miss Scarlet was in the Hall",
        "A. Mr. Boddy was murdered by Miss Peach.",
        "A. Answer: Miss Peach",
    ],
)
def test_strict_takes_the_one_answer_of_a_sentence(answer: str) -> None:
    parsed = grade(answer, FIVE_LETTERS).answers["A"]
    assert (parsed.value, parsed.note, parsed.correct) == ("Miss Peach", "", True)


@pytest.mark.parametrize(
    "answer",
    [
        "Miss Peach or Miss Scarlet, because of the rope",
        "Miss Peach and Miss Scarlet",
        "Miss Peach/Miss Scarlet",
        "Miss Peach, Miss Scarlet",
        "Miss Peach Miss Scarlet",
        "Miss Peach (or maybe Miss Scarlet)",
        "Miss Peach, but it might be Miss Scarlet",
        "either Miss Peach or Miss Scarlet",
        "Either Miss Peach",
        "EITHER Miss Peach",
        "The murderer is Miss Peach or Miss Scarlet",
        "SUSPECT: Miss Peach / Miss Scarlet",
        "The murderer is not Miss Peach",
        "The murderer isn't known: Miss Peach",
        "If the murderer is Miss Peach",
        "Neither Miss Scarlet nor Miss Peach",
        "Perhaps it was Miss Peach",
        "Miss Scarlet is innocent: Miss Peach",
        "Miss Scarlet was in the Hall, so Miss Peach",
    ],
)
def test_strict_rewards_no_hedge_and_no_denial(answer: str) -> None:
    parsed = grade(f"A. {answer}", FIVE_LETTERS).answers["A"]
    assert (parsed.value, parsed.correct) == (None, False)
    assert parsed.note in ("ambiguous", "outside")


def test_strict_reads_other_types_in_sentences() -> None:
    text = "B. It was done with the Rope\nC. ROOM: at the Lounge (Miss Scarlet was in the Hall)\nE. Fear - not Greed"
    answers = grade(text, FIVE_LETTERS).answers
    assert [answers[letter].value for letter in "BCE"] == ["Rope", "Lounge", "Fear"]
    assert grade("D. It happened at 11:30 PM", FIVE_LETTERS).answers["D"].correct
    assert grade("D. The time is 11:30 p.m., since she left at 12:00 AM", FIVE_LETTERS).answers["D"].correct
    assert grade("D. 11:30 PM to 12:00 AM", FIVE_LETTERS).answers["D"].note == "ambiguous"


@given(st.sampled_from(["Miss Peach", "Miss Scarlet"]), st.text(alphabet="Rope. ,-:;*()'", max_size=40))
def test_a_plain_answer_is_the_value_it_begins_with(value: str, noise: str) -> None:
    """Whatever follows, as long as it names no other value: what a model that answers plainly gets."""
    parsed = grade(f"A. {value} {noise}", FIVE_LETTERS).answers["A"]
    assert (parsed.value, parsed.note, parsed.correct) == (value, "", value == "Miss Peach")


@pytest.mark.parametrize("clock", ["11:30 PM", "11:30pm", "11:30 p.m.", "**11:30 PM**.", "at 11:30 PM"])
def test_strict_reads_times(clock: str) -> None:
    assert grade(f"D. {clock}", FIVE_LETTERS, "strict").answers["D"].correct
    assert not grade(f"D. {clock}", FIVE_LETTERS, "published").answers["D"].correct


def test_a_leading_zero_of_a_time_does_not_matter() -> None:
    assert not grade("D. 12:00 AM", FIVE_LETTERS).answers["D"].correct
    early = replace(FIVE_LETTERS, prompt=FIVE_LETTERS.prompt.replace("11:30 PM", "01:30 AM"))
    early = replace(early, solution={**early.solution, "D": "01:30 AM"})
    assert grade("D. 1:30 AM", early).answers["D"].correct


@given(st.text(max_size=300), st.sampled_from(["strict", "published"]))
def test_any_text_has_a_grade(text: str, grader: str) -> None:
    graded = grade(text, FIVE_LETTERS, grader)  # type: ignore[arg-type]
    assert 0.0 <= graded.accuracy <= 1.0
    assert list(graded.answers) == list(FIVE_LETTERS.solution)
    assert graded.accuracy == pytest.approx(sum(a.correct for a in graded.answers.values()) / 5)


@given(st.text(max_size=200))
def test_what_stands_before_the_answers_does_not_matter(reasoning: str) -> None:
    assert grade(reasoning + "\n" + PERFECT, FIVE_LETTERS, "strict").exact


@pytest.mark.parametrize(
    "piece", ["A. ", "A.", "A. a", " ", "*", "A**", "11:30 ", "Miss Peach ", "\ud800A. ", "A. Miss Peach B. Rope "]
)
@pytest.mark.parametrize("grader", ["strict", "published"])
def test_linear_time(piece: str, grader: str) -> None:
    """Eight times the text takes about eight times as long, and a megabyte well under a second or so."""
    started = time.perf_counter()
    grade(piece * (1_000_000 // len(piece)), FIVE_LETTERS, grader)  # type: ignore[arg-type]
    assert time.perf_counter() - started < 120


def test_grades_of_perfect_answers_on_published_puzzles() -> None:
    if not VAL.exists():
        pytest.skip("shared/data/temporal-clue/val.json is absent")
    puzzles = read_puzzles(VAL)
    assert len(puzzles) == 64
    assert sum(len(p.solution) for p in puzzles) == 429
    strict = [grade(write_answer(p), p, "strict").accuracy for p in puzzles]
    published = [grade(write_answer(p), p, "published").accuracy for p in puzzles]
    assert strict == [1.0] * 64
    assert sum(published) / 64 == pytest.approx(0.9259, abs=1e-3)
    values = [environment.get("temporal_clue").answer_values(p) for p in puzzles]
    assert all(p.solution[letter] in v[letter] for p, v in zip(puzzles, values, strict=True) for letter in p.solution)


@pytest.mark.parametrize(
    ("text", "published", "strict"),
    [
        ("Well. A. Miss Peach\nB. Rope\nqx zz", 27, 27),
        ("A. Miss Peach\nD. 11:30 PM\nZ. not asked", 13, 25),  # the published rule cannot read times
        ("A. Miss Peach (sure) zq", 14, 23),  # it stops at the parenthesis, a person at the end of the line
        ("no answer", 0, 0),
        ("", 0, 0),
    ],
)
def test_where_the_last_answer_ends(text: str, published: int, strict: int) -> None:
    assert max(answer_ends(text, "ABCDE", "published").values(), default=0) == published
    assert max(answer_ends(text, "ABCDE", "strict").values(), default=0) == strict
