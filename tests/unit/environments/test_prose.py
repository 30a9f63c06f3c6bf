"""The reader of statements on free prose whose statements are labelled by hand."""

from pathlib import Path

import pytest

from tests.support.prose_labels import VAL, labelled_answers, measure_reader


def test_a_hundred_statements_of_ten_answers_are_labelled() -> None:
    answers = labelled_answers()
    assert len(answers) == 10 and len({answer.style for answer in answers}) == 10
    assert sum(len(answer.statements) for answer in answers) >= 100
    for answer in answers:
        assert not any(mark in answer.text for mark in ("{{", "}}", "||")), answer.name
        ends = [0, *(label.end for label in answer.labels)]
        assert all(label.start >= end for label, end in zip(answer.labels, ends, strict=False)), answer.name
        assert {label.verdict for label in answer.statements} <= {"proved", "restated", "open", "contradicted"}


def test_the_reader_invents_little_and_reads_half_of_free_prose() -> None:
    """What it reads it reads right; what it misses is listed by `python -m tests.benchmarks.study`."""
    if not Path(VAL).exists():
        pytest.skip(f"{VAL} is not on this machine: the published puzzles are not part of the repository")
    measured = measure_reader()
    assert [line for row in measured["by_answer"] for line in row["disagreeing"]] == []
    assert measured["verdicts_agree"] == 1.0
    assert measured["precision"] >= 0.95
    assert measured["recall"] >= 0.55
