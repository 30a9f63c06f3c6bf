"""Thoughts in completions. One rule, the same for every grader, defines which part of a completion is its answer."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from artifacts.config import Config

THOUGHT_OPENED = "thought_opened"
"""Fact of rollouts, answers and reports: whether the model's chat template opens a thought in the prompt."""


def thought_opened(facts: Mapping[str, Any]) -> bool:
    """Returns the fact `THOUGHT_OPENED` of an artifact with completions; False if its sampler did not record it."""
    return bool(facts.get(THOUGHT_OPENED, False))


class ThinkingConfig(Config):
    """What counts as thinking in a completion. Graders do not read it."""

    rule: Literal["cut", "required", "kept"] = Field(
        default="cut",
        description="Which part is the answer. `cut`: what follows the last `closing`, or all of a completion without "
        "marks; an unfinished thought has no answer, even if the model's chat template opened it in the prompt. "
        "`required`: likewise, and without `closing` there is no answer, except in replies of an API. `kept`: the "
        "whole completion.",
    )
    opening: str = Field(default="<think>", min_length=1, max_length=100, description="Text that begins a thought.")
    closing: str = Field(default="</think>", min_length=1, max_length=100, description="Text that ends a thought.")

    @model_validator(mode="after")
    def _marks_differ(self) -> Self:
        if self.closing in self.opening:
            raise ValueError("opening holds closing, so a thought would end where it begins: choose different marks")
        return self

    def after_prompt(self, opened: bool) -> "ThinkingConfig":
        """Returns the rule for completions of one model.

        Args:
            opened: Whether the model's chat template opens a thought in the prompt, so that only `closing` ends it.
        """
        return self.model_copy(update={"rule": "required"}) if opened and self.rule == "cut" else self

    def of_an_api(self) -> "ThinkingConfig":
        """Returns the rule for replies of an API, which states thoughts beside the text or hides them."""
        return self.model_copy(update={"rule": "cut"}) if self.rule == "required" else self

    @property
    def before_answer(self) -> str:
        """What precedes an answer without a thought, so that it is read; empty if nothing must."""
        return f"\n{self.closing}\n" if self.rule == "required" else ""


DEFAULT_THINKING = ThinkingConfig()


def said(text: str, thinking: ThinkingConfig) -> str:
    """Returns a completion without its thoughts and the spaces around; empty if it has no answer."""
    start = answer_start(text, thinking)
    return "" if start is None else text[start:].strip()


def answer_start(text: str, thinking: ThinkingConfig) -> int | None:
    """Returns the number of characters of a completion before its answer; None if it has no answer.

    Args:
        text: The completion, any text.
        thinking: The rule.
    """
    if thinking.rule == "kept":
        return 0
    closed = text.rfind(thinking.closing)
    if closed < 0 and thinking.rule == "required":
        return None
    start = 0 if closed < 0 else closed + len(thinking.closing)
    return None if thinking.opening in text[start:] else start
