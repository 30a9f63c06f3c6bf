"""Graders of questions from a file: a table of verdicts worked by hand, any text at all, and linear time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.environments import environment
from stages.environments.capabilities import WritesAnswers
from stages.environments.puzzle import FILE_GRADERS, FileGrader, Puzzle
from stages.environments.question_file.environment import question_file
from stages.environments.question_file.graders import can_read, pattern_problem, read_answer, read_gold, written

PATTERN = r"(?i)result[:=]\s*([-\w.]+)"

VERDICTS: list[tuple[FileGrader, str, str, bool]] = [
    ("exact", "Paris", "Paris", True),
    ("exact", "  pARIS \n", "Paris", True),
    ("exact", "New \n York", "new york", True),
    ("exact", "Paris.", "Paris", False),
    ("exact", "It is Paris", "Paris", False),
    ("exact", "I think so.\nAnswer: Paris", "Paris", True),
    ("exact", "Answer: Rome\nAnswer: Paris", "Paris", True),
    ("exact", "Answer: Paris\nAnswer: Rome", "Paris", False),
    ("exact", "**Answer:** Paris", "Paris", True),
    ("exact", "The final answer: Paris", "Paris", True),
    ("exact", "Answer:", "Paris", False),
    ("exact", "", "Paris", False),
    ("exact", "Cafe\u0301", "Caf\u00e9", True),
    ("exact", "STRASSE", "stra\u00dfe", True),
    ("choice", "Answer: B", "B", True),
    ("choice", "Answer: B", "(b)", True),
    ("choice", "Answer: (B) Paris", "B", True),
    ("choice", "**Answer**: **B**", "B. Paris", True),
    ("choice", "Answer: B. I am sure", "B", True),
    ("choice", "Answer: I think it is C", "C", True),
    ("choice", "Answer: the letter is D", "D", True),
    ("choice", "Answer: b", "B", True),
    ("choice", "Answer: A\nNo. Answer: B", "B", True),
    ("choice", "(A) is wrong, so (C)", "C", True),
    ("choice", "(A) is wrong.\nC\n", "C", True),
    ("choice", "C\nbecause of (A)", "A", True),
    ("choice", "It is B", "B", False),
    ("choice", "Answer: Berlin", "B", False),
    ("choice", "Answer: $\\boxed{B}$", "B", True),
    ("choice", "", "B", False),
    ("number", "72", "72", True),
    ("number", "It is 48 + 24 = 72.", "72", True),
    ("number", "Answer: 1,234.0", "1234", True),
    ("number", "Answer: 1,00,000", "100000", True),
    ("number", "Answer: 1.234,5", "1234.5", True),
    ("number", "Answer: 1.234.567 people", "1234567", True),
    ("number", "Answer: 1.234", "1234", False),
    ("number", "1.234,5.678", "5.678", True),
    ("number", "1000", "1,000", True),
    ("number", "1000.0", "1,000", True),
    ("number", "1{,}000", "1000", True),
    ("number", "-0", "0", True),
    ("number", "1/2", "0.5", True),
    ("number", "\\frac{1}{2}", "0.5", True),
    ("number", "1/3", "0.3333", False),
    ("number", ".5", "1/2", True),
    ("number", "-5", "5", False),
    ("number", "\u22125", "-5", True),
    ("number", "10-3", "3", True),
    ("number", "$18", "18", True),
    ("number", "-$18.50", "-18.5", True),
    ("number", "50%", "50", True),
    ("number", "1e3", "1000", True),
    ("number", "18 m^2", "18", True),
    ("number", "18 m^{2}", "2", False),
    ("number", "18 cm2", "18", True),
    ("number", "USD200", "200", True),
    ("number", "3 1/2", "3.5", True),
    ("number", "3 1/2", "0.5", False),
    ("number", "-3\\frac{1}{2}", "-7/2", True),
    ("number", "\\frac12", "0.5", True),
    ("number", "in 2 of 3/4", "0.75", True),
    ("number", "1, 1/2", "0.5", True),
    ("number", "Answer: 5\nThat took 3 steps", "3", True),
    ("number", "5 apples. Answer: none", "5", False),
    ("number", "5/0", "5", False),
    ("number", "9" * 5000, "9", False),
    ("number", "72", "48 + 24 is it.\n#### 72", True),
    ("number", "Answer: 10^6", "1000000", True),
    ("number", "Answer: 10^6", "6", False),
    ("number", "Answer: $10^{-2}$", "0.01", True),
    ("number", "Answer: 2**10", "1024", True),
    ("number", "Answer: -2^2", "-4", True),
    ("number", "Answer: 3 x 10^5", "300000", True),
    ("number", "Answer: 3×10^5", "3e5", True),
    ("number", "Answer: 1.5 \\times 10^{-3}", "0.0015", True),
    ("number", "Answer: 1 000 000", "1000000", True),
    ("number", "Answer: 10 000", "10,000", True),
    ("number", "Answer: 1\u202f234,", "1234", True),
    ("number", "Answer: 1\\,234.5", "1234.5", True),
    ("number", "5 100", "100", True),
    ("number", "10 0000", "0", True),
    ("number", "x^10", "0", False),
    ("number", "9^999", "9", False),
    ("number", "0^{-1}", "0", False),
    ("number", "no number", "0", False),
    ("number", "", "0", False),
    ("boxed", "\\boxed{5}", "5", True),
    ("boxed", "\\boxed{4} and \\boxed{5}", "5", True),
    ("boxed", "\\boxed{5} and \\boxed{4}", "5", False),
    ("boxed", "\\boxed{\\boxed{5}}", "5", True),
    ("boxed", "$\\boxed{\\frac{1}{2}}$", "0.5", True),
    ("boxed", "\\boxed{x^{2}+\\sqrt{y}}", "x^{2}+\\sqrt{y}", True),
    ("boxed", "\\boxed{x  + 1}", "x + 1", True),
    ("boxed", "\\boxed{X}", "x", False),
    ("boxed", "\\boxed{1,000}", "\\boxed{1000.0}", True),
    ("boxed", "\\boxed{5\\%}", "5", True),
    ("boxed", "\\boxed{5 apples}", "5", False),
    ("boxed", "\\boxed{\\{1, 2\\}}", "\\{1, 2\\}", True),
    ("boxed", "{ \\boxed{5}", "5", True),
    ("boxed", "\\boxed{5", "5", False),
    ("boxed", "\\boxed{}", "5", False),
    ("boxed", "5", "5", False),
    ("regex", "result: 7 then RESULT=8", "8", True),
    ("regex", "result: 7 then RESULT=8", "7", False),
    ("regex", "Result: Blue", "blue", True),
    ("exact", "**Answer: Paris**", "Paris", True),
    ("exact", "Answer: *", "*", True),
    ("choice", "Answer: **b**", "B", True),
    ("choice", "Answer: 'B'", "B", True),
    ("choice", "Answer: I'm sure it is C", "C", True),
    ("regex", "8", "8", False),
    ("regex", "result: 8" + " " * 2000, "8", False),
    ("regex", "", "8", False),
]


def question(grader: FileGrader, gold: str) -> Puzzle:
    name = f"file:{grader}" + (f":{PATTERN}" if grader == "regex" else "")
    return Puzzle("1", name, "?", {"answer": gold}, 0, None, "d", {})


@pytest.mark.parametrize(("grader", "text", "gold", "right"), VERDICTS)
def test_verdicts(grader: FileGrader, text: str, gold: str, right: bool) -> None:
    puzzle = question(grader, gold)
    family = environment.get(puzzle.environment)
    graded = family.grade(text, puzzle)
    assert (graded.accuracy, graded.exact, graded.answers["answer"].correct) == (float(right), right, right)


def test_there_are_enough_verdicts_of_every_grader() -> None:
    assert len(VERDICTS) >= 60
    assert {grader for grader, *_ in VERDICTS} == set(FILE_GRADERS)


@pytest.mark.parametrize(
    ("grader", "gold"),
    [("number", "Paris"), ("number", "1/0"), ("choice", "Paris"), ("choice", "Vitamin C"), ("choice", ""),
     ("exact", "Answer:"), ("boxed", "{"), ("boxed", "\\boxed{}"), ("number", "")],
)  # fmt: skip
def test_right_answers_that_no_completion_could_give(grader: FileGrader, gold: str) -> None:
    family = question_file(f"file:{grader}")
    assert not can_read(gold, grader)
    graded = family.grade(gold, question(grader, gold))
    assert graded.accuracy == 0.0


@pytest.mark.parametrize(
    ("grader", "gold", "expected"),
    [("number", "so it is\n#### 72", "Answer: 72"), ("choice", "(b)", "Answer: B"),
     ("exact", " Paris ", "Answer: Paris"), ("boxed", "\\frac{1}{2}", "\\boxed{\\frac{1}{2}}"), ("regex", "8", "8")],
)  # fmt: skip
def test_written_answers_are_read_as_right(grader: FileGrader, gold: str, expected: str) -> None:
    puzzle = question(grader, gold)
    family = environment.get(puzzle.environment)
    assert written(gold, grader) == expected
    assert isinstance(family, WritesAnswers) == family.grade(expected, puzzle).exact == (grader != "regex")


def test_a_grade_keeps_the_start_of_a_long_answer() -> None:
    text = "long " * 1000
    graded = environment.get("file:exact").grade(text, question("exact", text))
    assert graded.exact
    assert graded.answers["answer"].text == text[:200]


@pytest.mark.parametrize("grader", FILE_GRADERS)
def test_answers_end_where_they_are_read(grader: FileGrader) -> None:
    said = {"choice": "B", "boxed": "\\boxed{5}", "regex": "result: 5"}.get(grader, "Answer: 5")
    puzzle = question(grader, "B" if grader == "choice" else "5")
    family = environment.get(puzzle.environment)
    assert family.answer_ends(said, puzzle) == {"answer": len(said)}
    assert family.answer_ends(f"{said}\n\n", puzzle) == {"answer": len(said)}
    assert family.answer_ends("", puzzle) == {}


@given(st.text(st.sampled_from("1a,-/.$%{}\\ \n:()AB*") | st.characters(), max_size=60), st.sampled_from(FILE_GRADERS))
def test_any_text_has_a_grade(text: str, grader: FileGrader) -> None:
    graded = environment.get(question(grader, "5").environment).grade(text, question(grader, "5"))
    assert graded.accuracy in (0.0, 1.0)
    ends = environment.get(question(grader, "5").environment).answer_ends(text, question(grader, "5"))
    assert all(0 <= end <= len(text) for end in ends.values())
    read_gold(text, grader)


@pytest.mark.parametrize("grader", FILE_GRADERS)
def test_long_texts_are_read(grader: FileGrader) -> None:
    """In quadratic time this test would take many minutes."""
    pieces = (
        "1", "1,111", "1,", "-", "{", "}", "\\boxed{", "$", " ", "(A)", "A ", "Answer:", "a", "\n", "*", "\\frac{1",
        "1/", "I ", "result: 1 ",
    )  # fmt: skip
    for piece in pieces:
        text = piece * (100_000 // len(piece))
        read_answer(text, grader, r"(a.*[bc])|(a)|((\w+\s*)+$)")
        read_answer(f"\\boxed{{{text}}}", grader, PATTERN)
        read_gold(text, grader)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [("(", "unclosed"), ("a", "no group"), ("(?<=a)(b)", "look-around"), (r"(a)\1", "backreferences"),
     ("(a{1000}){1000}{100}", "size limit"), ("(a+)+b", "")],
)  # fmt: skip
def test_patterns_that_cannot_be_used(pattern: str, problem: str) -> None:
    message = pattern_problem(pattern)
    assert problem in message
    assert bool(message) == bool(problem)


@pytest.mark.parametrize(
    ("answer", "readable"),
    [
        ("72", True), ("72 apples", True), ("$5", True), ("7/2", True), ("7 (approx. 7.0)", True), ("1,000,000", True),
        ("48 + 24 = <<48+24=72>>72\n#### 72", True), ("From 3 and 4. Answer: 7", True),
        ("3 1/2", True), ("5 m^2", True),
        ("3 1/2 or 4", False), ("1 000 000", True), ("1 000", True), ("5 100", False),
            ("12,5", False), ("10^6", True),
            ("x^10", False),
            ("10:30", False),
        ("x = 5, y = 2", False), ("#### 3 or 4", False), ("seven", False),
    ],
)  # fmt: skip
def test_a_right_answer_is_one_number(answer: str, readable: bool) -> None:
    """The last of several numbers would be taken for the answer, and wrong completions rewarded."""
    assert can_read(answer, "number") == readable
