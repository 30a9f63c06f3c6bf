"""Strategies that ask in rounds, against a server with a fixed table of answers: each prompt, to the token."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import TransientError
from artifacts.reading import Artifact
from artifacts.refs import Ref, Report
from artifacts.schemas import LOGPROB, RESULTS, ROUNDS, ROUNDS_FILE
from stages.environments import environment
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.logic_puzzles.grading import grade
from stages.environments.puzzle import Puzzle
from stages.environments.temporal_clue.environment import TEMPORAL_CLUE
from stages.evaluate import EvaluateConfig, HeldOutSampling, evaluate
from stages.sampling.completions import GENERATE_PATH, Completion
from stages.statistics.records import ReportFigures
from stages.strategies import sift
from stages.strategies.think_twice import again_prompt, last_answer
from tests.support.speaker import WRONG, Opener, Place, Speaker, of_tokens

SAMPLED = HeldOutSampling(samples_per_prompt=2, max_tokens=64)
COUNT = 4


def evaluated(place: Place, *strategies: dict[str, Any], **sampled: Any) -> Artifact:
    """The report of an evaluation with strategies of the first puzzles."""
    return Artifact.open(place.ctx.store, report_of(place, *strategies, **sampled))


def report_of(place: Place, *strategies: dict[str, Any], **sampled: Any) -> Ref[Report]:
    config = EvaluateConfig.model_validate(
        {"puzzles": COUNT, "sampled": {**SAMPLED.model_dump(), **sampled}, "greedy": False, "strategies": strategies}
    )
    out = ArtifactAddress(place.ctx.store, "report", Report)
    return evaluate(place.ctx, config, place.weights, place.puzzles, split="val", out=out)


def figures_of(report: Artifact) -> ReportFigures:
    return ReportFigures.of(report.read_json("report.json"), "report")


def rounds_of(report: Artifact) -> pl.DataFrame:
    return report.read_table(ROUNDS_FILE, ROUNDS)


def first_samples(puzzles: list[Puzzle]) -> dict[str, list[str]]:
    """One right and one wrong sample of each puzzle."""
    return {puzzle.prompt: [write_answer(puzzle), WRONG] for puzzle in puzzles}


def one_wrong(puzzle: Puzzle) -> str:
    """An answer whose first letter is another value of the puzzle, or the last value of its list."""
    letter, right = next(iter(puzzle.solution.items()))
    other = next(value for value in TEMPORAL_CLUE.answer_values(puzzle)[letter] if value != right)
    return write_answer(puzzle).replace(f"{letter}. {right}", f"{letter}. {other}")


def test_without_strategies_nothing_else_is_asked_or_stored(opened: Opener, puzzles: list[Puzzle]) -> None:
    place = opened("store", first_samples(puzzles))
    report = evaluated(place)
    assert len(place.speaker.asked) == COUNT
    assert ROUNDS_FILE not in report.names()
    results = report.read_table("results.parquet", RESULTS)
    assert (results[LOGPROB] == -0.5 * results["completion_tokens"]).all()
    figures = figures_of(report)
    assert figures.strategies["ceiling"].exact.mean == 1.0
    assert figures.strategies["best_of"].exact.mean == 1.0, "all have the same length, so the first wins"
    assert figures.reliability["1"].pass_at.mean == 0.5


def test_naming_a_choice_among_samples_finds_the_same_report(opened: Opener, puzzles: list[Puzzle]) -> None:
    place = opened("store", first_samples(puzzles))
    assert not report_of(place).reused
    assert report_of(place, {"strategy": "majority"}, {"strategy": "best_of", "score": "statements"}).reused
    assert len(place.speaker.asked) == COUNT


def test_think_twice_asks_byte_for_byte(opened: Opener, puzzles: list[Puzzle]) -> None:
    script = first_samples(puzzles)
    for puzzle in puzzles[:COUNT]:
        answer = write_answer(puzzle)
        template = "{0}\nThe assistant's previous answer is: <answer> {1} </answer>, and please re-answer."
        script[template.format(puzzle.prompt, answer)] = [WRONG]
        script[template.format(puzzle.prompt, "")] = [answer]  # nothing can be read in the other sample
    place = opened("store", script)
    report = evaluated(place, {"strategy": "think_twice", "rounds": 2})
    assert len(place.speaker.asked) == COUNT + 2 * COUNT
    rounds = rounds_of(report)
    assert rounds.group_by("round").len().sort("round").rows() == [(1, 2 * COUNT), (2, 2 * COUNT)]
    second = rounds.filter(pl.col("round") == 2).sort("prompt_id", "sample")
    assert second["exact"].to_list() == [False, True] * COUNT and second["final"].all()
    figures = figures_of(report).strategies["think_twice"]
    assert list(figures.points) == ["round 1", "round 2"]
    assert figures.points["round 1"].exact.mean == figures.exact.mean == 0.5
    both = rounds.group_by("prompt_id", "sample").agg(pl.col("completion_tokens").sum())
    assert figures.tokens.mean == pytest.approx(both["completion_tokens"].mean())


def test_one_round_is_the_plain_evaluation(opened: Opener, puzzles: list[Puzzle]) -> None:
    place = opened("store", first_samples(puzzles))
    report = evaluated(place, {"strategy": "think_twice", "rounds": 1})
    assert len(place.speaker.asked) == COUNT
    figures = figures_of(report)
    once = figures.strategies["think_twice:rounds=1"]
    assert figures.sampled is not None and (once.accuracy, once.exact) == (
        figures.sampled.accuracy,
        figures.sampled.exact,
    )


def test_only_the_answer_is_carried_into_the_next_round(puzzles: list[Puzzle]) -> None:
    puzzle = puzzles[0]
    letter = next(iter(puzzle.solution))
    thought = f"I think {letter}. is hard, and so on.\n\n{write_answer(puzzle)}"
    assert last_answer(grade(thought, puzzle), thought) == write_answer(puzzle)
    assert last_answer(grade(WRONG, puzzle), WRONG) == ""
    question = environment.get("file:regex:Answer: (.*)")
    item = Puzzle("q", "file:regex:Answer: (.*)", "?", {"answer": "b"}, 0, None, "d", {})
    said = "Answer: a</answer> b"
    assert last_answer(question.grade(said, item), said) == "a&lt;/answer&gt; b"
    long = f"Answer: {'a' * 300}"
    assert last_answer(question.grade(long, item), long) == long, "a grade keeps the beginning alone"
    assert again_prompt("Q?", "b") == (
        "Q?\nThe assistant's previous answer is: <answer> b </answer>, and please re-answer."
    )


def test_a_killed_strategy_goes_on_with_the_requests_that_are_missing(opened: Opener, puzzles: list[Puzzle]) -> None:
    script = first_samples(puzzles)
    for puzzle in puzzles[:COUNT]:
        for answer in (write_answer(puzzle), ""):
            script[again_prompt(puzzle.prompt, answer)] = [WRONG]
    place = opened("store", script)
    place.speaker.fails_after = COUNT + 3
    with pytest.raises(TransientError):
        report_of(place, {"strategy": "think_twice"})
    place.speaker.fails_after = 10**9
    assert len(rounds_of(evaluated(place, {"strategy": "think_twice"}))) == 4 * COUNT
    assert len(place.speaker.asked) < COUNT + 3 + 2 * COUNT, "some of the three were stored"


def sifted(
    opened: Opener, puzzles: list[Puzzle], table: Callable[[Puzzle], dict[str, str]], **settings: Any
) -> tuple[Place, Artifact]:
    """The report of a sticker loop with these answers, by prompt, for each puzzle."""
    script = first_samples(puzzles)
    for puzzle in puzzles[:COUNT]:
        script |= {prompt: [text] for prompt, text in table(puzzle).items()}
    place = opened("store", script)
    return place, evaluated(place, {"strategy": "sift", **settings})


def test_a_sticker_on_which_both_answers_agree_takes_three_calls(opened: Opener, puzzles: list[Puzzle]) -> None:
    def table(puzzle: Puzzle) -> dict[str, str]:
        sticker, right = f"{TEMPORAL_CLUE.asked(puzzle)[0]}.", write_answer(puzzle)
        return {
            sift.list_facts(puzzle.prompt): sticker,
            sticker: right,
            sift.with_facts(puzzle.prompt, sticker): right,
        }

    _, report = sifted(opened, puzzles, table)
    assert rounds_of(report)["step"].to_list() == ["sticker", "answer from the sticker", "answer"] * COUNT
    figures = figures_of(report).strategies["sift"]
    assert figures.exact.mean == 1.0
    assert figures.faithfulness is not None and figures.faithfulness.invented is not None
    shares = [1 / puzzle.num_clues for puzzle in puzzles[:COUNT]]
    assert figures.faithfulness.restated.mean == pytest.approx(sum(shares) / COUNT)
    assert figures.faithfulness.invented.mean == 0.0


@pytest.mark.parametrize(("temperature", "calls"), [(0.0, 9), (1.0, 11)])
def test_an_unchanged_sticker_is_asked_about_again_where_answers_vary(
    opened: Opener, puzzles: list[Puzzle], temperature: float, calls: int
) -> None:
    def table(puzzle: Puzzle) -> dict[str, str]:
        prompt, first = puzzle.prompt, f"Notes on {puzzle.prompt_id}"
        return {
            sift.list_facts(prompt): first, first: write_answer(puzzle), sift.with_facts(prompt, first): WRONG,
            sift.correct_facts(prompt, first): first, sift.facts_of_answer(WRONG): "Guessed",
            sift.correct_facts(prompt, "Guessed"): first,
        }  # fmt: skip

    place, _ = sifted(opened, puzzles, table, temperature=temperature)
    assert len(place.speaker.asked) == COUNT + calls * COUNT


def test_stickers_without_agreement_end_with_an_answer_without_one(opened: Opener, puzzles: list[Puzzle]) -> None:
    def table(puzzle: Puzzle) -> dict[str, str]:
        prompt, right, other = puzzle.prompt, write_answer(puzzle), one_wrong(puzzle)
        first, second, third = (f"Notes {name} on {puzzle.prompt_id}" for name in "abc")
        return {
            sift.list_facts(prompt): first, first: right, sift.with_facts(prompt, first): other,
            sift.correct_facts(prompt, first): second, second: WRONG, sift.with_facts(prompt, second): WRONG,
            sift.facts_of_answer(WRONG): "Guessed", sift.correct_facts(prompt, "Guessed"): third,
            third: right, sift.with_facts(prompt, third): other,
        }  # fmt: skip

    place, report = sifted(opened, puzzles, table)
    assert len(place.speaker.asked) == COUNT + 11 * COUNT
    assert sorted(place.speaker.asked[-COUNT:]) == sorted(puzzle.prompt for puzzle in puzzles[:COUNT])
    rounds = rounds_of(report)
    assert rounds["round"].to_list() == list(range(1, 12)) * COUNT
    assert rounds.filter("final")["round"].to_list() == [11] * COUNT
    assert figures_of(report).strategies["sift"].exact.mean == 1.0, "the first of the prompt's texts is right"


@pytest.mark.parametrize("thought", ["", "<think>\nI do not know.\n</think>\n\n"])
def test_a_sticker_that_stays_the_same_is_not_compared_again(
    opened: Opener, puzzles: list[Puzzle], thought: str
) -> None:
    """Thoughts before stickers and answers are recorded and not asked about."""

    def table(puzzle: Puzzle) -> dict[str, str]:
        prompt, right, first = puzzle.prompt, write_answer(puzzle), f"Notes on {puzzle.prompt_id}"
        return {
            sift.list_facts(prompt): thought + first, first: right, sift.with_facts(prompt, first): thought + WRONG,
            sift.correct_facts(prompt, first): thought + first, sift.facts_of_answer(WRONG): f"{thought}Guessed",
            sift.correct_facts(prompt, "Guessed"): thought + prompt, sift.with_facts(prompt, prompt): right,
        }  # fmt: skip

    place, report = sifted(opened, puzzles, table)
    assert rounds_of(report).filter(pl.col("step") == "sticker")["text"].str.starts_with(thought).all()
    assert rounds_of(report)["step"].to_list()[-4:] == [
        "inverse sticker",
        "sticker",
        "answer from the sticker",
        "answer",
    ]
    assert len(place.speaker.asked) == COUNT + 8 * COUNT


def test_two_missing_answers_do_not_agree(puzzles: list[Puzzle]) -> None:
    puzzle = puzzles[0]
    right, nothing = grade(write_answer(puzzle), puzzle), grade(WRONG, puzzle)
    part = grade(write_answer(puzzle).splitlines()[0], puzzle)
    assert sift.agree(right, right)
    assert not sift.agree(nothing, nothing) and not sift.agree(part, part)
    assert not sift.agree(right, grade(one_wrong(puzzle), puzzle))


class Forced(Speaker):
    """Answers to token ids: with texts that end by themselves, at a stop text (`|`), or at the limit (`...`).

    Attributes:
        limits: Largest number of tokens of each request, in order.
        stops: Texts that end each completion, in order.
    """

    def __init__(self, model: Path, script: dict[str, list[str]]) -> None:
        super().__init__(model, script)
        self.limits, self.stops = list[int](), list[list[str]]()

    def teach(self, prompt: str, before: list[int], *texts: str) -> list[int]:
        """Has texts follow these tokens of a completion; returns the first one's tokens without its end."""
        ids = (*self.tokenizer.prompt_token_ids(prompt), *before)
        self.texts[ids], self.prompts[ids] = list(texts), prompt
        return self.tokenizer.text_ids(texts[0].removesuffix("...").removesuffix("|"))

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if path == GENERATE_PATH:
            self.limits.append(body["sampling_params"]["max_tokens"])
            self.stops.append(body.get("stop", []))
        return super().answer(method, path, body)

    def completion(self, text: str) -> Completion:
        words = text.removesuffix("...").removesuffix("|")
        if text.endswith("<|user|>"):
            return of_tokens(self.tokenizer.text_ids(text), "stop")
        if words == text:
            return super().completion(text)
        return of_tokens(self.tokenizer.text_ids(words), "length" if text.endswith("...") else "stop")


@pytest.fixture
def forced(opened: Opener, puzzles: list[Puzzle]) -> tuple[Place, Forced]:
    """A place whose speaker answers to token ids, and the speaker."""
    place = opened("store", first_samples(puzzles), Forced)
    assert isinstance(place.speaker, Forced)
    return place, place.speaker


def test_a_budget_of_thinking_forces_the_answer(forced: tuple[Place, Forced], puzzles: list[Puzzle]) -> None:
    """The first puzzle's model ends by itself; the others think until the budget ends."""
    place, speaker = forced
    for puzzle in puzzles[1:COUNT]:
        # The sampled answers have the same prompt, and the first of these texts is the greedy one.
        thought = speaker.teach(puzzle.prompt, [], "I think...", WRONG)
        before = [*thought, *speaker.tokenizer.text_ids("\nFinal Answer:")]
        speaker.teach(puzzle.prompt, before, f" {write_answer(puzzle)}")
    report = evaluated(place, {"strategy": "budget_forcing", "budget": 20, "answer_tokens": 30})
    rounds = rounds_of(report)
    assert speaker.limits == [64] * COUNT + [20] * COUNT + [30] * (COUNT - 1)
    answers = rounds.filter("final").sort("prompt_id")
    assert answers["exact"].all() and len(answers) == COUNT
    texts = dict(answers.select("prompt_id", "text").rows())
    assert texts[puzzles[0].prompt_id] == write_answer(puzzles[0])
    assert texts[puzzles[1].prompt_id] == f"I think\nFinal Answer: {write_answer(puzzles[1])}"
    thoughts = rounds.filter(pl.col("step") == "thinking").sort("prompt_id")
    assert (answers["spent_tokens"] == thoughts["completion_tokens"] + answers["completion_tokens"]).all()


def test_waiting_drops_the_end_and_counts_in_the_budget(forced: tuple[Place, Forced], puzzles: list[Puzzle]) -> None:
    place, speaker = forced
    wait = speaker.tokenizer.text_ids("Wait")
    lengths: list[int] = []
    for puzzle in puzzles[:COUNT]:
        first = speaker.teach(puzzle.prompt, [], WRONG, WRONG)
        second = speaker.teach(puzzle.prompt, [*first, *wait], WRONG)
        speaker.teach(puzzle.prompt, [*first, *wait, *second, *wait], f"\n{write_answer(puzzle)}")
        lengths.append(len(first) + 1)
    report = evaluated(place, {"strategy": "budget_forcing", "budget": 60, "waits": 2})
    (length,) = set(lengths)
    assert speaker.limits[COUNT:] == [60] * COUNT + [60 - length] * COUNT + [60 - 2 * length] * COUNT
    rounds = rounds_of(report)
    steps = ["thinking", "wait", "wait", "answer"]
    assert rounds["step"].to_list() == steps * COUNT
    final = rounds.filter("final")
    assert final["exact"].all()
    assert final["text"][0] == f"{WRONG}Wait{WRONG}Wait\n{write_answer(puzzles[0])}"


def test_a_stop_token_of_the_evaluation_is_no_part_of_the_thinking(
    forced: tuple[Place, Forced], puzzles: list[Puzzle]
) -> None:
    place, speaker = forced
    ids = speaker.tokenizer.text_ids
    for puzzle in puzzles[:COUNT]:
        speaker.teach(puzzle.prompt, [], "Hm.<|user|>", WRONG)
        speaker.teach(puzzle.prompt, [*ids("Hm."), *ids("Wait")], f"\n{write_answer(puzzle)}")
    strategy = {"strategy": "budget_forcing", "budget": 60, "waits": 1}
    rounds = rounds_of(evaluated(place, strategy, stop_token_ids=ids("<|user|>")))
    assert rounds.filter("final")["exact"].all()


def test_a_text_that_ends_the_thinking_stays_between_thinking_and_answer(
    forced: tuple[Place, Forced], puzzles: list[Puzzle]
) -> None:
    place, speaker = forced
    end = "</think>"
    for number, puzzle in enumerate(puzzles[:COUNT]):
        if number == 0:  # the model ends without the text, which is put in
            kept = speaker.teach(puzzle.prompt, [], "Hm.", WRONG)
        else:
            speaker.teach(puzzle.prompt, [], f"Hm.{end}|", WRONG)
            kept = speaker.tokenizer.text_ids("Hm.")
        speaker.teach(puzzle.prompt, [*kept, *speaker.tokenizer.text_ids(end)], f"\n{write_answer(puzzle)}")
    report = evaluated(place, {"strategy": "budget_forcing", "end": end})
    assert speaker.stops == [[]] * COUNT + [[end]] * COUNT + [[]] * COUNT
    final = rounds_of(report).filter("final").sort("prompt_id")
    assert final["exact"].all()
    assert set(final["text"].str.slice(0, 12)) == {f"Hm.{end}\n"}


def test_a_probe_cuts_the_sampled_answers(forced: tuple[Place, Forced], puzzles: list[Puzzle]) -> None:
    """At no tokens, at three, and at more than there are, where the sampled answer stays."""
    place, speaker = forced
    answer = speaker.tokenizer.text_ids("\nFinal Answer:")
    for puzzle in puzzles[:COUNT]:
        right = write_answer(puzzle)
        speaker.teach(puzzle.prompt, answer, WRONG)
        for text in (right, WRONG):
            ids = speaker.tokenizer.answer_ids(text)
            cut = ids[:3]
            words = "Final Answer:" if speaker.tokenizer.decode(cut).endswith("\n") else "\nFinal Answer:"
            assert words.startswith("\n")
            speaker.teach(puzzle.prompt, [*cut, *answer], f" {right}")
    report = evaluated(place, {"strategy": "truncation_probe", "budgets": [60, 0, 3], "answer_tokens": 40})
    (figures,) = (item for name, item in figures_of(report).strategies.items() if name.startswith("truncation_probe"))
    assert {name: point.exact.mean for name, point in figures.points.items()} == {
        "0 tokens": 0.0, "3 tokens": 1.0, "60 tokens": 0.5,
    }  # fmt: skip
    assert figures.exact.mean == 0.5, "the largest budget"
    rounds = rounds_of(report)
    three = rounds.filter(pl.col("point") == "3 tokens")
    assert (three["spent_tokens"] == 3 + three["completion_tokens"]).all()
    whole = rounds.filter(pl.col("point") == "60 tokens")
    sampled = report.read_table("results.parquet", RESULTS)
    assert sorted(whole["spent_tokens"]) == sorted(sampled["completion_tokens"])
