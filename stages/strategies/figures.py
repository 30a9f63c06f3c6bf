"""The figures of strategies, computed from the tables of a report. Nothing is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import polars as pl
from pydantic import Field

from artifacts.reading import Artifact
from artifacts.schemas import LOGPROB
from stages.environments import environment
from stages.environments.capabilities import Proves, needs
from stages.statistics.estimates import Interval, estimate, estimate_mean
from stages.statistics.records import (
    AnswerFigures,
    Faithfulness,
    Record,
    ReliabilityFigures,
    ReportFigures,
    StrategyFigures,
)
from stages.statistics.repeated import chance_any_right
from stages.strategies.choosing import (
    Floats,
    best_at,
    majority_of_answers,
    majority_of_letters,
    read_votes,
    sizes,
)
from stages.strategies.config import BestOf, BestOfScore, RoundsStrategy, SampleStrategy, title_of

CEILING = "ceiling"
"""Name of the figures of a perfect choice among the samples. It knows the solution, so it is not a strategy."""


class StrategiesFigures(Record):
    """Figures of strategies; the attributes are those of `ReportFigures`."""

    strategies: dict[str, StrategyFigures] = Field(default_factory=dict[str, StrategyFigures])
    reliability: dict[str, ReliabilityFigures] = Field(default_factory=dict[str, ReliabilityFigures])

    def chosen(self, strategies: Sequence[SampleStrategy | RoundsStrategy]) -> Self:
        """Returns the figures of some strategies, and of the ceiling; all figures if no strategy is named."""
        if not strategies:
            return self
        names = [*(name for item in strategies for name in names_of(item)), CEILING]
        return self.model_copy(update={"strategies": {n: self.strategies[n] for n in names if n in self.strategies}})


def sample_figures(results: pl.DataFrame) -> StrategiesFigures:
    """Returns the figures of every strategy that chooses among the sampled answers, by name.

    `single` is one sample, `majority` the most frequent whole answer, `majority:letters` the most frequent answer to
    each question, `best_of` the sample with the highest score, and `ceiling` the most accurate sample. Without a second
    sample of each puzzle there is nothing to choose, and no figure.

    Args:
        results: Rows of the `results` schema; those of the mode `sampled` count.
    """
    samples = results.filter(pl.col("mode") == "sampled").sort("prompt_id", "sample")
    puzzles = samples["prompt_id"].n_unique()
    count = len(samples) // puzzles if puzzles else 0
    if count < 2:
        return StrategiesFigures()
    length = pl.max_horizontal("completion_tokens", pl.lit(1))
    mean_logprob = pl.col(LOGPROB) / length
    samples = samples.with_columns(
        mean_logprob.alias("score"), pl.col("exact").cast(pl.Float64), (pl.col("proved") - pl.col("contradicted"))
        .cast(pl.Float64).alias("statements_score"),
    )  # fmt: skip
    columns = ("accuracy", "exact", "completion_tokens", "score")
    accuracy_PS, exact_PS, tokens_PS, mean_PS = (
        samples[name].cast(pl.Float64).to_numpy().reshape(puzzles, count) for name in columns
    )
    spent_P, right_P = tokens_PS.sum(axis=1), exact_PS.sum(axis=1).astype(np.int64)
    votes = read_votes(samples)
    reliability: dict[str, ReliabilityFigures] = {}
    strategies = {"single": _figures(accuracy_PS.mean(axis=1), exact_PS.mean(axis=1), tokens_PS.mean(axis=1))}
    for k in sizes(count):
        whole, letters = majority_of_answers(samples, votes, k), majority_of_letters(samples, votes, k)
        reliability[str(k)] = ReliabilityFigures(
            pass_at=_share(chance_any_right(right_P, count, k)),
            best=_share(best_at(accuracy_PS, accuracy_PS, k)),
            majority=_share(whole["accuracy"].to_numpy()),
            majority_exact=_share(whole["exact"].to_numpy()),
            majority_letters=_share(letters["accuracy"].to_numpy()),
        )
        if k == count:
            for name, table in (("majority", whole), ("majority:letters", letters)):
                strategies[name] = _figures(table["accuracy"].to_numpy(), table["exact"].to_numpy(), spent_P)
    scores: dict[BestOfScore, Floats] = {
        "logprob": samples[LOGPROB].to_numpy().reshape(puzzles, count),
        "mean_logprob": mean_PS,
    }
    if samples["statements"].sum():
        proved_PS = samples["statements_score"].fill_null(0.0).to_numpy().reshape(puzzles, count)
        scores["statements"] = _ranks(proved_PS, mean_PS)
    for score, scores_PS in scores.items():
        accuracy_P, exact_P = (best_at(values_PS, scores_PS, count) for values_PS in (accuracy_PS, exact_PS))
        strategies[title_of(BestOf(strategy="best_of", score=score))] = _figures(accuracy_P, exact_P, spent_P)
    strategies[CEILING] = _figures(accuracy_PS.max(axis=1), exact_PS.max(axis=1), spent_P)
    return StrategiesFigures(strategies=strategies, reliability=reliability)


def rounds_figures(rounds: pl.DataFrame, puzzles: pl.DataFrame) -> dict[str, StrategyFigures]:
    """Returns the figures of the strategies that ask in rounds, by title.

    Args:
        rounds: Rows of the `rounds` schema.
        puzzles: Rows of the `puzzles` schema: the puzzles that were answered.
    """
    figures: dict[str, StrategyFigures] = {}
    for title in rounds["strategy"].unique(maintain_order=True):
        rows = rounds.filter(pl.col("strategy") == title)
        points = rows.drop_nulls("point")
        names = points["point"].unique(maintain_order=True).to_list()
        figures[title] = StrategyFigures(
            **dict(_by_puzzle(rows.filter("final"))),
            points={name: _by_puzzle(points.filter(pl.col("point") == name)) for name in names},
            faithfulness=_faithfulness(rows, puzzles),
        )
    return figures


def _by_puzzle(rows: pl.DataFrame) -> AnswerFigures:
    means = rows.group_by("prompt_id", maintain_order=True).agg(
        pl.col(name).cast(pl.Float64).mean() for name in ("accuracy", "exact", "spent_tokens")
    )
    return AnswerFigures(
        accuracy=estimate(means["accuracy"].to_list()),
        exact=estimate(means["exact"].to_list()),
        tokens=estimate_mean(means["spent_tokens"].to_list()),
    )


def _faithfulness(rows: pl.DataFrame, puzzles: pl.DataFrame) -> Faithfulness | None:
    """Returns the agreement of a strategy's first notes with the clues; None without notes or if nothing is proved."""
    notes = rows.drop_nulls("statements").sort("round").unique(["prompt_id", "sample"], keep="first")
    if notes.is_empty():
        return None
    by_puzzle = (
        notes.join(puzzles.select("prompt_id", "num_clues"), on="prompt_id")
        .group_by("prompt_id", maintain_order=True)
        .agg(
            (pl.col("restated") / pl.max_horizontal("num_clues", pl.lit(1))).clip(0.0, 1.0).mean().alias("restated"),
            ((pl.col("open") + pl.col("contradicted")) / pl.col("statements"))
            .filter(pl.col("statements") > 0)
            .mean()
            .alias("invented"),
        )
    )
    invented = by_puzzle["invented"].drop_nulls().to_list()
    return Faithfulness(
        restated=estimate(by_puzzle["restated"].to_list()), invented=estimate(invented) if invented else None
    )


def stored_figures(report: Artifact) -> StrategiesFigures:
    """Returns the figures of the strategies of a report."""
    facts = ReportFigures.of(report.manifest.facts, report.key)
    return StrategiesFigures(strategies=facts.strategies, reliability=facts.reliability)


def names_of(strategy: SampleStrategy | RoundsStrategy) -> list[str]:
    """Returns the names under which the figures of a strategy are stored."""
    return ["majority", "majority:letters"] if strategy.strategy == "majority" else [title_of(strategy)]


def check_provable(strategies: Sequence[SampleStrategy | RoundsStrategy], environments: Sequence[str]) -> None:
    """Checks that the environments can prove the statements by which a strategy chooses.

    Args:
        strategies: The strategies.
        environments: Names of the environments of the puzzles.

    Raises:
        BadInputError: An environment proves nothing.
    """
    for strategy in strategies:
        if isinstance(strategy, BestOf) and strategy.score == "statements":
            for name in environments:
                needs(environment.get(name), Proves, f"strategy {title_of(strategy)}", "choose another score")


def _figures(accuracy_P: Floats, exact_P: Floats, tokens_P: Floats) -> StrategyFigures:
    return StrategyFigures(accuracy=_share(accuracy_P), exact=_share(exact_P), tokens=estimate_mean(tokens_P.tolist()))


def _share(values_P: Floats) -> Interval:
    return estimate(np.clip(values_P, 0.0, 1.0).tolist())


def _ranks(first_PS: Floats, second_PS: Floats) -> Floats:
    """Returns scores that order samples by `first_PS`, then by `second_PS`, then by position, [P, S]."""
    places_PS = np.broadcast_to(-np.arange(first_PS.shape[1]), first_PS.shape)
    order_PS = np.lexsort((places_PS, second_PS, first_PS), axis=1)
    ranks_PS = np.empty_like(first_PS)
    np.put_along_axis(ranks_PS, order_PS, np.arange(first_PS.shape[1], dtype=np.float64)[None, :], axis=1)
    return ranks_PS
