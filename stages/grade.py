"""The stage that grades rollouts and computes their advantages."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from pydantic import Field

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.errors import NEW_RUN, BadInputError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Grades, Puzzles, Ref, Rollouts
from artifacts.schemas import (
    BY_TOOL,
    GRADES,
    GRADES_FILE,
    PUZZLES,
    ROLLOUTS,
    STEP_VERDICTS,
    STEPS,
    STEPS_FILE,
    TOKEN_ADVANTAGES,
    TOKEN_ADVANTAGES_FILE,
    as_table,
)
from stages.context import StageContext
from stages.environments import environment
from stages.environments.capabilities import ChecksFormat, LocatesAnswers, Proves, needs
from stages.environments.puzzle import Asserted, DeductionCounts, Grader, Puzzle
from stages.environments.single_answer import MISSING
from stages.environments.solver_tool import own_words
from stages.environments.steps import Step, steps_of
from stages.environments.tables import (
    answer_ends,
    assertions,
    deduction_columns,
    grade_columns,
    graded_texts,
    grader_of,
    puzzles_by_id,
    unread_counts,
)
from stages.environments.thoughts import thought_opened
from stages.grpo.advantages import AdvantageConfig, batch_advantages
from stages.grpo.process import step_advantages, token_advantages
from stages.grpo.rewards import RewardConfig, RewardInputs, reward_terms
from stages.grpo.surprise import surprise, tokens_until
from stages.models.tokenizers.chat import ChatTokenizer
from stages.sampling.turns import own_lengths

REVISION = 3  # thoughts are not read


class GradeConfig(Config):
    """Settings of grader, reward and advantages."""

    grader: Grader = Field(default="strict", description="Rules by which answers are read from a completion.")
    reward: RewardConfig = Field(default_factory=RewardConfig)
    advantage: AdvantageConfig = Field(default_factory=AdvantageConfig)


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
            can be proved about a puzzle, or no completion makes a statement.
    """
    identity = Identity.of("grade", REVISION, config, rollouts=rollouts, puzzles=puzzles)
    if published := out.find(identity):
        return published
    train = Artifact.open(ctx.store, puzzles).read_table("train.parquet", PUZZLES)
    _check_abilities(config, train)
    opened = Artifact.open(ctx.store, rollouts)
    by_id = puzzles_by_id(train, thought_opened=thought_opened(opened.manifest.facts))
    grader = grader_of(train, config.grader)
    sampled = opened.read_tables(ROLLOUTS).sort("group", "sample")
    by_process = config.advantage.level == "process"
    needs_token_ends = by_process or config.reward.surprise_weight
    tokenizer = ChatTokenizer(_sampled_model(opened, ctx)) if needs_token_ends else None
    rows: list[dict[str, Any]] = []
    steps: list[list[Step]] = []
    sums: defaultdict[str, float] = defaultdict(float)
    all_graded = graded_texts(sampled.select("text", "puzzle_id").iter_rows(), by_id, config.grader)
    for row, graded, own_tokens in zip(sampled.iter_rows(named=True), all_graded, own_lengths(sampled), strict=True):
        truncated = row["finish_reason"] in ("length", "early_stop")
        puzzle = by_id[row["puzzle_id"]]
        asserted = assertions(row["text"], puzzle) if by_process or config.reward.deductions_weight else None
        deduced = None if asserted is None else DeductionCounts.of(asserted)
        if by_process:
            steps.append(steps_of(_provable(asserted, puzzle), graded, answer_ends(row["text"], puzzle, config.grader)))
        inputs = RewardInputs(
            accuracy=graded.accuracy,
            exact=graded.exact,
            truncated=truncated,
            sound=deduced.sound if deduced else 0.0,
            surprise=_surprise(row, puzzle, config, tokenizer),
            text=own_words(row["text"], filler=""),
            well_formed=_well_formed(row["text"], puzzle, config),
            tokens=own_tokens,
            limit_tokens=json.loads(row["sampling"])["max_tokens"],
            answered=any(answer.note != MISSING for answer in graded.answers.values()),
        )
        terms = reward_terms(inputs, config.reward)
        for name, term in terms.items():
            sums[f"reward/{name}/mean"] += term / len(sampled)
        rows.append(
            {
                "puzzle_id": row["puzzle_id"],
                "group": row["group"],
                "sample": row["sample"],
                **grade_columns(graded),
                "truncated": truncated,
                "reward": sum(terms.values()),
                "grader": grader,
                **deduction_columns(deduced),
            }
        )
    grades = _with_advantages(rows, config)
    attempt = out.attempt(identity)
    if by_process and tokenizer is not None:
        supervised = _supervised(grades, steps, sampled, config, tokenizer)
        attempt.write_table(STEPS_FILE, supervised.steps, STEPS)
        attempt.write_table(TOKEN_ADVANTAGES_FILE, supervised.token_advantages, TOKEN_ADVANTAGES)
        grades, sums = supervised.grades, sums | supervised.figures()
    attempt.write_table(GRADES_FILE, grades, GRADES)
    unread = {f"unread/{reason}": count for reason, count in unread_counts(grades["answers"]).items()}
    return attempt.publish({**summary(grades, sampled), **unread, **sums}, rollouts=rollouts, puzzles=puzzles)


def _sampled_model(rollouts: Artifact, ctx: StageContext) -> Path:
    """Returns the folder of the model that the rollouts were sampled from, for its tokenizer."""
    return ctx.local_folder(Ref(**rollouts.manifest.inputs["weights"]))


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
    reward, by_process = config.reward, config.advantage.level == "process"
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


def _well_formed(text: str, puzzle: Puzzle, config: GradeConfig) -> bool:
    """Returns whether a completion has the requested layout; False if the reward does not depend on it."""
    if config.reward.format_weight == 0:
        return False
    return cast(ChecksFormat, environment.get(puzzle.environment)).well_formed(text, puzzle)


def _surprise(row: Mapping[str, Any], puzzle: Puzzle, config: GradeConfig, tokenizer: ChatTokenizer | None) -> float:
    """Returns the surprise of a completion; 0 if the reward does not depend on it."""
    if tokenizer is None or not config.reward.surprise_weight:
        return 0.0
    until = max(answer_ends(row["text"], puzzle, config.grader).values(), default=0)
    logprobs = row["sampler_logprobs"][: tokens_until(tokenizer.token_ends(row["completion_token_ids"]), until)]
    by_tool = row.get(BY_TOOL) or [False] * len(logprobs)
    own = [logprob for logprob, told in zip(logprobs, by_tool, strict=False) if not told]
    return surprise(own, len(own))


def _provable(asserted: list[Asserted] | None, puzzle: Puzzle) -> list[Asserted]:
    if asserted is None:
        raise BadInputError(
            f"puzzle {puzzle.puzzle_id}",
            "nothing can be proved about it, because a clue cannot be read or the clues contradict one another",
            "a puzzle on whose statements there are verdicts, as grade.advantage.level = 'process' needs",
            f"leave the puzzle out, or use grade.advantage.level = 'outcome'; {NEW_RUN}",
        )
    return asserted


def _with_advantages(rows: Sequence[dict[str, Any]], config: GradeConfig) -> pl.DataFrame:
    """Returns the rows as a table with advantages. A masked completion has none (null)."""
    frame = as_table(rows, GRADES).drop("advantage")
    compared = frame.filter(~pl.col("truncated")) if config.reward.truncated == "masked" else frame
    groups = [group["reward"].to_numpy() for group in compared.partition_by("group", maintain_order=True)]
    advantages = np.concatenate([np.zeros(0), *batch_advantages(groups, config.advantage)])
    by_sample = compared.select("group", "sample").with_columns(pl.Series("advantage", advantages))
    return frame.join(by_sample, on=["group", "sample"], how="left", maintain_order="left").select(*GRADES.columns)


@dataclass(frozen=True)
class _Supervised:
    """The tables of process supervision.

    Attributes:
        grades: Rows of the `grades` schema; an advantage is the mean over the tokens that the model wrote.
        steps: Rows of the `steps` schema.
        token_advantages: Rows of the `token_advantages` schema, without masked completions.
    """

    grades: pl.DataFrame
    steps: pl.DataFrame
    token_advantages: pl.DataFrame

    def figures(self) -> dict[str, float]:
        """Returns the mean number of steps of a completion, by verdict."""
        counts = dict(self.steps["verdict"].value_counts().iter_rows())
        return {f"steps/{verdict}/mean": counts.get(verdict, 0) / max(1, len(self.grades)) for verdict in STEP_VERDICTS}


def _supervised(
    grades: pl.DataFrame,
    steps: Sequence[Sequence[Step]],
    sampled: pl.DataFrame,
    config: GradeConfig,
    tokenizer: ChatTokenizer,
) -> _Supervised:
    """Returns the tables of process supervision (see `stages.grpo.process`).

    Args:
        grades: Grades with the advantages of whole completions.
        steps: The steps of each of these completions.
        sampled: The rollouts that they grade, in the same order.
        config: Rewards of steps, baseline and scale.
        tokenizer: The tokenizer of the sampled model.

    Raises:
        BadInputError: No completion makes a statement.
    """
    if steps and not any(step.verdict not in ("right", "wrong") for of_completion in steps for step in of_completion):
        raise BadInputError(
            "grade.advantage.level = 'process'",
            f"no statement in any of {len(sampled)} completions, such as {sampled['text'].head(1).to_list()}",
            "completions that assert statements in words that the environment can read",
            "warm-start the model with warm_start.text = 'derivations', or use grade.advantage.level = 'outcome'; "
            f"{NEW_RUN}",
        )
    keys = grades.select("group", "sample").rows()
    tokens = sampled["completion_token_ids"].to_list()
    ends: list[list[int]] = []
    for token_ids, of_completion in zip(tokens, steps, strict=True):
        characters = tokenizer.token_ends(token_ids)
        ends.append([tokens_until(characters, step.end) for step in of_completion])
    rewards = [config.reward.step_rewards.of([step.verdict for step in of_completion]) for of_completion in steps]
    trained = [i for i, advantage in enumerate(grades["advantage"]) if advantage is not None]
    groups = [list(members) for _, members in groupby(trained, key=lambda i: keys[i][0])]
    by_group = step_advantages(
        [[np.array(rewards[i], np.float64) for i in members] for members in groups], config.advantage
    )
    discount = config.advantage.step_discount
    by_token = {
        i: token_advantages(grades["advantage"][i], ends[i], advantages, len(tokens[i]), discount)
        for members, of_group in zip(groups, by_group, strict=True)
        for i, advantages in zip(members, of_group, strict=True)
    }
    step_rows = [
        (*keys[i], number, step.verdict, ends[i][number], rewards[i][number])
        for i, of_completion in enumerate(steps)
        for number, step in enumerate(of_completion)
    ]
    by_tool = sampled[BY_TOOL].to_list() if BY_TOOL in sampled.columns else [None] * len(keys)
    own = {
        i: by_token[i] if marks is None else by_token[i][~np.array(marks, np.bool_)]
        for i, marks in enumerate(by_tool)
        if i in by_token
    }
    means = [float(np.mean(own[i])) if i in own and own[i].size else grades["advantage"][i] for i in range(len(keys))]
    return _Supervised(
        grades.with_columns(pl.Series("advantage", means, pl.Float64)),
        as_table([dict(zip(STEPS.columns, row, strict=True)) for row in step_rows], STEPS),
        as_table(
            [{"group": keys[i][0], "sample": keys[i][1], "advantages": by_token[i].tolist()} for i in trained],
            TOKEN_ADVANTAGES,
        ),
    )


def summary(grades: pl.DataFrame, rollouts: pl.DataFrame) -> dict[str, float]:
    """Returns the figures of an iteration's rollouts that are shown to people, by name.

    `truncated/fraction` counts cuts at the token limit, `early_stopped/fraction` the others; their sum is the share of
    the column `truncated`.

    Args:
        grades: Rows of the `grades` schema.
        rollouts: The completions that they grade.
    """
    lengths = own_lengths(rollouts)
    spread = grades.group_by("group").agg(
        (pl.col("reward").max() - pl.col("reward").min()).alias("spread"), pl.col("reward").std().alias("std")
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
