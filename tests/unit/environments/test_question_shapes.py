"""Shapes of questions in other people's files: chat messages, nested columns, marks before answers, numbers."""

import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from artifacts.documents.conversation import messages_of, readable, stored_prompt, with_last
from artifacts.errors import BadInputError
from artifacts.identity import sha256_json
from flows.config.recipes import load_recipe
from stages.environments import environment
from stages.environments.puzzle import Puzzle
from stages.environments.question_file.config import QuestionFileConfig
from stages.environments.question_file.files import of_content
from stages.environments.question_file.reading import flat, read_questions
from stages.grading.own_reward import Completion, Grade, Tokens
from stages.prepare import PrepareConfig, source_of
from stages.strategies.think_twice import again_prompt
from tests.support.layouts import LAYOUTS, recipe_of, write_layout

SYSTEM, USER, REPLY = ({"role": role, "content": f"I am {role}."} for role in ("system", "user", "assistant"))
ASKED = {"role": "user", "content": "2 + 2?"}


def read(data: bytes, kind: str = "jsonl", **settings: Any) -> list[Puzzle]:
    config = QuestionFileConfig(path=f"some.{kind}", **settings)
    return [item.puzzle for item in read_questions(of_content(config.path, data).parts, config)[0]]


def content(rows: list[dict[str, Any]], kind: str) -> bytes:
    if kind == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    buffer = io.BytesIO()
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_messages_stay_and_the_template_is_that_of_the_last(kind: str) -> None:
    rows = [
        {"question": [SYSTEM, USER, REPLY, ASKED], "answer": 4, "of": {"hint": "think"}},
        {"question": [ASKED], "answer": 4, "of": {"hint": "add"}},
    ]
    first, second = read(content(rows, kind), kind, prompt="{question} {of.hint}!")
    assert messages_of(first.prompt) == [SYSTEM, USER, REPLY, {"role": "user", "content": "2 + 2? think!"}]
    assert second.prompt == "2 + 2? add!"
    assert messages_of(second.prompt) == [{"role": "user", "content": "2 + 2? add!"}]
    plain = read(content(rows, kind), kind)
    assert messages_of(plain[0].prompt) == [SYSTEM, USER, REPLY, ASKED]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (
            [USER, REPLY],
            "messages that end with the turn of assistant; expected messages that end with the user's turn",
        ),
        ([SYSTEM], "end with the turn of system"),
        ([], "end with the turn of nobody"),
        ([{"from": "human", "value": "x"}], r"the message .*'from': 'human'.*; expected \{role, content\}, a role of"),
        ([{**USER, "content": [{"type": "text", "text": "x"}]}], "the content a text; convert the messages"),
        ([{**USER, "role": "tool"}], "a role of system, user, assistant"),
        ([{**USER, "content": "a\0"}], "the message"),
        (["x"], "the message 'x'"),
    ],
)
def test_messages_that_are_no_prompt_are_refused(messages: list[Any], message: str) -> None:
    with pytest.raises(BadInputError, match=rf"^some\.jsonl, line 1, column 'question': .*{message}"):
        read(content([{"question": messages, "answer": 1}], "jsonl"))


def test_a_prompt_has_one_list_of_messages() -> None:
    row = {"question": [USER], "more": [USER], "answer": 1}
    with pytest.raises(BadInputError, match="column 'more': a second list of messages"):
        read(content([row], "jsonl"), prompt="{question} {more}")


def test_stored_conversations() -> None:
    conversation = stored_prompt([SYSTEM, USER])
    assert messages_of(conversation) == [SYSTEM, USER]
    assert readable(conversation) == "system: I am system.\n\nuser: I am user."
    assert messages_of(with_last(conversation, str.upper)) == [SYSTEM, {**USER, "content": "I AM USER."}]
    assert with_last("a", str.upper) == readable("A") == "A"
    assert messages_of(again_prompt(conversation, "4"))[1]["content"].startswith("I am user.\nThe assistant's previous")
    for text in ('[{"role": "user"', '[{"role": "user", "content": "x"}]', '[{"role": "bot", "content": "x"}, 1]'):
        assert messages_of(text) == [{"role": "user", "content": text}]


def test_a_reward_gets_the_messages() -> None:
    (puzzle,) = read(content([{"question": [SYSTEM, USER], "answer": 1}], "jsonl"))
    item = Completion("x", puzzle, Grade(0.0, False, True, False), Tokens(1, 2)).arguments[1]
    assert item == {"prompt": [SYSTEM, USER], "solution": {"answer": "1"}}
    rows = [{"question": "x", "answer": 1, "of": {"level": level}} for level in (3, 5)]
    first, second = read(content(rows, "jsonl"), reward_columns=("of.level",))
    item = Completion("x", second, Grade(0.0, False, True, False), Tokens(1, 2)).arguments[1]
    assert item == {"prompt": "x", "solution": {"answer": "1"}, "of.level": "5"}
    assert environment.get(first.environment).grade("1", first).exact
    with pytest.raises(ValueError, match=r"reward_columns names 'solution', but item\['solution'\] is the item's own"):
        QuestionFileConfig(path="some.jsonl", reward_columns=("of.level", "solution"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_columns_inside_others(kind: str) -> None:
    rows = [{"in": {"deep": {"q": f"{i}?"}, "a": i}, "id.x": f"n{i}"} for i in range(3)]
    puzzles = read(content(rows, kind), kind, question="in.deep.q", answer="in.a", id="id.x")
    assert [(item.prompt, item.solution["answer"], item.prompt_id) for item in puzzles] == [
        (f"{i}?", f"{i}", f"n{i}") for i in range(3)
    ]
    with pytest.raises(
        BadInputError, match=r"no column 'in.dep.q', did you mean 'in.deep.q'.; expected one of: .*in.a"
    ):
        read(content(rows, kind), kind, question="in.dep.q", answer="in.a")


def test_names_of_many_levels_do_not_fill_the_memory() -> None:
    """Each level's name holds those above it: 8 MB of them took 6 GiB."""
    row: dict[str, Any] = {}
    for _ in range(800):
        row = {"k" * 100: row}
    assert max(map(len, flat(row))) < 1000


def test_a_text_that_many_rows_repeat_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet stores it once, so that neither the file nor its footer shows the size."""
    monkeypatch.setattr("stages.environments.question_file.reading.LARGEST_TABLE", 1 << 22)
    rows, buffer = 1000, io.BytesIO()
    question = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["q" * 100_000]))
    pq.write_table(pa.table({"question": question, "answer": ["1"] * rows}), buffer, store_schema=False)
    assert len(buffer.getvalue()) < 20_000
    with pytest.raises(BadInputError, match=r"[\d,]+ bytes in the columns that are read; expected at most 4,194,304"):
        read(buffer.getvalue(), "parquet")


def test_numbers_of_parquet_stay_as_they_were_written() -> None:
    rows = [{"question": f"{number}", "answer": number} for number in (13.0, 0.5, -2.0, 1e20, 0.1)]
    assert [item.solution["answer"] for item in read(content(rows, "parquet"), "parquet")] == [
        "13", "0.5", "-2", "1e+20", "0.1"
    ]  # fmt: skip
    single = pl.DataFrame({"question": ["a", "b"], "answer": pl.Series([13.0, 0.1], dtype=pl.Float32)})
    single.write_parquet(buffer := io.BytesIO())
    assert [item.solution["answer"] for item in read(buffer.getvalue(), "parquet")] == ["13", "0.1"]
    (written,) = read(b'{"question": "x", "answer": 13.0}')
    assert written.solution["answer"] == "13.0"


def test_answers_after_a_mark() -> None:
    rows = [{"question": "How many?", "answer": "36 + 36 = 72 #### no\n#### 72"}]
    (puzzle,) = read(content(rows, "jsonl"), answer_after="####", grader="exact")
    assert puzzle.solution["answer"] == "72"
    with pytest.raises(BadInputError, match=r"column 'answer': no '->' in '36 .*; expected an answer after this mark"):
        read(content(rows, "jsonl"), answer_after="->")
    with pytest.raises(BadInputError, match="column 'answer': an empty text"):
        read(content([{"question": "x", "answer": "5 ####"}], "jsonl"), answer_after="####")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_of_another_trainer_loads(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_layout(layout, tmp_path)
    (tmp_path / "recipe.toml").write_text(recipe_of(layout))
    config: PrepareConfig = load_recipe("recipe.toml").puzzles
    source = source_of(config)
    assert source is not None
    splits = source.items({"train": 16, "val": 8, "test": 8}, 0).splits
    puzzles = [puzzle for split in splits.values() for puzzle in split]
    assert len(puzzles) == 32
    for puzzle in puzzles:
        known: Any = environment.get(puzzle.environment)
        assert known.grade(known.write_answer(puzzle), puzzle).exact
        roles = [message["role"] for message in messages_of(puzzle.prompt)]
        assert roles == (["user"] if layout == "open_r1" else ["system", "user"])
    assert len({sha256_json(puzzle.prompt) for puzzle in puzzles}) == 32
