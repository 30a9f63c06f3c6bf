"""An example group of an iteration's rollouts: its best, median and worst completion, with the graded answers."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.schemas import GRADES, PUZZLES, ROLLOUTS, validated
from artifacts.store.store import Store
from stages.environments.puzzle import Asserted, Puzzle
from stages.environments.tables import assertions, puzzles_by_id
from stages.environments.thoughts import thought_opened

if TYPE_CHECKING:
    from flows.lookup.history import IterationRecord

_COLUMNS = ("puzzle_id", "group", "sample", "text", "finish_reason")


@dataclass(frozen=True)
class ReadAnswer:
    """The grader's reading of the answer to one question.

    Attributes:
        question: The name of the question: a letter, or `answer` if there is only one.
        said: The answer in the completion; empty if it is missing.
        right: The right answer.
        correct: Whether they agree.
        note: Why the grader read no value (`missing`, `outside`, `ambiguous`, or why grading failed); else empty.
    """

    question: str
    said: str
    right: str
    correct: bool
    note: str


@dataclass(frozen=True)
class Completion:
    """One completion of the group.

    Attributes:
        title: `best`, `median` or `worst`.
        advantage: None if the completion is not trained on.
        statements: Its statements about the puzzle, in order, with verdicts; None if the environment proves none.
    """

    title: str
    text: str
    reward: float
    advantage: float | None
    finish_reason: str
    answers: list[ReadAnswer]
    statements: list[Asserted] | None


@dataclass(frozen=True)
class ExampleGroup:
    """A group of the rollouts of one iteration.

    Attributes:
        size: Number of completions in the group.
        completions: The best, the median and the worst.
    """

    iteration: int
    puzzle_id: str
    prompt: str
    size: int
    completions: list[Completion]

    @property
    def makes_statements(self) -> bool:
        """Whether one of the completions makes a statement."""
        return any(item.statements for item in self.completions)


def find_example_group(record: "IterationRecord", layout: RunLayout, store: Store) -> ExampleGroup | None:
    """Returns the group with the largest range of rewards in the first shard; None if the rollouts are not graded.

    Raises:
        IntegrityError: A stored file is damaged.
    """
    if "grade" not in record.manifests or "sample" not in record.manifests:
        return None
    inputs = record.manifests["grade"].inputs
    rollouts = Artifact.open(store, Ref(**inputs["rollouts"]))
    grades = Artifact.at(store, layout.iteration(record.number, "grades")).read_table("grades.parquet", GRADES)
    shard = rollouts.names(".parquet")[0]
    sampled = validated(pl.read_parquet(io.BytesIO(rollouts.read_bytes(shard))), ROLLOUTS, shard).select(_COLUMNS)
    rows = sampled.join(grades, on=["puzzle_id", "group", "sample"], validate="1:1")
    spread = rows.group_by("group").agg((pl.col("reward").max() - pl.col("reward").min()).alias("spread"))
    group = spread.sort("spread", "group", descending=[True, False])["group"][0]
    ranked = rows.filter(pl.col("group") == group).sort("reward", "sample", descending=[True, False])
    puzzles = Artifact.open(store, Ref(**inputs["puzzles"])).read_table("train.parquet", PUZZLES)
    puzzle_id = ranked["puzzle_id"][0]
    puzzle = puzzles_by_id(
        puzzles.filter(pl.col("puzzle_id") == puzzle_id), thought_opened=thought_opened(rollouts.manifest.facts)
    )[puzzle_id]
    row_by_title = {"best": 0, "median": len(ranked) // 2, "worst": len(ranked) - 1}
    return ExampleGroup(
        record.number,
        puzzle.puzzle_id,
        puzzle.prompt,
        len(ranked),
        [_completion(title, ranked.row(index, named=True), puzzle) for title, index in row_by_title.items()],
    )


def _completion(title: str, row: dict[str, Any], puzzle: Puzzle) -> Completion:
    statements = assertions(row["text"], puzzle)
    answers = read_answers(row, puzzle)
    return Completion(title, row["text"], row["reward"], row["advantage"], row["finish_reason"], answers, statements)


def read_answers(row: Mapping[str, Any], puzzle: Puzzle) -> list[ReadAnswer]:
    """Returns the grader's reading of a completion.

    Args:
        row: A row of the `grades` or `results` schema.
        puzzle: Its puzzle.
    """
    return [
        ReadAnswer(
            question,
            answer["value"] or answer["text"] or "",
            puzzle.solution.get(question, ""),
            answer["correct"],
            answer["note"],
        )
        for question, answer in json.loads(row["answers"]).items()
    ]
