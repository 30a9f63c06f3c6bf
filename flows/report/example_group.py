"""Examples of an iteration's rollouts with the graded answers: one group, and samples of the whole iteration."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from artifacts.documents.conversation import readable
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.store.store import Store
from flows.lookup.rollouts import COMPLETION, read_grades, read_puzzles, sampled_shards
from stages.environments.puzzle import Asserted, Puzzle
from stages.environments.tables import assertions, puzzles_by_id
from stages.environments.thoughts import thought_opened

if TYPE_CHECKING:
    from flows.lookup.history import IterationRecord


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
    prompt_id: str
    prompt: str
    size: int
    completions: list[Completion]

    @property
    def makes_statements(self) -> bool:
        """Whether one of the completions makes a statement."""
        return any(item.statements for item in self.completions)


def find_example_group(record: "IterationRecord", layout: RunLayout, store: Store) -> ExampleGroup:
    """Returns the group with the largest range of rewards in the first shard of an iteration that is graded.

    Raises:
        IntegrityError: A stored file is damaged.
    """
    rows = next(sampled_shards(record, store)).join(read_grades(record, layout, store), on=COMPLETION, validate="1:1")
    spread = rows.group_by("group").agg((pl.col("reward").max() - pl.col("reward").min()).alias("spread"))
    group = spread.sort("spread", "group", descending=[True, False])["group"][0]
    ranked = rows.filter(pl.col("group") == group).sort("reward", "sample", descending=[True, False])
    puzzle = _puzzles_of(record, store, ranked)[ranked["prompt_id"][0]]
    row_by_title = {"best": 0, "median": len(ranked) // 2, "worst": len(ranked) - 1}
    return ExampleGroup(
        record.number,
        puzzle.prompt_id,
        readable(puzzle.prompt),
        len(ranked),
        [_completion(title, ranked.row(index, named=True), puzzle) for title, index in row_by_title.items()],
    )


@dataclass(frozen=True)
class Sample:
    """One completion of an iteration with its grade; `title` names iteration, puzzle and sample."""

    prompt: str
    completion: Completion


def find_samples(record: "IterationRecord", layout: RunLayout, store: Store, count: int) -> list[Sample]:
    """Returns completions of a graded iteration, from the best to the worst: evenly spaced in the order of rewards.

    Args:
        record: The iteration, whose rollouts and grades are stored.
        layout: Keys of its run.
        store: The run's store.
        count: Number of completions, at least 1; all if there are fewer.

    Raises:
        IntegrityError: A stored file is damaged.
    """
    ranked = read_grades(record, layout, store).sort("reward", "group", "sample", descending=[True, False, False])
    last, steps = len(ranked) - 1, min(count, len(ranked)) - 1
    chosen = ranked[[last * number // steps for number in range(steps + 1)] if steps else [last // 2]]
    shards = (shard.join(chosen, on=COMPLETION, validate="1:1") for shard in sampled_shards(record, store))
    rows = pl.concat(shards).sort("reward", "group", "sample", descending=[True, False, False])
    puzzles = _puzzles_of(record, store, rows)
    samples: list[Sample] = []
    for row in rows.iter_rows(named=True):
        puzzle = puzzles[row["prompt_id"]]
        title = f"iteration {record.number}, {row['prompt_id']}, sample {row['sample']}"
        samples.append(Sample(readable(puzzle.prompt), _completion(title, row, puzzle)))
    return samples


def _puzzles_of(record: "IterationRecord", store: Store, rows: pl.DataFrame) -> dict[str, Puzzle]:
    """Returns the puzzles that these completions answer, by id."""
    puzzles = read_puzzles(record, store)
    rollouts = Artifact.open(store, Ref(**record.manifests["grade"].inputs["rollouts"]))
    return puzzles_by_id(
        puzzles.filter(pl.col("prompt_id").is_in(rows["prompt_id"].implode())),
        thought_opened=thought_opened(rollouts.manifest.facts),
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
