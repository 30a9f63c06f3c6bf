"""A checkpoint among the models of a benchmark, and puzzles that nothing could grade."""

import datetime
from dataclasses import replace
from functools import partial

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.reading import Artifact
from artifacts.refs import Answers
from artifacts.schemas import ANSWERS, as_table
from stages.answer import ANSWERS_FILE, AnswerConfig, AskedCheckpoint, answer
from stages.answering.measured import check_graders, measured, results_of
from stages.answering.prices import HourPrice
from stages.answering.purchase import PuzzleSample, row_of
from stages.answering.reply import Reply
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.puzzle import Puzzle
from stages.environments.tables import puzzles_by_id, read_split, to_table
from stages.environments.thoughts import ThinkingConfig
from stages.sampling.config import SamplingConfig
from stages.statistics.totals import totals
from tests.support.api_side import question
from tests.support.speaker import WRONG, Opener


def test_a_checkpoint_answers_as_a_model_of_a_benchmark(opened: Opener, puzzles: list[Puzzle]) -> None:
    right = [write_answer(puzzle) for puzzle in puzzles[:4]]
    texts = [[right[0], right[0]], [right[1], WRONG], [WRONG, WRONG], [WRONG + "...", ""]]
    place = opened("store", dict(zip((puzzle.prompt for puzzle in puzzles[:4]), texts, strict=True)))
    config = AnswerConfig(puzzles=4, samples=2, asked=AskedCheckpoint(sampling=SamplingConfig(max_tokens=64)))
    out = ArtifactAddress(place.ctx.store, "answers/x", Answers)
    made = answer(place.ctx, config, place.puzzles, place.weights, split="val", out=out)
    asked = len(place.speaker.asked)
    assert answer(place.ctx, config, place.puzzles, place.weights, split="val", out=out).reused
    assert len(place.speaker.asked) == asked

    published = Artifact.open(place.ctx.store, made)
    table = published.read_table(ANSWERS_FILE, ANSWERS)
    assert table["outcome"].to_list() == ["answered"] * 6 + ["length", "empty"]
    assert set(table["fingerprint"]) == {place.weights.digest} and table["completion_tokens"].min() is not None
    price = HourPrice(per_hour=3.6, devices=2, source="here", date=datetime.date(2026, 1, 1))
    chosen = read_split(place.ctx.store, place.puzzles, "val").head(4)
    figures_at = partial(
        measured, table, chosen, name="mine", kind="checkpoint", model="run", key=made.key, price=price
    )
    figures = figures_at(tokens_per_s=published.manifest.facts["tokens_per_s"])
    seconds = table["completion_tokens"].sum() / published.manifest.facts["tokens_per_s"]
    assert figures.cost_per_answer == pytest.approx(3.6 * 2 / 3600 * seconds / 8)
    assert figures.all_right.mean == pytest.approx(3 / 8) and list(figures.gradings) == ["strict", "published"]
    results = results_of(table, puzzles_by_id(chosen), "strict")
    sampled = totals(results).sampled
    assert sampled is not None and sampled.accuracy == figures.accuracy and sampled.completions == 8
    assert results["finish_reason"].to_list()[-2:] == ["length", "abort"]
    slow = figures_at(tokens_per_s=None)
    assert slow.cost_per_answer is None
    with pytest.raises(BadInputError, match="not in the puzzle set"):
        read_split(place.ctx.store, place.puzzles, "test")


def test_an_api_that_hides_its_thoughts_answers_a_set_that_requires_them(puzzles: list[Puzzle]) -> None:
    """Its replies have no mark; a checkpoint's answers without one are missing."""
    asked = [replace(puzzle, thinking=ThinkingConfig(rule="required")) for puzzle in puzzles[:2]]
    rows = [
        row_of(PuzzleSample(puzzle.prompt_id, group, 0, puzzle.prompt), reply(write_answer(puzzle)))
        for group, puzzle in enumerate(asked)
    ]
    figures_of = partial(
        measured, as_table(rows, ANSWERS), to_table(asked), name="m", model="m", key="k", price=None, tokens_per_s=None
    )
    assert figures_of(kind="openai").all_right.mean == 1.0
    assert figures_of(kind="checkpoint").all_right.mean == 0.0


def reply(text: str) -> Reply:
    """The reply of an API with a text alone."""
    return Reply("answered", text, finish_reason="stop", model="m", latency_s=1.0)


def test_puzzles_of_another_grader_are_refused_before_anything_is_bought() -> None:
    check_graders(to_table([question("Who?", "x")]))
    other = question("How many?", "1")
    stored = to_table([question("Who?", "x"), Puzzle(**{**vars(other), "environment": "maths:last_box:0.8.1"})])
    with pytest.raises(BadInputError, match=r"math-verify 0\.8\.1, for which the problems were read"):
        check_graders(stored)
