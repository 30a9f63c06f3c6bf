"""One puzzle before and after GRPO: the most likely completion of each model, with its statements."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from artifacts.documents.conversation import readable
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.schemas import RESULTS
from artifacts.store.store import Store
from flows.lookup.history import RunRecord
from flows.lookup.rollouts import asked_puzzles
from flows.lookup.stages import PARTS
from flows.report.derivation import Derivation, read_derivation
from flows.report.example_group import ReadAnswer, read_answers
from stages.environments.tables import puzzles_by_id
from stages.environments.thoughts import thought_opened

_TITLES = {"before": "before GRPO", "after": "after GRPO, promoted"}


@dataclass(frozen=True)
class CheckedCompletion:
    """The completion of one model, with verdicts and grades.

    Attributes:
        title: Name of the model, such as `before GRPO`.
        derivation: The completion with its statements.
        answers: The grader's reading of its answers.
    """

    title: str
    derivation: Derivation
    answers: list[ReadAnswer]


@dataclass(frozen=True)
class BeforeAfter:
    """A puzzle with the completions of two models.

    Attributes:
        prompt_id: Id of the puzzle.
        prompt: Its text.
        split: Its split of the puzzle set.
        before: The completion before GRPO.
        after: The completion of the later model.
    """

    prompt_id: str
    prompt: str
    split: str
    before: CheckedCompletion
    after: CheckedCompletion


def find_before_after(record: RunRecord, store: Store) -> BeforeAfter | None:
    """Returns the puzzle that best shows a run's progress, with its greedy completions before GRPO and later.

    The puzzle is from the test split if the run was measured there before and after training. Otherwise it is from the
    validation split, and the later completion is that of the promoted iteration, or of the newest one if none after
    iteration 0 is promoted.

    Puzzles that were answered wrong before and right later come first, then those whose later completion makes
    statements, then those with the highest gain in accuracy, then those with the highest gain in proved minus
    contradicted statements, then those that come first in the split.

    Returns:
        The puzzle; None if fewer than two reports are stored or if none of their greedy completions makes a statement.

    Raises:
        IntegrityError: A stored file is damaged.
    """
    reports = _reports(record, store)
    if len(reports) < 2:
        return None
    tables = {
        title: report.read_table("results.parquet", RESULTS).filter(pl.col("mode") == "greedy")
        for title, report in reports.items()
    }
    (first, before), (second, after) = tables.items()
    prompt_id = _best_puzzle(before, after)
    if prompt_id is None:
        return None
    facts = reports[first].manifest.facts
    shown = asked_puzzles(reports[first]).filter(pl.col("prompt_id") == prompt_id)
    puzzle = puzzles_by_id(shown, thought_opened=thought_opened(facts))[prompt_id]
    completions: list[CheckedCompletion] = []
    for title, table in ((first, before), (second, after)):
        row = table.filter(pl.col("prompt_id") == prompt_id).row(0, named=True)
        derivation = read_derivation(row["text"], row["finish_reason"], puzzle, every_premise=False)
        assert derivation is not None  # its statements were counted
        completions.append(CheckedCompletion(title, derivation, read_answers(row, puzzle)))
    return BeforeAfter(prompt_id, readable(puzzle.prompt), facts["split"], *completions)


def _reports(record: RunRecord, store: Store) -> Mapping[str, Artifact]:
    """Returns the two reports to compare by their titles; fewer if they are not stored."""
    tests = record.tests(store)
    if tests.keys() == _TITLES.keys():
        stored = {title: tests[when] for when, title in _TITLES.items()}
    else:
        stored = {
            f"iteration {number}" if number else _TITLES["before"]: Artifact(
                store, record.layout.iteration(number, PARTS["evaluate"]), manifest
            )
            for number, manifest in _iteration_reports(record)
        }
    return {title: report for title, report in stored.items() if report.manifest.pruned is None}


def _iteration_reports(record: RunRecord) -> list[tuple[int, Manifest]]:
    """Returns the reports of iteration 0 and of a later one: the promoted one, or else the newest."""
    reports = {item.number: item.manifests["evaluate"] for item in record.iterations if item.kept("evaluate")}
    promoted = record.promoted.iteration if record.promoted else 0
    later = promoted if promoted and promoted in reports else max(reports, default=0)
    return [(number, reports[number]) for number in (0, later) if number in reports] if later else []


def _best_puzzle(before: pl.DataFrame, after: pl.DataFrame) -> str | None:
    """Returns the id of the puzzle to show; None if no completion makes a statement."""
    pairs = before.join(after, on="prompt_id", suffix="_after", validate="1:1", maintain_order="left")
    with_statements = pairs.filter(pl.col("statements") + pl.col("statements_after") > 0)
    if with_statements.is_empty():
        return None
    ranked = with_statements.select(
        "prompt_id",
        newly_solved=~pl.col("exact") & pl.col("exact_after"),
        makes_statements=pl.col("statements_after") > 0,
        accuracy_gain=pl.col("accuracy_after") - pl.col("accuracy"),
        proved_gain=pl.col("proved_after") - pl.col("proved") - (pl.col("contradicted_after") - pl.col("contradicted")),
    ).sort("newly_solved", "makes_statements", "accuracy_gain", "proved_gain", descending=True, maintain_order=True)
    return str(ranked["prompt_id"][0])
