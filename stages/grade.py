"""The stage that grades rollouts and computes their advantages."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Grades, Puzzles, Ref, Rollouts
from artifacts.schemas import (
    GRADES,
    GRADES_FILE,
    ROLLOUTS,
    STEPS,
    STEPS_FILE,
    TOKEN_ADVANTAGES,
    TOKEN_ADVANTAGES_FILE,
    as_table,
)
from stages.context import StageContext
from stages.environments import environment
from stages.environments.capabilities import ChecksFormat, LocatesAnswers, Proves, needs
from stages.environments.puzzle import Grader
from stages.environments.tables import (
    deduction_columns,
    grade_columns,
    grader_of,
    puzzles_by_id,
    read_split,
    unread_counts,
)
from stages.environments.thoughts import thought_opened
from stages.grading.completions import GradedCompletion, graded_completions, reward_inputs
from stages.grading.judge import JudgedReward, verdicts
from stages.grading.process import supervised
from stages.grpo.advantages import AdvantageConfig, batch_advantages
from stages.grpo.rewards import reward_terms
from stages.models.tokenizers.chat import chat_tokenizer
from stages.sampling.turns import own_lengths

REVISION = 8  # a judge's score in JSON


class GradeConfig(Config):
    """Settings of grader, reward and advantages."""

    grader: Grader = Field(default="strict", description="Rules by which answers are read from a completion.")
    reward: JudgedReward = Field(default_factory=JudgedReward)
    advantage: AdvantageConfig = Field(default_factory=AdvantageConfig)

    @property
    def by_process(self) -> bool:
        """Whether each token has an advantage of its own."""
        return self.advantage.level == "process"


def grade(
    ctx: StageContext,
    config: GradeConfig,
    rollouts: Ref[Rollouts],
    puzzles: Ref[Puzzles],
    *,
    out: ArtifactAddress[Grades],
) -> Ref[Grades]:
    """Grades every completion and computes its reward and its advantage within its group.

    A completion is truncated if the sampler cut it at the token limit or by `early_stop`. `reward.truncated` sets the
    reward of such a completion. Under `masked`, it is graded but has no advantage, and it does not count in the
    advantages of others.

    Under `advantage.level = "process"` every statement and every answer of a completion is a step with a
    reward of its own, and each token has its own advantage (see `stages.grpo.process`).

    Raises:
        IntegrityError: The rollouts name a puzzle that is not in the set.
        BadInputError: A setting needs a capability that an environment lacks. Or the level is `process`, but nothing
            can be proved about a puzzle, or no completion makes a statement. Or the judge cannot be asked, or a reward
            function of the user's own cannot be used.
    """
    identity = Identity.of("grade", REVISION, config, rollouts=rollouts, puzzles=puzzles)
    if published := out.find(identity):
        return published
    train = read_split(ctx.store, puzzles, "train")
    _check_abilities(config, train)
    opened = Artifact.open(ctx.store, rollouts)
    sampled = opened.read_tables(ROLLOUTS).sort("group", "sample")
    used = train.filter(pl.col("prompt_id").is_in(sampled["prompt_id"].to_list()))
    by_id = puzzles_by_id(used, thought_opened=thought_opened(opened.manifest.facts))
    tokenizer = None
    if config.by_process or config.reward.surprise_weight:
        tokenizer = chat_tokenizer(ctx.local_folder(Ref(**opened.manifest.inputs["weights"])))

    prove = config.by_process or config.reward.deductions_weight > 0
    completions = graded_completions(sampled, by_id, config.grader, prove=prove)
    inputs = reward_inputs(completions, own_lengths(sampled).to_list(), config.reward, config.grader, tokenizer)
    said = None
    if config.reward.judge is not None:
        asked = [(one.row["text"] if one.is_episode else one.own_text, one.puzzle) for one in completions]
        said = verdicts(config.reward.judge, asked, rollouts, ctx.store, lambda n, of: ctx.progress("judge", n, of, {}))
        inputs = [replace(of_one, judged=reward) for of_one, reward in zip(inputs, said.rewards, strict=True)]
        _warn_of_failures(ctx, "no score in the judge's reply", said.unread, len(inputs))
    terms = [reward_terms(of_one, config.reward) for of_one in inputs]
    grades = _with_advantages(_rows(completions, terms, grader_of(train, config.grader)), config)
    facts = _mean_terms(terms) | (said.figures() if said else {})
    if config.reward.function is not None:
        facts["function/failed"] = sum(of_one.own is None for of_one in inputs)
        _warn_of_failures(ctx, config.reward.function.name, facts["function/failed"], len(inputs))

    attempt = out.attempt(identity)
    if config.by_process and tokenizer is not None:
        steps = [one.steps(config.grader) for one in completions]
        tables = supervised(grades, steps, sampled, config.reward.step_rewards, config.advantage, tokenizer)
        attempt.write_table(STEPS_FILE, tables.steps, STEPS)
        attempt.write_table(TOKEN_ADVANTAGES_FILE, tables.token_advantages, TOKEN_ADVANTAGES)
        grades, facts = tables.grades, facts | tables.figures()
    attempt.write_table(GRADES_FILE, grades, GRADES)
    unread = {f"unread/{reason}": count for reason, count in unread_counts(grades["answers"]).items()}
    failed = {name: count for name, count in unread.items() if name.startswith(_FAILURES)}
    _warn_of_failures(ctx, max(failed, key=lambda name: failed[name], default=""), sum(failed.values()), len(inputs))
    return attempt.publish({**summary(grades, sampled), **unread, **facts}, rollouts=rollouts, puzzles=puzzles)


def _warn_of_failures(ctx: StageContext, reason: str, failed: int, of: int) -> None:
    """Logs how many completions get 0 because the code that grades them failed, if any."""
    if failed:
        ctx.log.warning("grading failed for %d of %d completions: %s", failed, of, reason.removeprefix("unread/"))


_FAILURES = tuple(f"unread/{failure}" for failure in ("raised ", "timeout", "out of memory", "crashed", "failed"))
"""Beginnings of facts that count completions whose grading failed (see `stages.processes.limited_calls`)."""


@dataclass(frozen=True)
class NeededCapability:
    """A setting that needs a capability of the environment.

    Attributes:
        setting: Its name, with its value if that matters.
        capability: A protocol of `stages.environments.capabilities`.
        remedy: What to do if the environment lacks it.
    """

    setting: str
    capability: type[Any]
    remedy: str


def needs_of(config: GradeConfig) -> list[NeededCapability]:
    """Returns the capabilities that the settings need of every environment."""
    reward, by_process = config.reward, config.by_process
    level, outcome, zero = "grade.advantage.level = 'process'", "set it to 'outcome'", "set it to 0"
    return [
        need
        for on, need in (
            (reward.deductions_weight > 0, NeededCapability("grade.reward.deductions_weight", Proves, zero)),
            (reward.format_weight > 0, NeededCapability("grade.reward.format_weight", ChecksFormat, zero)),
            (reward.surprise_weight > 0, NeededCapability("grade.reward.surprise_weight", LocatesAnswers, zero)),
            (by_process, NeededCapability(level, Proves, outcome)),
            (by_process, NeededCapability(level, LocatesAnswers, outcome)),
        )
        if on
    ]


def _check_abilities(config: GradeConfig, train: pl.DataFrame) -> None:
    """Refuses settings that an environment cannot satisfy, so that later functions may cast."""
    for name in train["environment"].unique(maintain_order=True):
        for need in needs_of(config):
            needs(environment.get(name), need.capability, need.setting, need.remedy)


def _rows(
    completions: Sequence[GradedCompletion], terms: Sequence[Mapping[str, float]], grader: str
) -> list[dict[str, Any]]:
    """Returns the rows of the `grades` schema, without advantages."""
    return [
        {
            "prompt_id": one.row["prompt_id"],
            "group": one.row["group"],
            "sample": one.row["sample"],
            **grade_columns(one.graded),
            "truncated": one.truncated,
            "reward": sum(of_one.values()),
            "grader": grader,
            **deduction_columns(one.deduced),
        }
        for one, of_one in zip(completions, terms, strict=True)
    ]


def _mean_terms(terms: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each term of the reward."""
    sums: defaultdict[str, float] = defaultdict(float)
    for of_one in terms:
        for name, term in of_one.items():
            sums[f"reward/{name}/mean"] += term / len(terms)
    return dict(sums)


def _with_advantages(rows: Sequence[dict[str, Any]], config: GradeConfig) -> pl.DataFrame:
    """Returns the rows as a table with advantages. A masked completion has none (null)."""
    frame = as_table(rows, GRADES).drop("advantage")
    compared = frame.filter(~pl.col("truncated")) if config.reward.truncated == "masked" else frame
    groups = [group["reward"].to_numpy() for group in compared.partition_by("group", maintain_order=True)]
    advantages = np.concatenate([np.zeros(0), *batch_advantages(groups, config.advantage)])
    by_sample = compared.select("group", "sample").with_columns(pl.Series("advantage", advantages))
    return frame.join(by_sample, on=["group", "sample"], how="left", maintain_order="left").select(*GRADES.columns)


def summary(grades: pl.DataFrame, rollouts: pl.DataFrame) -> dict[str, float]:
    """Returns the figures of an iteration's rollouts that are shown to people, by name.

    `truncated/fraction` counts cuts at the token limit, `early_stopped/fraction` the others; their sum is the share of
    the column `truncated`. Masked completions, which have no advantage, are left out of the spread of a
    group.

    Args:
        grades: Rows of the `grades` schema.
        rollouts: The completions that they grade.
    """
    lengths = own_lengths(rollouts)
    compared = pl.col("reward").filter(pl.col("advantage").is_not_null())
    spread = grades.group_by("group").agg(
        (compared.max() - compared.min()).fill_null(0.0).alias("spread"), compared.std().alias("std")
    )
    return {
        "reward/mean": _mean(grades["reward"]),
        "reward/std_within_group": _mean(spread["std"].fill_null(0.0)),
        "accuracy/mean": _mean(grades["accuracy"]),
        "exact/mean": _mean(grades["exact"].cast(pl.Float64)),
        "groups/uniform_fraction": _mean((spread["spread"] <= 1e-8).cast(pl.Float64)),
        "completion_tokens/mean": _mean(lengths.cast(pl.Float64)),
        "completion_tokens/max": float(np.max(lengths.to_numpy(), initial=0)),
        "truncated/fraction": _mean((rollouts["finish_reason"] == "length").cast(pl.Float64)),
        "early_stopped/fraction": _mean((rollouts["finish_reason"] == "early_stop").cast(pl.Float64)),
    }


def _mean(values: pl.Series) -> float:
    return float(np.mean(values.to_numpy())) if len(values) else 0.0
