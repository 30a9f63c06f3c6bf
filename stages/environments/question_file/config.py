"""Settings of questions from the user's own file. Quick to import: no library of tables."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self
from urllib.parse import unquote

from pydantic import Field, model_validator

from artifacts.errors import BadInputError
from artifacts.store.location import local_folder
from stages.environments.config import SourceConfig
from stages.environments.puzzle import FileGrader

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
READABLE = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
FORMATS = ".jsonl, .json, .csv or .parquet"
BRACES_AS_TEXT = "for braces as text write {{ and }}, as in \\boxed{{answer}}"
HUB, HF = "hub:", "hf:"
WEB = ("https://", "http://")
REMOTE = (HUB, HF, *WEB)
"""Beginnings of paths that are read once for a store."""
_ON_THE_HUB = {
    HUB: re.compile(r"hub:(?P<name>[\w.-]+/[\w.-]+)"),
    HF: re.compile(r"hf://datasets/(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/]+))?/(?P<files>.+)"),
}
_BRACES = {"{{": "{", "}}": "}"}


def place_of(location: str | None) -> str | None:
    """Returns the one spelling of a file's place on this machine, or of a remote place; None without a file."""
    if location is None or location.startswith(REMOTE):
        return location
    path = local_folder(location)
    return location if path is None else str(path.resolve())


@dataclass(frozen=True, repr=False)
class WrittenNumber:
    """A number as it is written in a JSON document: `1.50` stays `1.50`."""

    text: str

    def __repr__(self) -> str:
        return self.text


class QuestionColumns(SourceConfig):
    """Columns of JSONL, CSV or Parquet files of questions; the splits are drawn by `seed`, or named by a column.

    A column inside others has a dotted name: `extra_info.index`.
    """

    LOCATIONS: ClassVar[tuple[str, ...]] = ("path", "config", "split", "revision")

    path: str = Field(
        min_length=1,
        description=f"The file, {FORMATS}: a path (a relative one starts at the working directory), "
        "file://, s3://bucket/key, https://, or hf://datasets/OWNER/NAME/FILE of Hugging Face's hub, with * for "
        "several files. hub:OWNER/NAME is the Parquet to which the hub has converted a data set. Its content, not its "
        "path, decides whether a set is made again. A file of the hub or of https:// is read once for a store.",
    )
    config: str | None = Field(
        default=None,
        min_length=1,
        description="Configuration of a data set hub:OWNER/NAME; null: the only one, or `default`.",
    )
    split: str | None = Field(
        default=None, min_length=1, description="Split of a data set hub:OWNER/NAME; null: the only one."
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        description="Commit, tag or branch of a data set of the hub; null: `main`, and `refs/convert/parquet` of "
        "hub:OWNER/NAME. The commit is part of the set's identity.",
    )
    question: str = Field(
        default="question", min_length=1, description="Column of the question: texts, or lists of chat messages."
    )
    answer: str = Field(
        default="answer", min_length=1, description="Column of the right answer: texts, or numbers as they are written."
    )
    answer_after: str | None = Field(
        default=None,
        min_length=1,
        description="Mark after whose last occurrence the right answer begins in its column, such as ####; null: the "
        "column holds nothing else.",
    )
    id: str | None = Field(
        default=None, min_length=1, description="Column of a unique id; null: the number of the line or row."
    )
    split_column: str | None = Field(
        default=None,
        min_length=1,
        description="Column that says train, val or test; `puzzles.train`, `val` and `test` are drawn from the rows of "
        "each. null: all three are drawn from all rows.",
    )
    reward_columns: tuple[str, ...] = Field(
        default=(),
        description="Further columns that your own reward function reads, as fields of its `item`: texts. Not `prompt` "
        "or `solution`, which every item has.",
    )
    prompt: str = Field(
        default="{question}",
        min_length=1,
        description="Prompt, in which {question} stands for the question and {NAME} for the column NAME. For braces "
        "around a text write {{ and }}. Of a list of messages it is the last one; those before it stay.",
    )
    unusable: Literal["refuse", "drop"] = Field(
        default="refuse",
        description="What happens to a row with an empty question or answer, and to a prompt with different answers. "
        "`refuse`: an error. `drop`: they are left out, and the fact `unusable` of the set counts the rows.",
    )

    @model_validator(mode="after")
    def _path_is_complete(self) -> Self:
        scheme = next((word for word in (HUB, HF) if self.path.startswith(word)), None)
        if scheme is not None and not _ON_THE_HUB[scheme].fullmatch(self.path):
            raise ValueError(f"path is {self.path!r}; write hub:OWNER/NAME, or hf://datasets/OWNER/NAME/FILE")
        if scheme != HUB and (self.config or self.split):
            raise ValueError("config and split choose a part of a data set hub:OWNER/NAME; split_column names a column")
        if self.revision and (scheme is None or "@" in self.path):
            raise ValueError("revision is that of a data set of the hub, whose path names no other one")
        return self

    @model_validator(mode="after")
    def _prompt_asks(self) -> Self:
        if not self.prompt_columns:
            raise ValueError("prompt names no column: write {question}, or the name of another column in braces")
        if self.answer in self.prompt_columns or "answer" in _names(self.prompt):
            raise ValueError(
                f"prompt names the column of the answer, so every prompt would give its answer away; {BRACES_AS_TEXT}"
            )
        return self

    @model_validator(mode="after")
    def _items_keep_their_fields(self) -> Self:
        if taken := [name for name in ("prompt", "solution") if name in self.reward_columns]:
            raise ValueError(
                f"reward_columns names {taken[0]!r}, but item[{taken[0]!r}] is the item's own, which holds the "
                f"{'prompt' if taken[0] == 'prompt' else 'right answer'}: rename the column in the file"
            )
        return self

    @property
    def prompt_columns(self) -> tuple[str, ...]:
        """The columns of the file that the prompt names, in order."""
        return tuple(dict.fromkeys(self.question if name == "question" else name for name in _names(self.prompt)))

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read; no other column is stored."""
        optional = (column for column in (self.id, self.split_column) if column is not None)
        return tuple(dict.fromkeys((*self.prompt_columns, self.answer, *optional, *self.reward_columns)))

    @property
    def location(self) -> str | None:
        """The file, or the part of a data set."""
        named = (("config", self.config), ("split", self.split), ("revision", self.revision))
        return " ".join([self.path, *(f"{name}={value}" for name, value in named if value is not None)])

    @property
    def on_the_hub(self) -> tuple[str, str | None, str | None]:
        """Data set, revision and files of a path of the hub; None for what it does not name."""
        match = next(found for form in _ON_THE_HUB.values() if (found := form.fullmatch(self.path)))
        parts = match.groupdict()
        return parts["name"], self.revision or unquote(parts.get("revision") or "") or None, parts.get("files")

    def answer_text(self, value: object) -> object:
        """Returns the value of the answer's column; a subclass that allows other values converts them to one text."""
        return value

    def check_answer(self, answer: str, where: str) -> None:
        """Checks one right answer while the file is read. A subclass implements it if the check is quick.

        Raises:
            BadInputError: The answer cannot be graded.
        """

    def compared(self, answer: str) -> object:
        """Returns what equal right answers have in common; a subclass that grades numbers reads them."""
        return answer

    def write_prompt(self, row: Mapping[str, str]) -> str:
        """Returns the prompt of a row; braces in texts of the file have no meaning."""

        def filled(match: re.Match[str]) -> str:
            name = match.group(1)
            return _BRACES[match.group()] if name is None else row[self.question if name == "question" else name]

        return _PLACEHOLDER.sub(filled, self.prompt)


class QuestionFileConfig(QuestionColumns):
    """Questions and answers of JSONL, CSV or Parquet files; the splits are drawn by `seed`, or named by a column."""

    environment: Literal["file"] = Field(default="file", description="Name of the environment.")
    grader: FileGrader = Field(
        default="exact",
        description="How the answer is read from a completion. `exact`: all of it, or what follows its last `Answer:`; "
        "case and spaces do not count. `choice`: the letter directly after the last `Answer:`, else the last one that "
        "stands alone after it; without `Answer:` the last one in parentheses or alone on a line. `number`: the last "
        "number, after the last `Answer:` if there is one, compared by value. `boxed`: the last \\boxed{...}, compared "
        "by value if both are numbers. `regex`: the first group of the last match of `pattern`; case and spaces do not "
        "count.",
    )
    pattern: str | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="Pattern of the grader `regex`, in the syntax of Rust's regex crate (no look-around, no "
        "back-references), so that it takes linear time. The last 2000 characters of a completion are searched.",
    )

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if (self.grader == "regex") != (self.pattern is not None):
            raise ValueError("pattern must be given if, and only if, grader is 'regex'")
        if self.pattern is not None:
            from stages.environments.question_file.graders import pattern_problem

            if problem := pattern_problem(self.pattern):
                raise ValueError(f"pattern: {problem}")
        return self

    @property
    def environment_name(self) -> str:
        """The name that is stored with each question; it holds the grader."""
        return f"file:{self.grader}" if self.pattern is None else f"file:{self.grader}:{self.pattern}"

    def check_answer(self, answer: str, where: str) -> None:
        """Checks that the grader can read a right answer.

        Raises:
            BadInputError: It cannot.
        """
        from stages.environments.question_file.graders import READABLE, can_read

        if not can_read(answer, self.grader):
            raise BadInputError(
                where,
                f"{answer[:80]!r}, which the grader '{self.grader}' cannot read",
                READABLE[self.grader],
                "correct the answer, or set puzzles.puzzle.grader",
            )

    def compared(self, answer: str) -> object:
        """Returns what equal right answers have in common: with the grader `number` 4 and 4.0 are one."""
        from stages.environments.question_file.graders import read_gold

        gold = read_gold(answer, self.grader)
        return answer if gold is None else gold.value


def _names(template: str) -> list[str]:
    return [name for name in _PLACEHOLDER.findall(template) if name]
