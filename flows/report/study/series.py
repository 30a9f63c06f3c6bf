"""Reads the series that a study shows from a run's reports."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from artifacts.reading import Artifact
from artifacts.schemas import RESULTS
from artifacts.store.store import Store
from flows.lookup.rollouts import asked_puzzles
from flows.lookup.stages import PARTS
from stages.statistics.estimates import Interval, estimate
from stages.statistics.fits import PowerLaw, PowerLawBand, bootstrap_power_law, fit_power_law, means_something
from stages.statistics.repeated import chance_all_right, chance_any_right

if TYPE_CHECKING:
    from flows.lookup.history import RunRecord

_MODE = "sampled"
_GROUPS = 6
"""Number of groups into which puzzles are divided by a size."""
_PARALLEL_READS = 8
_MOST_POINTS = 200


@dataclass(frozen=True)
class LearningCurve:
    """Held-out accuracy and lengths of a run after each iteration, sampled answers.

    Attributes:
        iterations: Numbers of the iterations, N of them.
        accuracy: Accuracy after each, with its interval.
        scores: Mean accuracy of each of P puzzles after each iteration, [P, N].
        right_tokens: Mean length of the fully correct answers; None where there are none.
        wrong_tokens: Mean length of the other answers; None where there are none.
    """

    iterations: list[int]
    accuracy: list[Interval]
    scores: NDArray[np.float64]
    right_tokens: list[float | None]
    wrong_tokens: list[float | None]

    def power_law(self) -> tuple[PowerLaw, PowerLawBand | None] | None:
        """Returns the power law of the curve with its interval; None if it would be meaningless (`means_something`)."""
        fit = fit_power_law(self.iterations, [item.mean for item in self.accuracy])
        if fit is None:
            return None
        band = bootstrap_power_law(self.iterations, self.scores, range(fit.first, fit.last + 1))
        return (fit, band) if means_something(fit, band) else None


@dataclass(frozen=True)
class Answered:
    """The sampled answers of one model to a set of puzzles.

    Attributes:
        title: Name of the model.
        results: Rows of the `results` schema.
        puzzles: Rows of the `puzzles` schema.
    """

    title: str
    results: pl.DataFrame
    puzzles: pl.DataFrame

    @property
    def accuracy(self) -> Interval:
        """Accuracy with its interval over puzzles."""
        return estimate(_means(self.results)["accuracy"].to_list())

    @property
    def tokens(self) -> float:
        """Mean length of an answer."""
        return float(self.results["completion_tokens"].to_numpy().mean())


@dataclass(frozen=True)
class Reliability:
    """Chances of right answers among k samples of a puzzle: means over puzzles with their intervals.

    Attributes:
        samples: Number of answers, k.
        any_right: Chance that at least one is fully correct.
        all_right: Chance that each is fully correct.
    """

    samples: int
    any_right: Interval
    all_right: Interval


def read_learning_curve(record: RunRecord, store: Store) -> LearningCurve | None:
    """Returns the learning curve of a run on the puzzles that the newest iteration answered.

    Iterations that answered other puzzles, or whose report was pruned, are left out. Of a long run, `_MOST_POINTS`
    iterations are read, evenly spread and the last one among them: reading a report takes 12 ms.

    Returns:
        The curve; None if fewer than two iterations are left.

    Raises:
        IntegrityError: A stored file is damaged.
    """
    measured = [item for item in record.iterations if item.kept("evaluate")]
    if len(measured) > _MOST_POINTS:
        measured = [measured[at] for at in np.linspace(0, len(measured) - 1, _MOST_POINTS).round().astype(int)]

    def read(number: int) -> pl.DataFrame:
        report = Artifact.at(store, record.layout.iteration(number, PARTS["evaluate"]))
        return _sampled(report.read_table("results.parquet", RESULTS))

    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        tables = dict(
            zip((item.number for item in measured), pool.map(read, (i.number for i in measured)), strict=True)
        )
    by_puzzle = {number: _means(table) for number, table in tables.items() if len(table)}
    if not by_puzzle:
        return None
    puzzles = by_puzzle[max(by_puzzle)]["prompt_id"].to_list()
    same = {number: means for number, means in by_puzzle.items() if means["prompt_id"].to_list() == puzzles}
    if len(same) < 2:
        return None
    scores_PN = np.stack([means["accuracy"].to_numpy() for means in same.values()], axis=1)
    return LearningCurve(
        list(same),
        [estimate(scores.tolist()) for scores in scores_PN.T],
        scores_PN,
        [_length(tables[number], exact=True) for number in same],
        [_length(tables[number], exact=False) for number in same],
    )


def read_answers(record: RunRecord, store: Store) -> list[Answered]:
    """Returns the answers on the test split before and after training, or those of the newest validation report.

    Raises:
        IntegrityError: A stored file is damaged.
    """
    titles = {"before": "before GRPO", "after": "promoted"}
    tests = record.tests(store)
    reports = {titles[when]: report for when, report in tests.items() if report.manifest.pruned is None}
    kept = [item for item in record.iterations if item.kept("evaluate")]
    if not reports and kept:
        newest = kept[-1]
        key = record.layout.iteration(newest.number, PARTS["evaluate"])
        reports = {f"iteration {newest.number}": Artifact(store, key, newest.manifests["evaluate"])}
    answered = (_answered(title, report) for title, report in reports.items())
    return [item for item in answered if len(item.results)]


def accuracy_by_size(answered: Answered) -> dict[str, list[tuple[float, Interval]]]:
    """Returns accuracy by size of the puzzles: by the number of clues and the sizes in `difficulty`, if they vary.

    Puzzles of similar size form groups of about equal numbers of puzzles, at most `_GROUPS`. Each group is its mean
    size and its accuracy.
    """
    sizes = answered.puzzles.select("prompt_id", "num_clues", "difficulty").join(
        _means(answered.results), on="prompt_id", maintain_order="left"
    )
    scores = sizes["accuracy"].to_numpy()
    by_name = {"clues": sizes["num_clues"].to_list()}
    difficulties = [json.loads(text) for text in sizes["difficulty"]]
    for name in dict.fromkeys(name for difficulty in difficulties for name in difficulty):
        if all(name in difficulty for difficulty in difficulties):
            by_name[name] = [difficulty[name] for difficulty in difficulties]
    varying = {name: np.asarray(values) for name, values in by_name.items() if len(set(values)) > 1}
    return {name: _grouped(values, scores) for name, values in varying.items()}


def reliability(answered: Answered) -> list[Reliability]:
    """Returns the chances of k answers for each k from 1 to the number of samples; empty if that is 1.

    Puzzles with fewer than the largest number of samples are left out.
    """
    counts = answered.results.group_by("prompt_id", maintain_order=True).agg(
        pl.len().alias("samples"), pl.col("exact").sum().alias("right")
    )
    samples = max(counts["samples"].to_list())
    right_P = counts.filter(pl.col("samples") == samples)["right"].to_numpy()
    if samples == 1:
        return []
    return [
        Reliability(
            k,
            estimate(chance_any_right(right_P, samples, k).tolist()),
            estimate(chance_all_right(right_P, samples, k).tolist()),
        )
        for k in range(1, samples + 1)
    ]


def _answered(title: str, report: Artifact) -> Answered:
    results = _sampled(report.read_table("results.parquet", RESULTS))
    asked = pl.col("prompt_id").is_in(results["prompt_id"].unique().to_list())
    return Answered(title, results, asked_puzzles(report).filter(asked))


def _sampled(results: pl.DataFrame) -> pl.DataFrame:
    return results.filter(pl.col("mode") == _MODE)


def _means(results: pl.DataFrame) -> pl.DataFrame:
    """Returns the mean accuracy of each puzzle, sorted by its id."""
    return results.group_by("prompt_id").agg(pl.col("accuracy").mean()).sort("prompt_id")


def _length(results: pl.DataFrame, *, exact: bool) -> float | None:
    lengths = results.filter(pl.col("exact") == exact)["completion_tokens"].to_numpy()
    return float(lengths.mean()) if len(lengths) else None


def _grouped(sizes_P: NDArray[np.int64], scores_P: NDArray[np.float64]) -> list[tuple[float, Interval]]:
    bounds = np.unique(np.quantile(sizes_P, np.linspace(0.0, 1.0, _GROUPS + 1)[1:], method="higher"))
    group_P = np.searchsorted(bounds, sizes_P)
    members = [group_P == group for group in np.unique(group_P)]
    return [(float(sizes_P[of].mean()), estimate(scores_P[of].tolist())) for of in members]
