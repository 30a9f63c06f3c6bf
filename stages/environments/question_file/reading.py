"""Reads questions from JSONL, CSV and Parquet files; an error names the file, the line or row, and the column."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, cast

import polars as pl

from artifacts.documents.parsing import text_problem
from artifacts.documents.suggestions import closest, did_you_mean
from artifacts.errors import BadInputError
from artifacts.local.input_files import LARGEST_TABLE, read_input
from artifacts.store.location import local_folder
from artifacts.store.store import MissingKeyError, Store
from stages.environments.puzzle import Puzzle
from stages.environments.question_file.config import BRACES_AS_TEXT, QuestionColumns, WrittenNumber
from stages.environments.single_answer import ANSWER, single_item

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
_SHOWN_COLUMNS = 20


@dataclass(frozen=True)
class FileQuestion:
    """A question of a file.

    Attributes:
        puzzle: The question with its answer.
        split: Its split by the column that names splits; None without such a column.
        where: Its place in the file, such as `line 7`.
    """

    puzzle: Puzzle
    split: Split | None
    where: str


def content_of(path: str) -> bytes:
    """Returns the content of a file that a recipe names by a local path, file:// or s3://.

    Raises:
        BadInputError: There is no such file, or it cannot be read.
    """
    expected, remedy = "a .jsonl, .csv or .parquet file", "check puzzles.puzzle.path"
    if (local := local_folder(path)) is not None:
        if not local.is_absolute():
            remedy = "a relative puzzles.puzzle.path starts at the working directory"
        return read_input(local, expected, remedy, where=str(local.absolute()), most_bytes=LARGEST_TABLE)
    folder, _, name = path.rpartition("/")
    try:
        return Store.open(folder, writable=False).read_bytes(name, LARGEST_TABLE)
    except MissingKeyError as error:
        raise BadInputError(path, "no such file", expected, remedy) from error


def read_questions(content: bytes, config: QuestionColumns) -> tuple[list[FileQuestion], int]:
    """Returns the questions of a file in their order, and the number of rows dropped because a text of theirs is empty.

    Args:
        content: Content of the file at `config.path`.
        config: Columns and prompt.

    Raises:
        BadInputError: The file is damaged, lacks a column, or has a row without a usable question or answer; two rows
            have the same id.
    """
    kind, rows = _table(content, config)
    questions: list[FileQuestion] = []
    places: dict[str, str] = {}
    empty = 0
    for number, *values in rows:
        where, row = f"{kind} {number}", dict(zip(config.columns, values, strict=True))
        if config.unusable == "drop" and (_is_empty(row[config.question]) or _is_empty(row[config.answer])):
            empty += 1
            continue
        question = _question(config, where, row, f"{number}")
        puzzle_id = question.puzzle.puzzle_id
        if puzzle_id in places:
            raise BadInputError(
                f"{config.path}, {where}, column {config.id!r}",
                f"the id {puzzle_id[:60]!r} of {places[puzzle_id]}",
                "an id that no other row has",
                "make the ids different, or leave puzzles.puzzle.id out",
            )
        places[puzzle_id] = where
        questions.append(question)
    if not questions:
        raise BadInputError(
            config.path, f"{empty} rows, all empty" if empty else "no rows", "at least one question",
            "check puzzles.puzzle.path",
        )  # fmt: skip
    return questions, empty


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _question(config: QuestionColumns, where: str, row: dict[str, Any], number: str) -> FileQuestion:
    row = {**row, config.answer: config.answer_text(row[config.answer])}
    texts = {column: _text(value, f"{config.path}, {where}, column {column!r}") for column, value in row.items()}
    for column in dict.fromkeys((config.question, config.answer, config.id)):
        if column in texts and not texts[column].strip():
            raise BadInputError(
                f"{config.path}, {where}, column {column!r}", "an empty text", "a text", "fill it in, or drop the row"
            )
    prompt, answer = config.write_prompt(texts), texts[config.answer].strip()
    split = None if config.split is None else texts[config.split].strip()
    if split is not None and split not in SPLITS:
        raise BadInputError(
            f"{config.path}, {where}, column {config.split!r}", repr(split[:60]), "train, val or test", "rename it"
        )
    puzzle_id = number if config.id is None else texts[config.id].strip()
    puzzle = single_item(puzzle_id, config.environment_name, prompt, {ANSWER: answer})
    config.check_answer(answer, f"{config.path}, {where}, column {config.answer!r}")
    return FileQuestion(puzzle, split, where)


def _text(value: object, where: str) -> str:
    """Returns a value as text."""
    if isinstance(value, WrittenNumber):
        return value.text
    if not isinstance(value, str):
        kinds: dict[type, str] = {bool: "a boolean", list: "a list", dict: "an object"}
        empty = value is None
        raise BadInputError(
            where,
            "no value (null)" if empty else kinds.get(type(value), f"a {type(value).__name__}"),
            "a text or a number",
            "fill it in, or drop the row" if empty else "write it as a text",
        )
    if problem := text_problem(value):
        raise BadInputError(where, problem, "text", "remove it")
    return value


def _table(content: bytes, config: QuestionColumns) -> tuple[str, Sequence[tuple[Any, ...]]]:
    """Returns `line` or `row`, and for each row its number, counted from 1, and the values of `config.columns`."""
    suffix = PurePosixPath(config.path).suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return "line", _json_lines(content, config)
    if suffix not in (".csv", ".parquet"):
        raise BadInputError(config.path, f"a name that ends in {suffix!r}", ".jsonl, .csv or .parquet", "convert it")
    return "row", (_csv if suffix == ".csv" else _parquet)(content, config)


def _json_lines(content: bytes, config: QuestionColumns) -> list[tuple[Any, ...]]:
    expected = "a JSON object on every line"
    try:
        lines = content.decode("utf-8-sig").split("\n")  # other line separators may stand inside a JSON text
    except UnicodeDecodeError as error:
        raise BadInputError(
            config.path, f"byte {error.start + 1} is not UTF-8", expected, "save it as UTF-8"
        ) from error
    rows: list[tuple[Any, ...]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{config.path}, line {number}"
        try:
            row = json.loads(line, parse_int=WrittenNumber, parse_float=WrittenNumber, parse_constant=WrittenNumber)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise BadInputError(where, f"not JSON ({reason})", expected, "correct the line") from error
        if not isinstance(row, dict):
            raise BadInputError(where, f"not an object: {line.strip()[:60]}", expected, "write {...} on the line")
        named = cast("dict[str, Any]", row)
        _check_columns(named, where, config)
        rows.append((number, *(named[column] for column in config.columns)))
    return rows


def _csv(content: bytes, config: QuestionColumns) -> list[tuple[Any, ...]]:
    frame = _opened(lambda: pl.read_csv(io.BytesIO(content), infer_schema=False), config, "CSV")
    _check_columns(frame.columns, config.path, config)
    rows = enumerate(frame.select(config.columns).rows(), start=1)
    return [(number, *row) for number, row in rows if any(value is not None for value in row)]  # not blank lines


def _parquet(content: bytes, config: QuestionColumns) -> list[tuple[Any, ...]]:
    schema = _opened(lambda: pl.read_parquet_schema(io.BytesIO(content)), config, "Parquet")
    _check_columns(schema, config.path, config)
    for column in config.columns:
        if not (schema[column].is_numeric() or schema[column] in (pl.String, pl.Categorical, pl.Enum, pl.Null)):
            raise BadInputError(
                f"{config.path}, column {column!r}", f"type {schema[column]}", "texts or numbers", "convert the column"
            )
    columns = list(config.columns)
    frame = _opened(lambda: pl.read_parquet(io.BytesIO(content), columns=columns), config, "Parquet")
    return [(number, *row) for number, row in enumerate(frame.select(columns).cast(pl.String).rows(), start=1)]


def _opened(read: Callable[[], Any], config: QuestionColumns, kind: str) -> Any:
    try:
        return read()
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).strip().partition("\n")[0][:200]
        raise BadInputError(config.path, f"not {kind} ({reason})", f"a {kind} file", "check the file") from error


def _check_columns(columns: Any, where: str, config: QuestionColumns) -> None:
    for column in config.columns:
        if column not in columns:
            names = list(columns)
            in_prompt = column in config.prompt_columns and column != config.question
            near = "" if in_prompt and closest(column, names) == config.answer else did_you_mean(column, names)
            braces = f"; {BRACES_AS_TEXT}" if in_prompt else ""
            shown = ", ".join(name[:40] for name in names[:_SHOWN_COLUMNS])
            more = f" and {len(names) - _SHOWN_COLUMNS} more" if len(names) > _SHOWN_COLUMNS else ""
            raise BadInputError(
                where,
                f"no column {column!r}{near}",
                f"one of: {shown}{more}",
                f"name the columns in puzzles.puzzle, and in its prompt{braces}",
            )
