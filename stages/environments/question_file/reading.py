"""Reads questions from JSONL, CSV and Parquet files; an error names the file, the line or row, and the column."""

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Literal, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from artifacts.documents.conversation import Message, read_messages, stored_prompt
from artifacts.documents.parsing import text_problem
from artifacts.documents.suggestions import closest, did_you_mean, listed
from artifacts.errors import BadInputError
from artifacts.local.input_files import LARGEST_TABLE, UnfitInputError, read_at_most
from stages.environments.puzzle import Puzzle
from stages.environments.question_file.config import BRACES_AS_TEXT, FORMATS, READABLE, QuestionColumns, WrittenNumber
from stages.environments.question_file.files import QuestionPart
from stages.environments.question_file.graders import folded
from stages.environments.single_answer import ANSWER, ITEM, reward_item, single_item

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
_SHOWN_COLUMNS = 20
_MOST_LEVELS = 8
"""Levels of nested objects whose fields have names."""
_ROWS_AT_ONCE = 64
"""Rows of a Parquet file that are decoded before their size is known; a cell has less than 2 GiB."""


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


def read_questions(parts: Sequence[QuestionPart], config: QuestionColumns) -> tuple[list[FileQuestion], int]:
    """Returns the questions of files in their order, and the number of rows dropped because of an empty text.

    Args:
        parts: The files.
        config: Columns and prompt.

    Raises:
        BadInputError: A file is damaged, lacks a column, or has a row without a usable question or answer; two rows
            have the same id.
    """
    questions: list[FileQuestion] = []
    places: dict[str, str] = {}
    empty = 0
    for order, part in enumerate(parts):
        kind, rows = _rows(part, config)
        for number, row in rows:
            where = f"{part.name}, {kind} {number}"
            name = f"{number}" if len(parts) == 1 else f"{order}-{number}"
            question = _question(config, where, row, name)
            if question is None:
                empty += 1
                continue
            prompt_id = question.puzzle.prompt_id
            if prompt_id in places:
                raise BadInputError(
                    f"{where}, column {config.id!r}",
                    f"the id {prompt_id[:60]!r} of {places[prompt_id]}",
                    "an id that no other row has",
                    "make the ids different, or leave puzzles.puzzle.id out",
                )
            places[prompt_id] = question.where
            questions.append(question)
    if not questions:
        raise BadInputError(
            config.path, f"{empty} rows, all empty" if empty else "no rows", "at least one question",
            "check puzzles.puzzle.path",
        )  # fmt: skip
    return questions, empty


def check_part(part: QuestionPart, config: QuestionColumns) -> None:
    """Checks a file before it is read: the columns in the footer of a Parquet file, or that another one can be read.

    Raises:
        BadInputError: It cannot be read; or it is not Parquet, lacks a column, or has too many bytes in those that
            are needed.
    """
    with part.opened() as stream:
        if _suffix(part) == ".parquet":
            _parquet_columns(stream, part, config)
        else:
            stream.read(1)


def _is_empty(value: object) -> bool:
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def _question(config: QuestionColumns, where: str, row: dict[str, Any], number: str) -> FileQuestion | None:
    """Returns the question of a row; None if its question or its answer is empty and such rows are dropped."""
    drops, needed = config.unusable == "drop", (config.question, config.answer)
    if drops and any(_is_empty(row[column]) for column in needed if column in row):
        return None
    messages: list[Message] = []
    texts: dict[str, str] = {}
    for column, value in row.items():
        place, said = f"{where}, column {column!r}", value
        if column in config.prompt_columns and isinstance(value, list):
            if messages:
                raise BadInputError(place, "a second list of messages", "one in a prompt", "name one in the prompt")
            messages = read_messages(cast("list[object]", value), place)
            said = messages[-1]["content"]
        elif column == config.answer:
            said = config.answer_text(value)
        texts[column] = _text(said, place)
    answer = _final(texts[config.answer], config, f"{where}, column {config.answer!r}")
    for column in dict.fromkeys((*needed, config.id)):
        if column in texts and not (answer if column == config.answer else texts[column]).strip():
            if drops and column in needed:
                return None
            raise BadInputError(f"{where}, column {column!r}", "an empty text", "a text", "fill it in, or drop the row")
    prompt = stored_prompt([*messages[:-1], {"role": "user", "content": config.write_prompt(texts)}])
    split = None if config.split_column is None else texts[config.split_column].strip()
    if split is not None and split not in SPLITS:
        raise BadInputError(
            f"{where}, column {config.split_column!r}", repr(split[:60]), "train, val or test", "rename it"
        )
    prompt_id = number if config.id is None else texts[config.id].strip()
    solution = {ANSWER: answer}
    if config.reward_columns:
        further = {column: texts[column] for column in config.reward_columns}
        solution[ITEM] = json.dumps({**further, **reward_item(prompt, {ANSWER: answer})})
    asked = [*(message["content"] for message in messages[:-1]), *(texts[column] for column in config.prompt_columns)]
    digest = hashlib.sha256(folded("\n".join(asked)).encode()).hexdigest()  # the same whatever the prompt says besides
    puzzle = replace(single_item(prompt_id, config.environment_name, prompt, solution), digest=digest)
    config.check_answer(answer, f"{where}, column {config.answer!r}")
    return FileQuestion(puzzle, split, where.removeprefix(f"{config.path}, "))


def _final(answer: str, config: QuestionColumns, where: str) -> str:
    """Returns the right answer: what follows the last mark, if answers have one."""
    if config.answer_after is None:
        return answer.strip()
    _, mark, final = answer.rpartition(config.answer_after)
    if not mark:
        found = f"no {config.answer_after!r} in {answer[-60:]!r}"
        raise BadInputError(where, found, "an answer after this mark", "correct puzzles.puzzle.answer_after")
    return final.strip()


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


def _suffix(part: QuestionPart) -> str:
    return PurePosixPath(part.name).suffix.lower()


def _rows(part: QuestionPart, config: QuestionColumns) -> tuple[str, Iterable[tuple[int, dict[str, Any]]]]:
    """Returns `line`, `item` or `row`, and for each its number, counted from 1, and the values of `config.columns`."""
    if (suffix := _suffix(part)) not in READABLE:
        raise BadInputError(part.name, f"a name that ends in {suffix!r}", FORMATS, "convert it")
    with part.opened() as stream:
        if suffix == ".parquet":
            return "row", _parquet(stream, part, config)
        try:
            content = read_at_most(stream.read, LARGEST_TABLE)
        except UnfitInputError as error:
            raise BadInputError(part.name, f"{error.strerror}", "a smaller file", "divide it") from error
    return ("row", _csv(content, part, config)) if suffix == ".csv" else _json_rows(content, part, config)


def _json_rows(
    content: bytes, part: QuestionPart, config: QuestionColumns
) -> tuple[str, list[tuple[int, dict[str, Any]]]]:
    """Reads JSON lines; of a file that ends in .json also a list of objects, as many tools write it."""
    kind, expected = "line", "a JSON object on every line"
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(part, error, expected) from error
    if _suffix(part) == ".json" and text.lstrip().startswith("["):
        kind, expected = "item", "a list of JSON objects"
        values = enumerate(_parsed(text, part.name, expected), start=1)
    else:
        lines = enumerate(text.split("\n"), start=1)  # other line separators may stand inside a JSON text
        values = ((i, _parsed(line, f"{part.name}, line {i}", expected)) for i, line in lines if line.strip())
    rows: list[tuple[int, dict[str, Any]]] = []
    for number, value in values:
        where = f"{part.name}, {kind} {number}"
        if not isinstance(value, dict):
            raise BadInputError(where, f"not an object: {str(value)[:60]}", expected, "write {...}")
        named = flat(cast("dict[str, Any]", value))
        _check_columns(named, where, config)
        rows.append((number, {column: named[column] for column in config.columns}))
    return kind, rows


def _parsed(text: str, where: str, expected: str) -> Any:
    try:
        return json.loads(text, parse_int=WrittenNumber, parse_float=WrittenNumber, parse_constant=WrittenNumber)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadInputError(where, f"not JSON ({reason})", expected, "correct it") from error


def flat(row: Mapping[str, Any], within: str = "", levels: int = _MOST_LEVELS) -> dict[str, Any]:
    """Returns the values of a row by name; those inside objects have dotted names, after the object's own.

    Args:
        row: The row.
        within: Prefix of their names.
        levels: Limit of nested levels; deeper names would take quadratic memory.
    """
    named = {f"{within}{name}": value for name, value in row.items()}
    for name, value in row.items():
        if isinstance(value, dict) and levels:
            named = {**flat(cast("dict[str, Any]", value), f"{within}{name}.", levels - 1), **named}
    return named


def _csv(content: bytes, part: QuestionPart, config: QuestionColumns) -> list[tuple[int, dict[str, Any]]]:
    try:
        frame = pl.read_csv(io.BytesIO(content), infer_schema=False)
    except pl.exceptions.PolarsError as error:
        try:
            content.decode()
        except UnicodeDecodeError as where:
            raise _not_utf8(part, where, "a CSV file") from error
        raise _damaged(part, "CSV", error) from error
    head = "".join(frame.columns)
    if len(frame.columns) == 1 and (mark := next((mark for mark in ";\t|" if mark in head), None)):
        raise BadInputError(part.name, f"{mark!r} between columns", "commas between columns", "save it with commas")
    _check_columns(frame.columns, part.name, config)
    blank = frame.select(pl.all_horizontal(pl.all().is_null())).to_series()
    rows = enumerate(frame.select(config.columns).iter_rows(named=True), start=1)
    return [(number, row) for (number, row), is_blank in zip(rows, blank, strict=True) if not is_blank]


def _parquet(stream: BinaryIO, part: QuestionPart, config: QuestionColumns) -> Iterable[tuple[int, dict[str, Any]]]:
    file, expressions = _parquet_columns(stream, part, config)
    try:
        table = _decoded(file, _heads(config, file.schema_arrow.names), part)
    except pa.ArrowException as error:
        raise _damaged(part, "Parquet", error) from error
    frame = cast("pl.DataFrame", pl.from_arrow(table))
    return enumerate(frame.select(**expressions).iter_rows(named=True), start=1)


def _decoded(file: pq.ParquetFile, columns: Sequence[str], part: QuestionPart) -> pa.Table:
    """Reads columns up to a limit: a text that many rows repeat is stored once, so that 500 bytes can hold 20 GB."""
    batches: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(columns)):
        size_bytes += batch.nbytes
        _check_table_size(size_bytes, part)
        batches.append(batch)
    return pa.Table.from_batches(batches) if batches else file.schema_arrow.empty_table().select(list(columns))


def _check_table_size(size_bytes: int, part: QuestionPart) -> None:
    if size_bytes > LARGEST_TABLE:
        found = f"{size_bytes:,} bytes in the columns that are read"
        raise BadInputError(part.name, found, f"at most {LARGEST_TABLE:,}", "name a smaller file or configuration")


def _parquet_columns(
    stream: BinaryIO, part: QuestionPart, config: QuestionColumns
) -> tuple[pq.ParquetFile, dict[str, pl.Expr]]:
    """Returns an open Parquet file and the expression of each column that is read, after reading its footer only."""
    try:
        file = pq.ParquetFile(stream, pre_buffer=True)
        empty = cast("pl.DataFrame", pl.from_arrow(file.schema_arrow.empty_table()))
    except pa.ArrowException as error:
        raise _damaged(part, "Parquet", error) from error
    expressions = dict(_expressions(empty.schema))
    _check_columns(expressions, part.name, config)
    heads, size_bytes = _heads(config, empty.columns), 0
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        columns = (group.column(index) for index in range(group.num_columns))
        size_bytes += sum(item.total_uncompressed_size for item in columns if _head(item.path_in_schema, heads))
    _check_table_size(size_bytes, part)
    return file, {column: expressions[column] for column in config.columns}


def _heads(config: QuestionColumns, names: Sequence[str]) -> list[str]:
    """Returns the columns of a file that contain those of a config, each once."""
    return list(dict.fromkeys(head for column in config.columns if (head := _head(column, names))))


def _head(column: str, names: Sequence[str]) -> str | None:
    """Returns the file's column that contains a column, of several the longest name; None if none does."""
    return max((name for name in names if f"{column}.".startswith(f"{name}.")), key=len, default=None)


def _expressions(
    schema: Mapping[str, Any], of: pl.Expr | None = None, within: str = ""
) -> Iterator[tuple[str, pl.Expr]]:
    """Yields each column's name, dotted if it is nested, and the expression of its values as they were written.

    Whole numbers stored as floats, as in tables with gaps, have no fraction: 13, not 13.0.
    """
    for name, kind in schema.items():
        value = pl.col(name) if of is None else of.struct.field(name)
        if isinstance(kind, pl.Struct):
            yield from _expressions(kind.to_schema(), value, f"{within}{name}.")
        if isinstance(kind, pl.Categorical | pl.Enum) or kind.is_numeric():
            value = value.cast(pl.String).str.strip_suffix(".0") if kind.is_float() else value.cast(pl.String)
        yield f"{within}{name}", value


def _not_utf8(part: QuestionPart, error: UnicodeDecodeError, expected: str) -> BadInputError:
    return BadInputError(part.name, f"byte {error.start + 1} is not UTF-8", expected, "save it as UTF-8")


def _damaged(part: QuestionPart, kind: str, error: Exception) -> BadInputError:
    reason = str(error).strip().partition("\n")[0][:200]
    return BadInputError(part.name, f"not {kind} ({reason})", f"a {kind} file", "check the file")


def _check_columns(columns: Any, where: str, config: QuestionColumns) -> None:
    for column in config.columns:
        if column not in columns:
            names = list(columns)
            in_prompt = column in config.prompt_columns and column != config.question
            near = "" if in_prompt and closest(column, names) == config.answer else did_you_mean(column, names)
            braces = f"; {BRACES_AS_TEXT}" if in_prompt else ""
            raise BadInputError(
                where,
                f"no column {column!r}{near}",
                f"one of: {listed([name[:40] for name in names], _SHOWN_COLUMNS)}",
                f"name the columns in puzzles.puzzle, and in its prompt{braces}",
            )
