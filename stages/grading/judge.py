"""A reward from another model: `grade.reward.judge` (see docs/own_loss.md). Its replies are stored and used again."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import polars as pl
from pydantic import Field, SerializationInfo, SerializerFunctionWrapHandler, model_serializer, model_validator

from artifacts.documents.conversation import readable, stored_prompt
from artifacts.errors import BadInputError
from artifacts.identity import IN_IDENTITY
from artifacts.refs import Ref, Rollouts
from artifacts.store.store import Store
from stages.answering.limits import Budget
from stages.answering.prices import TokenPrice
from stages.answering.settings import Access, ApiRequest, refuse_keys
from stages.environments import environment
from stages.environments.capabilities import TakesSteps, offered
from stages.environments.puzzle import Puzzle
from stages.environments.single_answer import ANSWER, ITEM
from stages.environments.solver_tool import read_episode
from stages.environments.thoughts import DEFAULT_THINKING, answer_start, said
from stages.grpo.rewards import RewardConfig

WHERE = "grade.reward.judge"
_PLACEHOLDER = re.compile(r"\{(prompt|completion|answer)\}")
_N = r"\d+(?:\.\d+)?"
_NUMBER = re.compile(rf"(?<![\w.])[-+]?{_N}")
_LABELLED = re.compile(rf"\bscore(?:\s+is\b)?[\s:*=\"'`]{{1,6}}([-+]?{_N})", re.IGNORECASE)
_SCALE = re.compile(  # each part begins where nothing before it could: long runs of spaces take linear time
    rf"(?<!\s)\s*[/\u2044]\s*{_N}|\bout\s+of\s+{_N}|(?<=\d)\s+of\s+{_N}|\bmax(?:\.|imum\b)?(?:\s+of\b)?\s*{_N}",
    re.IGNORECASE,
)
"""What tells of the scale: `/10`, `out of 10`, `max. 10`."""
_RANGE = re.compile(rf"(?<![\w.])({_N}) ?(?:-|\u2013|to\b) ?({_N})", re.IGNORECASE)
"""What tells of the scale if it ends at `best`: `0 to 10`."""


class JudgeConfig(ApiRequest, Access):
    """A model behind an OpenAI-compatible API that scores completions: a benchmark's settings, and those of scoring."""

    prompt: str = Field(
        min_length=1,
        description="Question to the judge about a completion. {prompt}, {completion} (without its thought) and "
        "{answer} (the right one) are filled in; other braces have no meaning. Its score is the last number "
        "after `score`, else the last number of its reply; not those of the scale: 7/10, 7 out of 10, 0 to 10, max. "
        "10.",
    )
    worst: float = Field(default=0.0, description="Score that is worth 0.")
    best: float = Field(default=10.0, description="Score that is worth `weight`; those between count in proportion.")
    weight: float = Field(default=1.0, ge=0.0, le=1e6, description="Factor of the judge's score, which is added.")
    price: TokenPrice | None = Field(default=None, description="Price of tokens; null: costs are not known.")
    max_cost: float | None = Field(
        default=None,
        ge=0.0,
        description="Dollars that a judge's replies may cost in an iteration, all attempts together; what lost "
        "requests may have cost counts in the attempt that lost them. Needs `price` and "
        "`parameters.max_tokens`. null: no limit.",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            refuse_keys(cast("dict[str, Any]", data), WHERE)
        return data

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if "{completion}" not in self.prompt:
            raise ValueError("prompt does not show the judge the completion: write {completion} in it")
        if self.worst == self.best:
            raise ValueError("worst and best are the same score")
        if self.max_cost is not None and (self.price is None or self.parameters.limit_tokens is None):
            raise ValueError("max_cost needs price and parameters.max_tokens, without which no cost is bounded")
        return self

    @model_serializer(mode="wrap")
    def _only_what_scores_depend_on(self, plain: SerializerFunctionWrapHandler, info: SerializationInfo) -> Any:
        return self.identity() if info.context == IN_IDENTITY else plain(self)

    @property
    def asked(self) -> ApiRequest:
        """What a request sends besides the prompt."""
        return ApiRequest(**{name: getattr(self, name) for name in ApiRequest.model_fields})

    def identity(self) -> dict[str, Any]:
        """Returns what rewards depend on; key, speed, retries and prices are not part of it."""
        return {
            **self.asked.identity(),
            **{name: getattr(self, name) for name in ("prompt", "worst", "best", "weight")},
        }

    def question(self, completion: str, puzzle: Puzzle) -> str | None:
        """Returns the question about a completion; None if there is nothing to judge, because it has no answer."""
        if (words := _said(completion, puzzle)) is None:
            return None
        letters = (f"{name}. {answer}" for name, answer in puzzle.solution.items() if name not in (ANSWER, ITEM))
        answer = puzzle.solution.get(ANSWER) or "\n".join(letters) or puzzle.solution.get(ITEM, "")
        texts = {"prompt": readable(puzzle.prompt), "completion": words, "answer": answer}
        return _PLACEHOLDER.sub(lambda found: texts[found[1]], self.prompt)

    def score(self, reply: str) -> float | None:
        """Returns the reward of a reply, from 0 to `weight`; None if no number in it is a score."""
        words = _SCALE.sub("", said(reply, DEFAULT_THINKING))
        words = _RANGE.sub(lambda found: "" if float(found[2]) == self.best else found[0], words)
        numbers = _LABELLED.findall(words) or _NUMBER.findall(words)
        if not numbers:
            return None
        share = (float(numbers[-1]) - self.worst) / (self.best - self.worst)
        return self.weight * share if 0.0 <= share <= 1.0 else None


def _said(completion: str, puzzle: Puzzle) -> str | None:
    """Returns a completion without thoughts, an episode as a conversation; None without an answer."""
    if offered(environment.get(puzzle.environment), TakesSteps) is None:
        start = answer_start(completion, puzzle.thinking)
        return None if start is None else completion[start:]
    turns, observations = read_episode(completion)
    answers = [said(turn, puzzle.thinking) for turn in turns]
    messages = [{"role": "assistant", "content": answers[0]}]
    for observation, answer in zip(observations, answers[1:], strict=True):
        messages += [{"role": "user", "content": observation}, {"role": "assistant", "content": answer}]
    return readable(stored_prompt(messages)) if any(answers) else None


class JudgedReward(RewardConfig):
    """Terms of the reward, among them the score of another model."""

    judge: JudgeConfig | None = Field(
        default=None, description="Another model, whose score of a completion is added; null: none."
    )

    @property
    def reads_answers(self) -> bool:
        """Whether rewards depend on the grader's answers, and not on a function or a judge alone."""
        alone = self.function is not None or self.judge is not None
        return not alone or bool(self.accuracy_weight or self.exact_weight or self.outcomes)


@dataclass(frozen=True)
class Verdicts:
    """What a judge says of completions.

    Attributes:
        rewards: The reward of each, in order; 0 for one without an answer, and for a reply without a score.
        unread: Number of replies without a score.
        bought: Number of replies that were not stored before.
        dollars: Cost of all replies, also of those that were stored before.
    """

    rewards: list[float]
    unread: int
    bought: int
    dollars: float

    def figures(self) -> dict[str, float]:
        """Returns the facts for the manifest."""
        return {"judge/unread": self.unread, "judge/bought": self.bought, "judge/dollars": self.dollars}


def verdicts(
    config: JudgeConfig,
    completions: Sequence[tuple[str, Puzzle]],
    rollouts: Ref[Rollouts],
    store: Store,
    on_answer: Callable[[int, int], None],
) -> Verdicts:
    """Asks a judge about completions; a question whose reply is stored is not asked again.

    Args:
        config: The judge.
        completions: The text of each completion with its puzzle.
        rollouts: The artifact that holds them.
        store: Where replies are stored, as soon as they arrive.
        on_answer: Called after each bought reply with the number bought so far and the number to buy.

    Raises:
        BadInputError: The server refuses the key, the model or the parameters, or no reply has a score
            although at least half of the completions have an answer to judge.
        BudgetReachedError: The next reply might cost more than `max_cost` allows.
        TransientError: Questions had no reply after all retries.
    """
    # They load the client of APIs, which takes longer than all else that most commands load.
    from stages.answering.purchase import PuzzleSample, Service, buy, cost_of, most_cost
    from stages.answering.stored import missing_questions, stored_answers

    texts = [config.question(text, puzzle) for text, puzzle in completions]
    asked = {text: PuzzleSample(puzzle.prompt_id, 0, 0, text)
             for text, (_, puzzle) in zip(texts, completions, strict=True) if text is not None}  # fmt: skip
    attempt, stored = stored_answers(store, config.asked, rollouts)
    wanted = {question.answer: text for text, question in asked.items()}
    spent = sum(
        cost_of(config.price, json.loads(usage), most_cost(config.price, wanted[answer], config.asked))
        for answer, usage, outcome in stored.select("answer", "usage", "outcome").iter_rows()
        if answer in wanted and outcome != "rejected"
    )
    missing, budget, bought = missing_questions(asked.values(), stored), Budget(config.max_cost, spent), 0

    def count() -> None:
        nonlocal bought
        bought += 1
        on_answer(bought, len(missing))

    if missing:
        service = Service(WHERE, config, config.price, budget, f"{WHERE}.max_cost")
        known_good = not stored.filter(pl.col("outcome") != "failed").is_empty()
        buy(missing, config.asked, service, attempt, count, known_good=known_good)
        _, stored = stored_answers(store, config.asked, rollouts)
    answers = {
        wanted[answer]: rest
        for answer, *rest in stored.select("answer", "text", "outcome").iter_rows()
        if answer in wanted
    }
    scores = {  # a reply that was cut may end with any number
        text: config.score(reply) if outcome == "answered" else None for text, (reply, outcome) in answers.items()
    }
    judged = sum(text is not None for text in texts)
    if scores and not any(score is not None for score in scores.values()) and 2 * judged >= len(texts):
        raise BadInputError(
            WHERE,
            f"no score in any of {len(scores)} replies, such as {next(iter(answers.values()))[0][:80]!r}",
            f"a number from {config.worst:g} to {config.best:g} at the end of each",
            "ask for one in judge.prompt, or raise judge.parameters.max_tokens; then start a new run",
        )
    unread = sum(text is not None and scores[text] is None for text in texts)
    rewards = [0.0 if text is None else scores[text] or 0.0 for text in texts]
    return Verdicts(rewards, unread, bought, budget.spent)
