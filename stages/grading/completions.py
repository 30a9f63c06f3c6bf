"""Processes single completions: grades, verdicts on statements, steps, and the inputs of the reward."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import polars as pl

from artifacts.errors import NEW_RUN, BadInputError
from artifacts.schemas import BY_TOOL, CUT
from stages.environments import environment
from stages.environments.capabilities import ChecksFormat, TakesSteps, offered
from stages.environments.puzzle import Asserted, DeductionCounts, Graded, Grader, Puzzle
from stages.environments.single_answer import MISSING
from stages.environments.solver_tool import own_words
from stages.environments.steps import Step, steps_of
from stages.environments.tables import answer_ends, assertions, graded_texts
from stages.grading.own_reward import Completion, Grade, Tokens, own_rewards
from stages.grpo.rewards import RewardConfig, RewardInputs
from stages.grpo.surprise import surprise, tokens_until
from stages.models.tokenizers.chat import ChatTokenizer


@dataclass(frozen=True)
class GradedCompletion:
    """A completion after grading and proving.

    Attributes:
        row: Its row of the rollouts.
        puzzle: What it answers.
        graded: The grade of its answers.
        asserted: Its statements with their verdicts; None if they are not asked for, or nothing can be proved.
    """

    row: dict[str, Any]
    puzzle: Puzzle
    graded: Graded
    asserted: list[Asserted] | None

    @cached_property
    def deduced(self) -> DeductionCounts | None:
        """The counts of its statements by verdict; None if they are not known."""
        return None if self.asserted is None else DeductionCounts.of(self.asserted)

    @property
    def truncated(self) -> bool:
        """Whether the sampler cut it at the token limit or by `early_stop`."""
        return self.row["finish_reason"] in CUT

    @property
    def limit_tokens(self) -> int:
        """The sampler's max_tokens."""
        return json.loads(self.row["sampling"])["max_tokens"]

    @property
    def own_text(self) -> str:
        """Its text without the words of a tool or an environment; marks that the model itself wrote hide nothing."""
        return own_words(self.row["text"], filler="") if any(self.row.get(BY_TOOL) or ()) else self.row["text"]

    @property
    def is_episode(self) -> bool:
        """Whether its environment takes steps."""
        return offered(environment.get(self.puzzle.environment), TakesSteps) is not None

    def counted_tokens(self, model_tokens: int) -> int:
        """Returns how much of the limit it takes: an episode's observations count.

        A cut one has used all of it, also if the model's context cut it earlier.
        """
        if self.row["finish_reason"] == "length":
            return self.limit_tokens
        return len(self.row["completion_token_ids"]) if self.is_episode else model_tokens

    def steps(self, grader: Grader) -> list[Step]:
        """Returns its statements and answers in the order of the text.

        Raises:
            BadInputError: Nothing can be proved about its puzzle.
        """
        if self.asserted is None:
            raise BadInputError(
                f"puzzle {self.puzzle.prompt_id}",
                "nothing can be proved about it, because a clue cannot be read or the clues contradict one another",
                "a puzzle on whose statements there are verdicts, as grade.advantage.level = 'process' needs",
                f"leave the puzzle out, or use grade.advantage.level = 'outcome'; {NEW_RUN}",
            )
        return steps_of(self.asserted, self.graded, answer_ends(self.row["text"], self.puzzle, grader))


def graded_completions(
    sampled: pl.DataFrame, puzzles: dict[str, Puzzle], grader: Grader, *, prove: bool
) -> list[GradedCompletion]:
    """Returns the completions in order, graded, and with verdicts on their statements if `prove` is set.

    Raises:
        IntegrityError: The rollouts name a puzzle that is not in the set.
    """
    graded = graded_texts(sampled.select("text", "prompt_id").iter_rows(), puzzles, grader)
    completions: list[GradedCompletion] = []
    for row, grade in zip(sampled.iter_rows(named=True), graded, strict=True):
        puzzle = puzzles[row["prompt_id"]]
        completions.append(GradedCompletion(row, puzzle, grade, assertions(row["text"], puzzle) if prove else None))
    return completions


def reward_inputs(
    completions: Sequence[GradedCompletion],
    model_tokens: Sequence[int],
    config: RewardConfig,
    grader: Grader,
    tokenizer: ChatTokenizer | None,
) -> list[RewardInputs]:
    """Returns the inputs of each completion's reward; inputs that no term reads are not computed.

    Args:
        completions: The completions.
        model_tokens: Number of tokens of each that the model wrote.
        config: The terms.
        grader: Rule by which answers are read.
        tokenizer: Tokenizer of the sampled model, which the term of surprise needs.
    """
    inputs = [
        RewardInputs(
            accuracy=one.graded.accuracy,
            exact=one.graded.exact,
            truncated=one.truncated,
            sound=one.deduced.sound if one.deduced else 0.0,
            surprise=_surprise(one, grader, tokenizer) if tokenizer and config.surprise_weight else 0.0,
            text=one.own_text,
            well_formed=config.format_weight > 0 and _well_formed(one),
            tokens=one.counted_tokens(tokens),
            limit_tokens=one.limit_tokens,
            answered=any(answer.note != MISSING for answer in one.graded.answers.values()),
        )
        for one, tokens in zip(completions, model_tokens, strict=True)
    ]
    if config.function is None:
        return inputs
    asked = [
        Completion(
            one.row["text"],
            one.puzzle,
            Grade(of_one.accuracy, of_one.exact, of_one.answered, of_one.truncated),
            Tokens(tokens, of_one.limit_tokens),
        )
        for one, of_one, tokens in zip(completions, inputs, model_tokens, strict=True)
    ]
    own = own_rewards(config.function, asked, config.function_limit_s)
    return [replace(of_one, own=value) for of_one, value in zip(inputs, own, strict=True)]


def _well_formed(completion: GradedCompletion) -> bool:
    checks = cast(ChecksFormat, environment.get(completion.puzzle.environment))
    return checks.well_formed(completion.row["text"], completion.puzzle)


def _surprise(completion: GradedCompletion, grader: Grader, tokenizer: ChatTokenizer) -> float:
    """Returns the surprise of a completion up to its last answer."""
    row = completion.row
    until = max(answer_ends(row["text"], completion.puzzle, grader).values(), default=0)
    logprobs = row["sampler_logprobs"][: tokens_until(tokenizer.token_ends(row["completion_token_ids"]), until)]
    by_tool = row.get(BY_TOOL) or [False] * len(logprobs)
    own = [logprob for logprob, tool in zip(logprobs, by_tool, strict=False) if not tool]
    return surprise(own, len(own))
