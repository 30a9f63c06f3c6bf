"""One rule for all graders: the answer is what follows the last closing mark, and an unfinished thought has none."""

from dataclasses import replace
from pathlib import Path

import pytest

from stages.environments import environment
from stages.environments.capabilities import ChecksFormat, WritesAnswers
from stages.environments.generate import TIERS, ZebraConfig, generate
from stages.environments.puzzle import Puzzle
from stages.environments.single_answer import ANSWER, ITEM, single_item
from stages.environments.tables import (
    answer_ends,
    assertions,
    from_table,
    graded_texts,
    puzzles_by_id,
    taught_passages,
    to_table,
)
from stages.environments.thoughts import ThinkingConfig
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.tokenizers.chat import ChatTokenizer
from stages.processes.user_file import digest_of, note_file
from stages.sampling.collect import opens_thought

USER_CODE = """
class Echo:
    def items(self, count, seed):
        return [{"prompt": str(seed + i)} for i in range(count)]

    def grade(self, completion, item):
        return float("right" in completion and "hmm" not in completion)
"""
GRADERS = ("exact", "choice", "number", "boxed", "regex:it is (.+)")


def puzzles(folder: Path) -> dict[str, tuple[Puzzle, str]]:
    """A puzzle of each environment, with a completion that answers it right."""
    (folder / "echo.py").write_text(USER_CODE)
    digest = digest_of(folder / "echo.py")
    note_file(digest, str(folder / "echo.py"))
    clue, zebra = generate(TIERS["easy"], 1), generate(ZebraConfig(houses=(3, 3), attributes=(3, 3)), 1)
    made = {
        "temporal_clue": clue,
        "zebra": zebra,
        "maths": single_item("m", "maths:last_box:0.9.0", "1 + 1?", {ANSWER: "2"}),
        **{grader: single_item("q", f"file:{grader}", "Which?", {ANSWER: "B"}) for grader in GRADERS},
    }
    made["number"] = replace(made["number"], solution={ANSWER: "5"})
    right: dict[str, tuple[Puzzle, str]] = {}
    for name, puzzle in made.items():
        writer = environment.get(puzzle.environment)
        right[name] = puzzle, writer.write_answer(puzzle) if isinstance(writer, WritesAnswers) else "it is B"
    right["user code"] = single_item("u", f"echo.py:Echo@{digest}@1", "?", {ANSWER: "", ITEM: "{}"}), "right"
    return right


NAMES = ["temporal_clue", "zebra", "maths", *GRADERS, "user code"]


@pytest.mark.parametrize("name", NAMES)
def test_every_grader_reads_what_follows_the_thought(name: str, tmp_path: Path) -> None:
    puzzle, answer = puzzles(tmp_path)[name]
    thought = answer if name == "user code" else f"hmm {answer}"
    completions = {
        answer: 1.0,
        f"<think>\nhmm\n</think>\n\n{answer}": 1.0,
        f"hmm</think>{answer}": 1.0,  # the prompt opened the thought
        f"<think>a</think>b<think>hmm</think>{answer}": 1.0,
        f"<think>{thought}</think>\n": 0.0,
        f"<think>{thought}": 0.0,  # unfinished
        f"<think>a</think>{answer}<think>wait": 0.0,
    }
    graded = graded_texts([(text, puzzle.prompt_id) for text in completions], {puzzle.prompt_id: puzzle}, "strict")
    assert [item.accuracy for item in graded] == list(completions.values())
    assert {answer.note for answer in graded[-1].answers.values()} == {"missing"}


@pytest.mark.parametrize(
    ("rule", "text", "accuracy"),
    [
        ("cut", "5", 1.0),
        ("cut", "<think>Answer: 5</think>", 0.0),
        ("required", "5", 0.0),
        ("required", "hmm</think>5", 1.0),
        ("kept", "<think>Answer: 5</think>", 1.0),
        ("kept", "<think>Answer: 5", 1.0),
    ],
)
def test_the_rules(rule: str, text: str, accuracy: float) -> None:
    config = ThinkingConfig.model_validate({"rule": rule})
    stored = to_table([replace(single_item("q", "file:number", "?", {ANSWER: "5"}), thinking=config)])
    (puzzle,) = from_table(stored)
    assert puzzle.thinking == config
    assert graded_texts([(text, "q")], {"q": puzzle}, "strict")[0].accuracy == accuracy


def test_marks_are_a_setting_of_the_set() -> None:
    marks = ThinkingConfig(opening="[THINK]", closing="[/THINK]")
    puzzle = replace(single_item("q", "file:exact", "?", {ANSWER: "Paris"}), thinking=marks)
    texts = ["[THINK]hmm[/THINK]Paris", "[THINK]Paris", "<think>hmm</think>Paris"]
    graded = graded_texts([(text, "q") for text in texts], {"q": puzzle}, "strict")
    assert [item.accuracy for item in graded] == [1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="opening holds closing"):
        ThinkingConfig(opening="***", closing="***")


def test_places_statements_and_layout_are_those_of_the_answer(tmp_path: Path) -> None:
    puzzle, answer = puzzles(tmp_path)["temporal_clue"]
    derived = taught_passages(to_table([puzzle]), "plain")[0][0].text
    thought = f"<think>\n{derived}\n</think>\n"
    ends = answer_ends(answer, puzzle)
    assert answer_ends(thought + answer, puzzle) == {key: len(thought) + end for key, end in ends.items()}
    assert assertions(thought + answer, puzzle) == assertions(answer, puzzle)
    said = assertions(thought + derived, puzzle) or []
    assert said and all((thought + derived)[item.start : item.end] == item.text for item in said)
    checks = environment.get(puzzle.environment)
    assert isinstance(checks, ChecksFormat)
    assert [checks.well_formed(text, puzzle) for text in (answer, f"<think>{answer}")] == [True, False]


def test_taught_answers_have_the_mark_that_they_need(tmp_path: Path) -> None:
    for name, (puzzle, _) in puzzles(tmp_path).items():
        if isinstance(environment.get(puzzle.environment), WritesAnswers):
            needed = replace(puzzle, thinking=ThinkingConfig(rule="required"))
            text = taught_passages(to_table([needed]), None)[0][0].text
            assert text.startswith("\n</think>\n"), name
            assert graded_texts([(text, "p")], {"p": needed}, "strict")[0].exact, name


@pytest.mark.parametrize(
    ("ending", "opened"), [("", False), ("<think>\\n", True), ("<think>\\n\\n</think>\\n\\n", False)]
)
def test_a_thought_that_the_template_opens_must_be_closed(ending: str, opened: bool, tmp_path: Path) -> None:
    """A model without a thinking mode, one that always thinks, and one whose thinking is switched off."""
    make_scratch(ScratchModel(), ["What is 2 + 3? Think.", "Answer: 5"], tmp_path)
    template = "Think in <think> </think>. {{ messages[0]['content'] }}{{ '" + ending + "' }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    thinking = ThinkingConfig()
    assert opens_thought(ChatTokenizer(tmp_path), thinking) == opened
    assert opens_thought(ChatTokenizer(tmp_path), ThinkingConfig(rule="kept")) is False
    by_id = puzzles_by_id(to_table([single_item("q", "file:number", "?", {ANSWER: "5"})]), thought_opened=opened)
    graded = graded_texts([(text, "q") for text in ("so 5", "so 4</think>5")], by_id, "strict")
    assert [item.accuracy for item in graded] == [float(not opened), 1.0]
