"""Questions from a file: the three formats, every bad input, splits, identities, and what such questions cannot do."""

import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Grades, Puzzles, Ref, Rollouts
from artifacts.schemas import GRADES, GRADES_FILE, PUZZLES, ROLLOUTS, as_table
from flows.config.recipe import Recipe
from flows.config.recipes import load_recipe
from flows.config.settings import validate
from flows.inputs.puzzle_sets import made_from_a_lost_file
from flows.report.html.puzzle_report import LengthMeasure, describe, report_files
from stages.context import StageContext
from stages.environments import capabilities, environment
from stages.environments.generate import generate
from stages.environments.maths.config import MathsConfig
from stages.environments.published import of_text
from stages.environments.puzzle import Puzzle
from stages.environments.question_file.config import QuestionColumns, QuestionFileConfig
from stages.environments.question_file.files import of_content
from stages.environments.question_file.reading import FileQuestion, read_questions
from stages.environments.tables import assertions, from_table, grader_of, names_of, to_table
from stages.grade import GradeConfig, grade
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.tokenizers.chat import ChatTokenizer
from stages.optional.sft import WarmStartConfig, taught_groups
from stages.prepare import SPLITS, PrepareConfig, identity_of, prepare
from tests.support.taught import taught_texts

ROWS: list[dict[str, Any]] = [
    {"question": f"How many are {i} and {i}?", "answer": 2 * i, "name": f"q{i}", "part": SPLITS[i % 3], "note": "x"}
    for i in range(30)
]


def json_lines(rows: list[dict[str, Any]] = ROWS) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def content(kind: str, rows: list[dict[str, Any]] = ROWS) -> bytes:
    if kind == "jsonl":
        return json_lines(rows)
    if kind == "json":
        return b"\n " + json.dumps(rows, indent=1).encode()
    buffer = io.BytesIO()
    frame = pl.DataFrame(rows, infer_schema_length=None)
    frame.write_csv(buffer) if kind == "csv" else frame.write_parquet(buffer)
    return buffer.getvalue()


def config(path: str = "some.jsonl", **settings: Any) -> QuestionFileConfig:
    return QuestionFileConfig(path=path, **{"grader": "number", **settings})


def read(data: bytes, settings: QuestionColumns) -> tuple[list[FileQuestion], int]:
    return read_questions(of_content(settings.path, data).parts, settings)


def made(requested: PrepareConfig, ctx: StageContext, key: str = "set") -> Ref[Puzzles]:
    return prepare(ctx, requested, out=ArtifactAddress(ctx.store, key, Puzzles))


def splits_of(ref: Ref[Puzzles], ctx: StageContext) -> dict[str, list[Puzzle]]:
    artifact = Artifact.open(ctx.store, ref)
    return {name: from_table(artifact.read_table(f"{name}.parquet", PUZZLES)) for name in SPLITS}


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_the_formats_hold_the_same_questions(kind: str) -> None:
    settings = config(f"a/some.{kind}", id="name", split_column="part", prompt="{question} {{{name}}} \\boxed{}")
    questions, _ = read(content(kind), settings)
    assert [item.puzzle.solution["answer"] for item in questions] == [str(2 * i) for i in range(30)]
    assert [item.split for item in questions] == [SPLITS[i % 3] for i in range(30)]
    first = questions[0].puzzle
    assert (first.prompt_id, first.environment, first.num_clues) == ("q0", "file:number", 0)
    assert first.prompt == "How many are 0 and 0? {q0} \\boxed{}"
    assert len(first.digest) == 64


def test_numbers_stay_as_they_are_written_and_rows_are_numbered() -> None:
    lines = b'\xef\xbb\xbf{"question": "a", "answer": 1.50}\r\n\n{"question": "b\xe2\x80\xa8c", "answer": "1e3"}\n'
    (first, second), _ = read(lines, config())
    assert (first.puzzle.solution, first.puzzle.prompt_id) == ({"answer": "1.50"}, "1")
    assert (second.puzzle.prompt, second.puzzle.prompt_id, second.where) == ("b\u2028c", "3", "line 3")
    assert [item.where for item in read(lines, config("some.json"))[0]] == ["line 1", "line 3"]
    (third,), _ = read(b'question,answer\n\n"a\nb",0.10\n', config("x.csv"))
    assert (third.puzzle.solution, third.puzzle.prompt, third.where) == ({"answer": "0.10"}, "a\nb", "row 2")


def test_texts_of_the_file_are_no_templates() -> None:
    (item,), _ = read(json_lines([{"question": "{answer} {{", "answer": 1}]), config(prompt="<{question}>"))
    assert item.puzzle.prompt == "<{answer} {{>"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": "Hello"}, "names no column"),
        ({"prompt": "{question} {answer}"}, "gives? its answer away"),
        ({"prompt": "{question} {gold}", "answer": "gold"}, "gives? its answer away"),
        ({"grader": "regex"}, "pattern must be given"),
        ({"pattern": "(a)"}, "pattern must be given"),
        ({"grader": "regex", "pattern": "(a"}, "pattern: unclosed group"),
        ({"grader": "regex", "pattern": "a"}, "pattern: it has no group"),
        ({"grader": "fuzzy"}, "grader"),
        ({"path": ""}, "path"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    requested = {"puzzle": {"environment": "file", "path": "x.jsonl", "grader": "number", **settings}}
    with pytest.raises(BadInputError, match=message):
        validate(PrepareConfig, requested, "puzzles")


@pytest.mark.parametrize(
    ("data", "settings", "where", "found"),
    [
        (b"", {}, "some.jsonl", "no rows"),
        (b"\n\n", {}, "some.jsonl", "no rows"),
        (b"{", {}, "some.jsonl, line 1", "not JSON"),
        (b"[1]", {}, "some.jsonl, line 1", "not an object: [1]"),
        (b"[" * 100_000, {}, "some.jsonl, line 1", "nested too deeply"),
        (b"\xff", {}, "some.jsonl", "byte 1 is not UTF-8"),
        (json_lines([{"question": "a"}]), {}, "some.jsonl, line 1", "no column 'answer'"),
        (json_lines([{"question": "a", "answr": 1}]), {}, "some.jsonl, line 1", "did you mean 'answr'"),
        (json_lines(ROWS), {"prompt": "{question} {hint}"}, "some.jsonl, line 1", "no column 'hint'"),
        (json_lines([{"question": None, "answer": 1}]), {}, "line 1, column 'question'", "no value"),
        (json_lines([{"question": " ", "answer": 1}]), {}, "line 1, column 'question'", "an empty text"),
        (json_lines([{"question": "a", "answer": ""}]), {}, "line 1, column 'answer'", "an empty text"),
        (json_lines([{"question": "a", "answer": None}]), {}, "line 1, column 'answer'", "no value"),
        (json_lines([{"question": "a", "answer": True}]), {}, "line 1, column 'answer'", "a boolean"),
        (json_lines([{"question": "a", "answer": [1]}]), {}, "line 1, column 'answer'", "a list"),
        (json_lines([{"question": "a", "answer": "few"}]), {}, "line 1, column 'answer'", "'few', which the grader"),
        (b'{"question": "a", "answer": NaN}', {}, "line 1, column 'answer'", "'NaN', which the grader"),
        (json_lines([{"question": "\0", "answer": 1}]), {}, "line 1, column 'question'", "the character 0"),
        (b'{"question": "\\ud800", "answer": 1}', {}, "line 1, column 'question'", "surrogate"),
        (json_lines([ROWS[0], ROWS[0]]), {"id": "name"}, "line 2, column 'name'", "the id 'q0' of line 1"),
        (json_lines([{**ROWS[0], "part": "dev"}]), {"split_column": "part"}, "line 1, column 'part'", "'dev'"),
        (b"", {"path": "x.csv"}, "x.csv", "not CSV"),
        (b"question,answer\n1,2,3\n", {"path": "x.csv"}, "x.csv", "not CSV"),
        (b"question,answer\n\xe4,2\n", {"path": "x.csv"}, "x.csv", "byte 17 is not UTF-8"),
        (b"question;answer\na;2\n", {"path": "x.csv"}, "x.csv", "';' between columns"),
        (b"question\na\n", {"path": "x.csv"}, "x.csv", "no column 'answer'"),
        (b"question,answer\na,\n", {"path": "x.csv"}, "x.csv, row 1, column 'answer'", "no value"),
        (b"PAR1", {"path": "x.parquet"}, "x.parquet", "not Parquet"),
        (content("parquet", [{"question": "a", "answer": [1]}]), {"path": "x.parquet"}, "column 'answer'", "a list"),
        (content("parquet", [{"question": "a", "answer": True}]), {"path": "x.parquet"}, "column 'answer'", "boolean"),
        (b"[{}, 1]", {"path": "x.json"}, "x.json, item 1", "no column 'question'"),
        (b'[{"question": "a", "answer": 1}, 1]', {"path": "x.json"}, "x.json, item 2", "not an object"),
        (b"[{}", {"path": "x.json"}, "x.json", "not JSON"),
        (b"{}", {"path": "x.txt"}, "x.txt", "a name that ends in '.txt'"),
    ],
)
def test_bad_files(data: bytes, settings: dict[str, Any], where: str, found: str) -> None:
    with pytest.raises(BadInputError) as raised:
        read(data, config(**settings))
    assert where in raised.value.where
    assert found in raised.value.found
    assert "\n" not in str(raised.value)
    assert raised.value.expected
    assert raised.value.remedy


def test_splits_are_disjoint_and_held_out_questions_stay_when_train_grows(
    tmp_path: Path, ctx: StageContext, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "q.jsonl").write_bytes(json_lines())
    small = PrepareConfig(puzzle=config(str(tmp_path / "q.jsonl")), train=5, val=6, test=7, seed=3)
    splits = splits_of(ref := made(small, ctx), ctx)
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 5, "val": 6, "test": 7}
    assert len({item.digest for rows in splits.values() for item in rows}) == 18
    more = splits_of(made(small.model_copy(update={"train": 17}), ctx, "more"), ctx)
    assert (more["val"], more["test"], more["train"][:5]) == (splits["val"], splits["test"], splits["train"])
    other = splits_of(made(small.model_copy(update={"seed": 4}), ctx, "other"), ctx)
    assert other["test"] != splits["test"]
    assert made(small, ctx) == ref
    unused = "12 of 30 usable questions are in no split (puzzles.train = 5, puzzles.val = 6, puzzles.test = 7)"
    assert unused in caplog.text
    assert small.first_stretches() == []
    with pytest.raises(BadInputError, match=r"30 questions; expected at least 31; lower puzzles.train"):
        made(small.model_copy(update={"train": 18}), ctx, "large")


def test_a_column_names_the_splits_and_repeated_prompts_stay_held_out(tmp_path: Path, ctx: StageContext) -> None:
    leaked = [{**row, "part": "train"} for row in ROWS if row["part"] == "test"]
    (tmp_path / "q.jsonl").write_bytes(json_lines(leaked + ROWS))
    requested = PrepareConfig(puzzle=config(str(tmp_path / "q.jsonl"), split_column="part"), train=10, val=10, test=10)
    ref = made(requested, ctx)
    splits = splits_of(ref, ctx)
    prompts = {name: {row["question"] for row in ROWS if row["part"] == name} for name in SPLITS}
    assert {name: {item.prompt for item in rows} for name, rows in splits.items()} == prompts
    assert Artifact.open(ctx.store, ref).manifest.facts["repeated"] == 10
    with pytest.raises(BadInputError, match=r"10 questions of split 'train' after dropping 10 .* at least 11; lower"):
        made(requested.model_copy(update={"train": 11}), ctx, "large")
    assert splits_of(made(requested.model_copy(update={"val": 0}), ctx, "none"), ctx)["val"] == []


def test_prompts_that_differ_in_spaces_and_case_are_one(tmp_path: Path, ctx: StageContext) -> None:
    again = [{**row, "question": f"  {row['question'].upper()}\u00a0\n", "part": "train"} for row in ROWS]
    (tmp_path / "q.jsonl").write_bytes(json_lines(again + ROWS))
    requested = PrepareConfig(puzzle=config(str(tmp_path / "q.jsonl"), split_column="part"), train=10, val=10, test=10)
    splits = splits_of(ref := made(requested, ctx), ctx)
    folded = {name: {" ".join(item.prompt.split()).casefold() for item in rows} for name, rows in splits.items()}
    assert not folded["train"] & (folded["val"] | folded["test"])
    assert Artifact.open(ctx.store, ref).manifest.facts["repeated"] == len(ROWS)


def test_the_same_prompt_with_two_answers_is_refused(tmp_path: Path, ctx: StageContext) -> None:
    (tmp_path / "q.jsonl").write_bytes(json_lines([*ROWS, {**ROWS[4], "answer": 9}]))
    with pytest.raises(BadInputError, match=r"same prompt with the answers '8' \(line 5\) and '9' \(line 31\)"):
        made(PrepareConfig(puzzle=config(str(tmp_path / "q.jsonl")), train=5, val=5, test=5), ctx)


def test_equal_answers_in_two_spellings_are_one(tmp_path: Path, ctx: StageContext) -> None:
    (tmp_path / "q.jsonl").write_bytes(json_lines([*ROWS, {**ROWS[4], "answer": "8.0"}]))
    question = config(str(tmp_path / "q.jsonl"), grader="number")
    made(PrepareConfig(puzzle=question, train=20, val=5, test=5), ctx)


def test_a_question_is_known_again_in_another_prompt(tmp_path: Path, ctx: StageContext) -> None:
    """Else a teacher's answers to test questions that were asked in other words would be trained on."""
    digests: list[set[str]] = []
    for number, prompt in enumerate(("{question}", "Think first.\n\n{question} ")):
        (tmp_path / "q.jsonl").write_bytes(json_lines([{**row, "question": f"{row['question']} "} for row in ROWS]))
        wanted = PrepareConfig(puzzle=config(str(tmp_path / "q.jsonl"), prompt=prompt), train=20, val=5, test=5)
        splits = splits_of(made(wanted, ctx, f"set-{number}"), ctx)
        digests.append({item.digest for rows in splits.values() for item in rows})
    assert digests[0] == digests[1]
    assert len(digests[0]) == 30


def test_a_row_of_a_csv_file_with_an_id_alone_is_no_blank_line() -> None:
    question = config("q.csv", id="id")
    with pytest.raises(BadInputError, match=r"row 2, column 'question'"):
        read(b"id,question,answer\n1,a,1\n2,,\n3,c,2\n", question)
    questions, _ = read(b"id,question,answer\n1,a,1\n\n3,c,2\n", question)
    assert [item.puzzle.prompt for item in questions] == ["a", "c"]


def test_unusable_rows_are_dropped_only_on_request(tmp_path: Path, ctx: StageContext) -> None:
    bad = [{**ROWS[4], "answer": 9}, {"question": "?", "answer": ""}, {"question": " ", "answer": 1}, ROWS[5]]
    (tmp_path / "q.jsonl").write_bytes(json_lines([*ROWS, *bad]))
    with pytest.raises(BadInputError, match=r"line 32, column 'answer': an empty text"):
        made(PrepareConfig(puzzle=config(str(tmp_path / "q.jsonl")), train=5, val=5, test=5), ctx)
    requested = PrepareConfig(puzzle=config(str(tmp_path / "q.jsonl"), unusable="drop"), train=19, val=5, test=5)
    ref = made(requested, ctx, "dropped")
    prompts = {item.prompt for rows in splits_of(ref, ctx).values() for item in rows}
    assert prompts == {row["question"] for row in ROWS} - {ROWS[4]["question"]}
    facts = Artifact.open(ctx.store, ref).manifest.facts
    assert (facts["repeated"], facts["unusable"]) == (1, 4)
    with pytest.raises(BadInputError, match=r"29 questions after dropping 5 .* expected at least 30"):
        made(requested.model_copy(update={"train": 20}), ctx, "large")
    assert len(read(json_lines(), config(unusable="drop", question="none", prompt="{name}"))[0]) == 30
    with pytest.raises(BadInputError, match="2 rows, all empty"):
        read(json_lines(bad[1:3]), config(unusable="drop"))


def test_a_row_is_empty_also_if_only_what_is_read_of_it_is() -> None:
    """An answer after its mark, the only one of a list, and the last message of a prompt."""
    drop: dict[str, Any] = {"path": "some.jsonl", "unusable": "drop"}
    marked = [{"question": "1 + 1?", "answer": "#### 2"}, {"question": "?", "answer": "It is ####  "}]
    listed = [{"question": "1 + 1?", "answer": ["2"]}, {"question": "?", "answer": [" "]}]
    asked = [{"question": [{"role": "user", "content": text}], "answer": 2} for text in ("1 + 1?", "\n")]
    for rows, columns in (
        (marked, QuestionFileConfig(**drop, answer_after="####")),
        (listed, MathsConfig(**drop)),
        (asked, QuestionFileConfig(**drop)),
    ):
        questions, empty = read(json_lines(rows), columns)
        assert ([item.puzzle.prompt for item in questions], empty) == (["1 + 1?"], 1)
        with pytest.raises(BadInputError, match=r"line 2, column '\w+': an empty text"):
            read(json_lines(rows), columns.model_copy(update={"unusable": "refuse"}))


def test_a_set_is_used_for_its_lost_file_and_not_for_one_of_this_name_elsewhere(
    tmp_path: Path, ctx: StageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "mine.jsonl").write_bytes(json_lines(ROWS))
    relative, absolute = (
        PrepareConfig(puzzle=config(path), train=4, val=4, test=4)
        for path in ("mine.jsonl", str(tmp_path / "here" / "mine.jsonl"))
    )
    monkeypatch.chdir(tmp_path / "here")
    ref = made(relative, ctx, f"puzzles/set-{identity_of(relative).digest[:12]}")
    (tmp_path / "here" / "mine.jsonl").unlink()
    assert made_from_a_lost_file(relative, ctx.store) == ref
    monkeypatch.chdir(tmp_path / "there")
    assert made_from_a_lost_file(relative, ctx.store) is None
    assert made_from_a_lost_file(absolute, ctx.store) == ref


def test_content_and_settings_are_the_identity_but_not_the_path(tmp_path: Path, ctx: StageContext) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").write_bytes(json_lines(ROWS[:20] if name == "c" else ROWS))
    a, b, c = (PrepareConfig(puzzle=config(str(tmp_path / f"{name}.jsonl")), train=4, val=4, test=4) for name in "abc")
    assert identity_of(a) == identity_of(b) != identity_of(c)
    url = PrepareConfig(puzzle=config(f"file://{tmp_path}/a.jsonl"), train=4, val=4, test=4)
    assert identity_of(url) == identity_of(a)
    other = PrepareConfig(puzzle=config(str(tmp_path / "a.jsonl"), prompt="{question}?"), train=4, val=4, test=4)
    assert identity_of(other) != identity_of(a)
    ref = made(a, ctx, f"puzzles/set-{identity_of(a).digest[:12]}")
    assert made_from_a_lost_file(a, ctx.store) is None
    (tmp_path / "a.jsonl").unlink()
    assert made_from_a_lost_file(a, ctx.store) == ref
    assert made_from_a_lost_file(a.model_copy(update={"seed": 9}), ctx.store) is None
    with pytest.raises(BadInputError, match=r"a\.jsonl: no such file; expected a file \.jsonl"):
        identity_of(a)


RECIPE: dict[str, Any] = {
    "title": "t", "iterations": 1, "model": {"source": "scratch"},
    "puzzles": {"puzzle": {"environment": "file", "path": "q.jsonl", "grader": "number"}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("section", "settings", "message"),
    [
        ("grade", {"reward": {"format_weight": 0.1}}, "format_weight: .* cannot check the format of an answer; set it"),
        ("grade", {"reward": {"deductions_weight": 0.1}}, "deductions_weight: .* cannot solve a question"),
        ("grade", {"advantage": {"level": "process"}}, "level = 'process': .* cannot solve .* set it to 'outcome'"),
        ("grade", {"grader": "published"}, "grade.grader is 'published', but .* graded by number: leave it out"),
        ("final", {"grader": "published"}, "final.grader is 'published'"),
        ("warm_start", {"text": "derivations"}, "the environment 'file' cannot derive an answer"),
        ("puzzles", {**RECIPE["puzzles"], "file": "x.json"}, "drop"),
        (
            "puzzles",
            {"puzzle": {"environment": "file", "path": "q.jsonl", "grader": "regex", "pattern": "(a)"}},
            "warm_start: the environment 'file' cannot write an answer; drop the section, or choose another grader",
        ),
        ("sample", {"puzzles_per_iteration": 257}, r"puzzles_per_iteration is 257, more than puzzles\.train \(256\)"),
    ],
)
def test_recipes_ask_only_for_what_questions_from_a_file_can_do(
    section: str, settings: dict[str, Any], message: str
) -> None:
    extra = {"warm_start": {"steps": 1, "texts_per_step": 1}}
    recipe = validate(Recipe, {**RECIPE, **extra}, "mine")
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    with pytest.raises(BadInputError, match=message):
        validate(Recipe, {**RECIPE, **extra, section: {**extra.get(section, {}), **settings}}, "mine")


def test_the_recipe_of_the_page_is_complete(tmp_path: Path) -> None:
    _, _, section = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text().partition("## Your own questions")
    (tmp_path / "mine.toml").write_text(section.partition("```toml\n")[2].partition("```")[0])
    recipe = load_recipe(str(tmp_path / "mine.toml"))
    assert isinstance(recipe.puzzles.puzzle, QuestionFileConfig)
    assert recipe.puzzles.puzzle.grader == "number"


def table() -> pl.DataFrame:
    return to_table([item.puzzle for item in read(json_lines(ROWS[:4]), config(id="name"))[0]])


def test_what_is_missing_is_refused_by_name() -> None:
    puzzles = table()
    puzzle = from_table(puzzles)[0]
    family = environment.get(puzzle.environment)
    with pytest.raises(BadInputError, match=r"the environment 'file' cannot derive an answer; .* warm_start.text"):
        taught_texts(puzzles, "plain")
    with pytest.raises(BadInputError, match=r"^x: .*'file' cannot solve a question or prove a statement; .*; drop y"):
        capabilities.needs(family, capabilities.Proves, "x", "drop y")
    with pytest.raises(BadInputError, match="the environment 'file' cannot generate puzzles from a seed"):
        generate(config(), 0)
    for lacked in ("HasKinds", "HasLevels", "NamesThings", "ReadsPublished"):
        assert not isinstance(family, getattr(capabilities, lacked))
    assert isinstance(family, capabilities.WritesAnswers)
    assert not isinstance(environment.get("file:regex:(a)"), capabilities.WritesAnswers)
    with pytest.raises(BadInputError, match="expected file:exact, file:choice"):
        environment.get("file:fuzzy")
    assert of_text(puzzle.prompt).name == "temporal_clue"
    assert (assertions("x", puzzle), names_of(puzzles)) == (None, [])


def test_answers_are_taught_as_the_grader_reads_them() -> None:
    puzzles = table()
    texts = taught_texts(puzzles, None)
    assert texts == ["Answer: 0", "Answer: 2", "Answer: 4", "Answer: 6"]
    for puzzle, text in zip(from_table(puzzles), texts, strict=True):
        assert environment.get(puzzle.environment).grade(text, puzzle).exact
    assert grader_of(puzzles, "strict") == "number"


def test_a_warm_start_on_answers_fits_a_scratch_model(tmp_path: Path) -> None:
    puzzles = table()
    texts = taught_texts(puzzles, None)
    make_scratch(ScratchModel(), [*puzzles["prompt"], *texts], tmp_path)
    tokenizer = ChatTokenizer(tmp_path)
    groups = taught_groups(WarmStartConfig(steps=1, texts_per_step=4), puzzles, tokenizer)
    assert [tokenizer.decode(group.branches[0].tokens) for group in groups] == texts


@pytest.mark.parametrize("setting", [{}, {"reward": {"format_weight": 1.0}}, {"advantage": {"level": "process"}}])
def test_the_grade_stage(tmp_path: Path, ctx: StageContext, setting: dict[str, Any]) -> None:
    attempt = ArtifactAddress(ctx.store, "puzzles", Puzzles).attempt(Identity.of("prepare", 1, {}))
    attempt.write_table("train.parquet", table(), PUZZLES)
    puzzles: Ref[Puzzles] = attempt.publish()
    texts = ["Answer: 2", "Answer: 3", "2 is 1 + 1", "2.0"]
    rows = [
        {
            "prompt_id": "q1", "group": 0, "sample": sample, "prompt_token_ids": [1], "completion_token_ids": [3],
            "sampler_logprobs": [-0.5], "text": text, "finish_reason": "stop",
            "sampling": json.dumps({"max_tokens": 4}), "weights_digest": "w", "engine": "e", "group_s": 1.0,
        }
        for sample, text in enumerate(texts)
    ]  # fmt: skip
    sampled = ArtifactAddress(ctx.store, "rollouts", Rollouts).attempt(Identity.of("sample", 1, {}))
    sampled.write_shard("rollouts", as_table(rows, ROLLOUTS), ROLLOUTS)
    rollouts: Ref[Rollouts] = sampled.publish()
    out = ArtifactAddress(ctx.store, "grades", Grades)
    if setting:
        with pytest.raises(BadInputError, match=r"the environment 'file' cannot .* set it to (0|'outcome')"):
            grade(ctx, GradeConfig.model_validate(setting), rollouts, puzzles, out=out)
        return
    grades = Artifact.open(ctx.store, grade(ctx, GradeConfig(), rollouts, puzzles, out=out))
    graded = grades.read_table(GRADES_FILE, GRADES)
    assert graded["accuracy"].to_list() == [1.0, 0.0, 0.0, 1.0]
    assert graded["grader"].unique().to_list() == ["number"]
    assert json.loads(graded["answers"][1])["answer"]["text"] == "3"
    assert graded["statements"].null_count() == 4


def test_the_report_of_a_set_without_clues() -> None:
    facts = describe({"train": from_table(table()), "val": []}, LengthMeasure("characters", "", len))
    files = report_files(facts)
    page = files["report.html"].decode()
    assert sorted(files) == ["prompt.png", "report.html", "report.json"]
    assert "clue" not in page
    assert "prompt" in page
