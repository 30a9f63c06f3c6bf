"""The tables of process supervision: steps with their rewards, and an advantage for each token."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import polars as pl

from artifacts.errors import NEW_RUN, BadInputError
from artifacts.schemas import STEP_VERDICTS, STEPS, TOKEN_ADVANTAGES, as_table, tool_marks
from stages.environments.steps import Step
from stages.grpo.advantages import AdvantageConfig
from stages.grpo.process import StepRewards, step_advantages, token_advantages
from stages.grpo.surprise import tokens_until
from stages.models.tokenizers.chat import ChatTokenizer


@dataclass(frozen=True)
class Supervised:
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


def supervised(
    grades: pl.DataFrame,
    steps: Sequence[Sequence[Step]],
    sampled: pl.DataFrame,
    step_rewards: StepRewards,
    config: AdvantageConfig,
    tokenizer: ChatTokenizer,
) -> Supervised:
    """Returns the tables of process supervision (see `stages.grpo.process`).

    Args:
        grades: Grades with the advantages of whole completions.
        steps: The steps of each of these completions.
        sampled: The rollouts that they grade, in the same order.
        step_rewards: Rewards of steps by their verdict.
        config: Baseline and scale.
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
    rewards = [step_rewards.of([step.verdict for step in of_completion]) for of_completion in steps]
    trained = [i for i, advantage in enumerate(grades["advantage"]) if advantage is not None]
    groups = [list(members) for _, members in groupby(trained, key=lambda i: keys[i][0])]
    by_group = step_advantages([[np.array(rewards[i], np.float64) for i in members] for members in groups], config)
    discount = config.step_discount
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
    own = {
        i: by_token[i] if marks is None else by_token[i][~np.array(marks, np.bool_)]
        for i, marks in enumerate(tool_marks(sampled))
        if i in by_token
    }
    means = [float(np.mean(own[i])) if i in own and own[i].size else grades["advantage"][i] for i in range(len(keys))]
    return Supervised(
        grades.with_columns(pl.Series("advantage", means, pl.Float64)),
        as_table([dict(zip(STEPS.columns, row, strict=True)) for row in step_rows], STEPS),
        as_table(
            [{"group": keys[i][0], "sample": keys[i][1], "advantages": by_token[i].tolist()} for i in trained],
            TOKEN_ADVANTAGES,
        ),
    )
