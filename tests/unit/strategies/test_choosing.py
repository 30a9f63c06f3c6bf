"""Votes, scores and figures of k samples, against numbers worked by hand and against all choices of k samples."""

import itertools
import json
from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest

from artifacts.schemas import LOGPROB
from stages.statistics.estimates import estimate_mean
from stages.strategies.choosing import best_at, elected, majority_of_answers, majority_of_letters, read_votes, sizes
from stages.strategies.figures import CEILING, sample_figures

SOLUTION = {"A": "hall", "B": "rope"}
Given = tuple[str | None, str | None]


def results_of(
    puzzles: Sequence[Sequence[Given]],
    logprobs: Sequence[Sequence[float]] | None = None,
    statements: Sequence[Sequence[tuple[int, int]]] | None = None,
) -> pl.DataFrame:
    """Sampled answers to two questions, of 10 tokens each.

    Args:
        puzzles: The answers to both questions of each sample of each puzzle.
        logprobs: Log-probability of each sample.
        statements: Numbers of proved and of contradicted statements of each sample.
    """
    rows = []
    for number, samples in enumerate(puzzles):
        for sample, given in enumerate(samples):
            right = [value == SOLUTION[letter] for letter, value in zip("AB", given, strict=True)]
            answers = {
                letter: {"text": value, "value": value, "correct": correct, "note": "" if value else "missing"}
                for letter, value, correct in zip("AB", given, right, strict=True)
            }
            proved, contradicted = statements[number][sample] if statements else (0, 0)
            rows.append(
                {
                    "prompt_id": f"p{number}", "mode": "sampled", "sample": sample, "accuracy": sum(right) / 2,
                    "exact": all(right), "finish_reason": "stop", "completion_tokens": 10, "text": "",
                    "answers": json.dumps(answers), "statements": proved + contradicted, "proved": proved,
                    "contradicted": contradicted, LOGPROB: logprobs[number][sample] if logprobs else 0.0,
                }
            )  # fmt: skip
    return pl.DataFrame(rows)


def samples_of(results: pl.DataFrame) -> pl.DataFrame:
    return results.with_columns(pl.col(LOGPROB).alias("score"), pl.col("exact").cast(pl.Float64))


def test_best_of_k_by_hand() -> None:
    values, scores = np.array([[0.0, 1.0, 0.5]]), np.array([[1.0, 3.0, 2.0]])
    assert best_at(values, scores, 1) == pytest.approx([0.5])  # any of the three
    assert best_at(values, scores, 2) == pytest.approx([1.0 * 2 / 3 + 0.5 * 1 / 3])  # the best one is in two of three
    assert best_at(values, scores, 3) == pytest.approx([1.0])
    with pytest.raises(ValueError, match="the best of 4 of 3 samples"):
        best_at(values, scores, 4)


def test_best_of_k_is_the_mean_over_all_choices() -> None:
    draw = np.random.default_rng(3)
    values, scores = draw.random((5, 7)), draw.permuted(np.tile(np.arange(7.0), (5, 1)), axis=1)
    for k in range(1, 8):
        means = [
            np.mean(
                [values[p][max(chosen, key=lambda i: scores[p][i])] for chosen in itertools.combinations(range(7), k)]
            )
            for p in range(5)
        ]
        assert best_at(values, scores, k) == pytest.approx(means)


def test_sizes() -> None:
    assert [sizes(count) for count in (1, 2, 6, 16)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8, 16]]


@pytest.mark.parametrize(
    ("values", "scores", "winner"),
    [
        (["x", "y", "y"], [0, -9, -9], "y"),  # two votes beat one
        (["x", "y", "y", "x"], [-1, -3, -2, -2], "x"),  # equal votes: means of -1.5 and -2.5
        (["y", "x", "x", "y"], [-2, -2, -2, -2], "y"),  # equal votes and scores: the first
        ([None, None, "x"], [0, 0, -9], "x"),  # nothing is no vote
    ],
)
def test_votes_by_hand(values: list[str | None], scores: list[float], winner: str) -> None:
    votes = pl.DataFrame(
        {"prompt_id": "p", "sample": range(len(values)), "value": values, "score": [float(score) for score in scores]}
    )
    chosen = elected(votes, ["prompt_id"])
    assert chosen["value"].to_list() == [winner]
    assert chosen["sample"].to_list() == [values.index(winner)]


def test_letters_may_mix_what_whole_answers_keep_together() -> None:
    # A: hall twice, B: rope twice; together they are the solution, which no sample gives. Whole answers: one vote each.
    results = results_of([[("hall", "axe"), ("hall", "knife"), ("study", "rope"), ("attic", "rope")]])
    samples, votes = samples_of(results), read_votes(results)
    letters = majority_of_letters(samples, votes, 4)
    assert letters.select("accuracy", "exact").rows() == [(1.0, 1.0)]
    assert majority_of_answers(samples, votes, 4).select("accuracy", "exact").rows() == [(0.5, 0.0)]


def test_whole_answers_beat_a_mixture() -> None:
    # The solution twice, other answers once each; but study has three votes as the answer to A alone.
    given: list[Given] = [("hall", "rope"), ("hall", "rope"), ("study", "axe"), ("study", "knife"), ("study", "pipe")]
    results = results_of([given])
    samples, votes = samples_of(results), read_votes(results)
    assert majority_of_answers(samples, votes, 5).select("accuracy", "exact").rows() == [(1.0, 1.0)]
    assert majority_of_letters(samples, votes, 5).select("accuracy", "exact").rows() == [(0.5, 0.0)]


def test_blocks_of_k_samples() -> None:
    # Blocks of two of five samples: (right, right), (wrong, wrong); the fifth is left over.
    given: list[Given] = [("hall", "rope"), ("hall", "rope"), ("study", "axe"), ("study", "axe"), ("hall", "rope")]
    results = results_of([given])
    samples, votes = samples_of(results), read_votes(results)
    for majority in (majority_of_answers, majority_of_letters):
        assert majority(samples, votes, 2).select("accuracy", "exact").rows() == [(0.5, 0.5)]
        assert majority(samples, votes, 1).select("accuracy").rows() == [(pytest.approx(0.6),)]


def test_samples_without_an_answer_do_not_vote() -> None:
    nothing: Given = (None, None)
    results = results_of([[nothing, nothing, ("hall", None)], [nothing, nothing, nothing]])
    samples, votes = samples_of(results), read_votes(results)
    assert majority_of_answers(samples, votes, 3)["accuracy"].to_list() == [0.5, 0.0]
    assert majority_of_letters(samples, votes, 3)["accuracy"].to_list() == [0.5, 0.0]


def test_any_sample_answers_if_no_answer_was_read() -> None:
    """The code of a user gives scores, but says not what was answered: voting is no better than one sample."""
    results = results_of([[("hall", "rope"), ("study", "axe")], [("study", "axe"), ("hall", "rope")]])
    samples, votes = samples_of(results), read_votes(results).with_columns(value=pl.lit(None, pl.String))
    for majority in (majority_of_answers, majority_of_letters):
        assert majority(samples, votes, 2).select("accuracy", "exact").rows() == [(0.5, 0.5), (0.5, 0.5)]


def test_the_only_answer_of_a_puzzle_may_be_right_in_part() -> None:
    """The scorer of a reasoning-gym task gives shares."""
    results = results_of([[("hall", None)] * 3 + [("study", None)]])
    votes = read_votes(results).filter(pl.col("question") == "A").with_columns(right=pl.lit(False))
    samples = samples_of(results).with_columns(pl.Series("accuracy", [0.4, 0.4, 0.4, 0.1]), exact=pl.lit(0.0))
    for majority in (majority_of_answers, majority_of_letters):
        assert majority(samples, votes, 4).select("accuracy", "exact").rows() == [(0.4, 0.0)]


def test_figures_of_an_evaluation_by_hand() -> None:
    right, half, wrong = ("hall", "rope"), ("hall", "axe"), ("attic", "axe")
    results = results_of(
        [[half, half, right, wrong], [wrong, wrong, wrong, half]],
        logprobs=[[-5.0, -6.0, -4.0, -8.0], [-1.0, -2.0, -3.0, -9.0]],
        statements=[[(1, 0), (2, 2), (3, 3), (0, 0)], [(1, 0), (0, 0), (3, 2), (9, 2)]],
    )
    figures = sample_figures(results)
    accuracy = {name: item.accuracy.mean for name, item in figures.strategies.items()}
    assert accuracy == pytest.approx(
        {
            "single": (0.5 + 0.125) / 2,
            "majority": (0.5 + 0.0) / 2,  # half twice; wrong three times
            "majority:letters": (0.5 + 0.0) / 2,  # hall and axe; attic and axe
            "best_of": (1.0 + 0.0) / 2,  # -4 is the right one, -1 a wrong one
            'best_of:score="mean_logprob"': (1.0 + 0.0) / 2,
            'best_of:score="statements"': (0.5 + 0.5) / 2,  # 1 - 0 of the first; 9 - 2 of the last
            CEILING: (1.0 + 0.5) / 2,
        }
    )
    assert figures.strategies["majority"].tokens.mean == 40.0
    assert figures.strategies["single"].tokens.mean == 10.0
    reliability = figures.reliability
    assert list(reliability) == ["1", "2", "4"]
    assert [reliability[k].pass_at.mean for k in reliability] == pytest.approx([0.125, 0.25, 0.5])
    assert [reliability[k].best.mean for k in reliability] == pytest.approx(
        [0.3125, ((1.0 * 3 + 0.5 * 3) / 6 + 0.5 * 3 / 6) / 2, 0.75]
    )
    assert reliability["1"].majority.mean == pytest.approx(0.3125)


def test_without_statements_there_is_no_choice_by_them() -> None:
    figures = sample_figures(results_of([[("hall", "rope"), ("hall", "axe")]] * 3))
    scores = {"best_of", 'best_of:score="mean_logprob"'}
    assert set(figures.strategies) == {"single", "majority", "majority:letters", CEILING, *scores}
    assert sample_figures(results_of([[("hall", "rope")]])).strategies == {}


def test_the_interval_of_a_mean_by_hand() -> None:
    interval = estimate_mean([8.0, 10.0, 12.0])  # standard error 2 / sqrt(3), t of 2 degrees of freedom 4.302653
    assert (interval.mean, interval.high - 10.0) == (10.0, pytest.approx(4.302653 * 2 / 3**0.5, rel=1e-5))
    assert estimate_mean([5.0]).low == 5.0
