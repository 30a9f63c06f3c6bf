"""Settings of strategies at test time, and their names on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import Field

from artifacts.config import Config
from artifacts.errors import BadInputError
from stages.sampling.config import SamplingConfig

BestOfScore = Literal["logprob", "mean_logprob", "statements"]
ANSWER_PROMPT = "\nFinal Answer:"


class Single(Config):
    """One sample."""

    strategy: Literal["single"]


class Majority(Config):
    """The most frequent answer of all samples: whole answers, and each question by itself."""

    strategy: Literal["majority"]


class BestOf(Config):
    """The sample with the highest score."""

    strategy: Literal["best_of"]
    score: BestOfScore = Field(
        default="logprob",
        description="`logprob`: the log-probability of the completion; `mean_logprob`: its mean over tokens; "
        "`statements`: proved minus contradicted statements, then the mean log-probability.",
    )


class ThinkTwice(Config):
    """Ask again with the last answer in the prompt (Tian et al., arXiv 2503.19855). Round 1: the sampled answers."""

    strategy: Literal["think_twice"]
    rounds: int = Field(default=2, ge=1, le=16, description="Number of rounds, the first included.")


class Sift(Config):
    """Write the facts of a puzzle on a sticker, and answer with and without the puzzle until both answers agree.

    After Zeng et al., arXiv 2502.14922: at most three stickers, else an answer without one.
    """

    strategy: Literal["sift"]
    temperature: float = Field(
        default=0.0, ge=0.0, le=10.0, description="Softmax temperature of all requests: 0, or 0.01 to 2."
    )
    max_tokens: int = Field(
        default=1024, ge=1, le=10_000_000, description="Largest number of tokens of a sticker and of an answer."
    )


class BudgetForcing(Config):
    """End the thinking at a budget, or make it longer by a word (Muennighoff et al., arXiv 2501.19393)."""

    strategy: Literal["budget_forcing"]
    temperature: float = Field(
        default=0.0, ge=0.0, le=10.0, description="Softmax temperature of all requests: 0, or 0.01 to 2."
    )
    budget: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Largest number of tokens of the thinking; null: `sampled.max_tokens`.",
    )
    waits: int = Field(
        default=0, ge=0, le=64, description="Number of times that the end of the thinking is replaced by `wait`."
    )
    wait: str = Field(default="Wait", min_length=1, description="Text that makes the thinking continue.")
    end: str = Field(
        default="",
        description="Text that ends the thinking, such as `</think>`; empty for models whose text is not divided.",
    )
    answer: str = Field(default=ANSWER_PROMPT, description="Text that follows `end` if the budget ended the thinking.")
    answer_tokens: int = Field(
        default=100, ge=1, le=10_000_000, description="Largest number of tokens of an answer after the thinking."
    )


class TruncationProbe(Config):
    """Cut the sampled answers at budgets and force the answer there, as in the study of T1 (arXiv 2501.11651)."""

    strategy: Literal["truncation_probe"]
    budgets: tuple[Annotated[int, Field(ge=0, le=10_000_000)], ...] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Budgets in tokens; null: quarters of `sampled.max_tokens`.",
    )
    answer: str = Field(default=ANSWER_PROMPT, description="Text that forces the answer after the cut.")
    answer_tokens: int = Field(default=100, ge=1, le=10_000_000, description="Largest number of tokens of the answer.")


SampleStrategy = Single | Majority | BestOf
"""Strategies that choose among the samples of an evaluation."""
RoundsStrategy = ThinkTwice | Sift | BudgetForcing | TruncationProbe
"""Strategies that ask the model in rounds of their own."""
Strategy = Annotated[SampleStrategy | RoundsStrategy, Field(discriminator="strategy")]
STRATEGIES: dict[str, type[Config]] = {
    get_args(kind.model_fields["strategy"].annotation)[0]: kind
    for kind in (Single, Majority, BestOf, ThinkTwice, Sift, BudgetForcing, TruncationProbe)
}
"""The class of each strategy by its name."""


def title_of(strategy: SampleStrategy | RoundsStrategy) -> str:
    """Returns a strategy as the command line takes it: its name, then settings that differ from their defaults.

    For example `budget_forcing:waits=2,end="</think>"`.
    """
    changed = strategy.model_dump(mode="json", exclude_defaults=True, exclude={"strategy"})
    settings = ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in changed.items())
    return f"{strategy.strategy}:{settings}" if settings else strategy.strategy


def rounds_strategies(strategies: Sequence[SampleStrategy | RoundsStrategy]) -> tuple[RoundsStrategy, ...]:
    """Returns the strategies that ask the model in rounds of their own, in order."""
    return tuple(item for item in strategies if isinstance(item, RoundsStrategy))


def check_temperatures(settings: object, where: str, *, samples: bool = True) -> None:
    """Refuses temperatures at which vLLM would not sample, anywhere in a config or a sequence of configs.

    vLLM 0.32 takes 0.01 for one between 0 and 0.01, with a warning in its log only, and fails above 2, and at 0 with
    several samples, which would be equal.

    Args:
        settings: The config, or a value in one.
        where: Its name; empty for a recipe.
        samples: Whether the configs have the number of samples; otherwise it is not checked.

    Raises:
        BadInputError: There is such a temperature.
    """
    if isinstance(settings, SamplingConfig | Sift | BudgetForcing):
        if settings.temperature != 0.0 and not 0.01 <= settings.temperature <= 2.0:
            raise BadInputError(
                f"{where}.temperature", str(settings.temperature), "0, or from 0.01 to 2 (limits of vLLM)", "change it"
            )
        count = settings.samples_per_prompt if samples and isinstance(settings, SamplingConfig) else 1
        if count > 1 and settings.temperature == 0.0:
            raise BadInputError(
                f"{where}.samples_per_prompt", f"{count} at temperature 0",
                "1, because all samples would be the same",
                "set it to 1 (`--samples 1`), or choose a temperature above 0",
            )  # fmt: skip
    elif isinstance(settings, Config | tuple | list):
        items = enumerate(cast("Sequence[Any]", settings)) if not isinstance(settings, Config) else settings
        for name, item in items:
            check_temperatures(item, f"{where}.{name}".removeprefix("."), samples=samples)


def problem_of(strategies: Sequence[SampleStrategy | RoundsStrategy], samples: int, tool_calls: int) -> str | None:
    """Returns why some strategies cannot be measured together; None if they can.

    Args:
        strategies: The strategies.
        samples: Number of sampled answers to each puzzle.
        tool_calls: Number of calls to a solver that a completion may make.
    """
    titles = [title_of(item) for item in strategies]
    if twice := next((title for title in titles if titles.count(title) > 1), None):
        return f"strategy {twice} is named twice"
    for title, item in zip(titles, strategies, strict=True):
        if isinstance(item, Majority | BestOf) and samples < 2:
            return f"strategy {title} chooses among samples, but there is 1 of each puzzle: sample 2 or more"
        if isinstance(item, RoundsStrategy) and tool_calls:
            return f"strategy {title} asks in rounds, which cannot call a solver: set tool_calls to 0"
    return None
