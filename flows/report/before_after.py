"""One puzzle before and after GRPO: the most likely completion of each model, with its statements."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.schemas import PUZZLES, RESULTS
from artifacts.store.store import Store
from flows.lookup.history import STAGES, RunRecord
from flows.report.derivation import Derivation, read_derivation
from flows.report.example_group import ReadAnswer, read_answers
from stages.environments.tables import puzzles_by_id

_SHOWN = ("puzzle_id", "accuracy", "exact", "finish_reason", "text", "answers", "statements", "proved", "contradicted")


@dataclass(frozen=True)
class Answered:
    """The completion of one model.

    Attributes:
        title: Which model, such as `before GRPO`.
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
        puzzle_id: Its puzzle.
        prompt: The puzzle's text.
        split: Split of the puzzle set that has it.
        before: The completion before GRPO.
        after: The completion of the later model.
    """

    puzzle_id: str
    prompt: str
    split: str
    before: Answered
    after: Answered


def find_before_after(record: RunRecord, store: Store) -> BeforeAfter | None:
    """Returns a puzzle with its greedy completions before GRPO and after it.

    They are those of the test split if the run has finished. Otherwise they are those of the validation split, before
    GRPO and of the promoted iteration, or of the newest one if none is promoted yet. A puzzle is preferred that was
    answered wrong before and right after, then one whose later completion makes statements, then by its gain in
    accuracy, in proved and in fewer contradicted statements, then by its place in the split.

    Returns:
        The puzzle; None if two reports are not stored, have no greedy completions, or if no completion of these makes
        a statement that can be judged.

    Raises:
        IntegrityError: A stored file is damaged.
    """
    reports = _reports(record, store)
    if len(reports) < 2:
        return None
    tables = {
        title: report.read_table("results.parquet", RESULTS).filter(pl.col("mode") == "greedy").select(_SHOWN)
        for title, report in reports.items()
    }
    (first, before), (second, after) = tables.items()
    puzzle_id = _chosen(before, after)
    if puzzle_id is None:
        return None
    manifest = reports[first].manifest
    split = str(manifest.facts["split"])
    known = Artifact.open(store, Ref(**manifest.inputs["puzzles"])).read_table(f"{split}.parquet", PUZZLES)
    puzzle = puzzles_by_id(known.filter(pl.col("puzzle_id") == puzzle_id))[puzzle_id]
    answered: list[Answered] = []
    for title, table in ((first, before), (second, after)):
        row = table.filter(pl.col("puzzle_id") == puzzle_id).row(0, named=True)
        derivation = read_derivation(row["text"], row["finish_reason"], puzzle, every_premise=False)
        assert derivation is not None  # its statements were counted
        answered.append(Answered(title, derivation, read_answers(row, puzzle)))
    return BeforeAfter(puzzle_id, puzzle.prompt, split, *answered)


def _reports(record: RunRecord, store: Store) -> Mapping[str, Artifact]:
    """Returns the two reports to compare by their titles; fewer if they are not stored."""
    layout, tests = record.layout, record.evaluations
    if set(tests) == {"before", "after"}:
        stored = {title: (layout.evaluation(when), tests[when]) for when, title in _TITLES.items()}
    else:
        stored = {
            _TITLES["before"] if number == 0 else f"iteration {number}": (
                layout.iteration(number, STAGES["evaluate"]),
                manifest,
            )
            for number, manifest in _iterations(record)
        }
    return {title: Artifact(store, key, item) for title, (key, item) in stored.items() if item.pruned is None}


_TITLES = {"before": "before GRPO", "after": "after GRPO, promoted"}


def _iterations(record: RunRecord) -> list[tuple[int, Manifest]]:
    """Returns the reports of iteration 0 and of the promoted one, or else of the newest one."""
    reports = {item.number: item.manifests["evaluate"] for item in record.iterations if item.kept("evaluate")}
    promoted = record.promoted.iteration if record.promoted else 0
    later = promoted if promoted and promoted in reports else max(reports, default=0)
    return [(number, reports[number]) for number in (0, later) if number in reports] if later else []


def _chosen(before: pl.DataFrame, after: pl.DataFrame) -> str | None:
    """Returns the id of the puzzle to show; None if no completion makes a statement."""
    pairs = before.with_row_index("place").join(after, on="puzzle_id", suffix="_after", validate="1:1")
    said = pairs.filter(pl.col("statements") + pl.col("statements_after") > 0)
    if said.is_empty():
        return None
    ranked = said.select(
        "puzzle_id",
        "place",
        (~pl.col("exact") & pl.col("exact_after")).alias("solved"),
        (pl.col("statements_after") > 0).alias("talks"),
        (pl.col("accuracy_after") - pl.col("accuracy")).alias("gain"),
        (pl.col("proved_after") - pl.col("proved") - pl.col("contradicted_after") + pl.col("contradicted")).alias(
            "sounder"
        ),
    ).sort("solved", "talks", "gain", "sounder", "place", descending=[True, True, True, True, False])
    return str(ranked["puzzle_id"][0])
