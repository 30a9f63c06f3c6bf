"""Stick to the facts: answers with and without the puzzle must agree on a sticker of its facts (arXiv 2502.14922).

A sticker is made, then corrected by the puzzle, then made anew from the answer and corrected. After each of the three
the model answers from the sticker alone and from puzzle and sticker; if both answers are the same, that is the answer.
Otherwise the model answers the puzzle without a sticker. The prompts are not those of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from artifacts.documents.conversation import readable
from stages.environments.puzzle import Graded
from stages.environments.thoughts import said
from stages.strategies.config import Sift
from stages.strategies.requests import STICKER, Chain, Continuation, Key, Request

if TYPE_CHECKING:
    from stages.strategies.rounds import StrategyRun

TextByKey = dict[Key, str]


def sift(config: Sift, strategy_run: StrategyRun) -> None:
    """Asks until both answers agree, three times at most. Only puzzles that still disagree are asked again."""
    asking = _Asking(config, strategy_run)
    prompts = {(prompt_id, 0): readable(puzzle.prompt) for prompt_id, puzzle in strategy_run.puzzles.items()}
    strategy_run.chains.update({key: Chain() for key in prompts})
    first = asking.stickers({key: list_facts(prompt) for key, prompt in prompts.items()})
    open_, predictions = asking.compare(prompts, first)
    second = asking.stickers({key: correct_facts(prompts[key], first[key]) for key in open_})
    # At temperature 0 the same sticker would get the same answers.
    changed = {key: text for key, text in second.items() if config.temperature or text != first[key]}
    still, corrected = asking.compare(prompts, changed)
    open_ = [key for key in open_ if key not in changed or key in still]
    predictions |= corrected
    guessed = asking.stickers({key: facts_of_answer(predictions[key]) for key in open_}, step="inverse sticker")
    third = asking.stickers({key: correct_facts(prompts[key], guessed[key]) for key in open_})
    open_, _ = asking.compare(prompts, third)
    for key, reply in asking.ask({key: prompts[key] for key in open_}).items():
        asking.add(key, "answer", reply, answer=True)


class _Asking:
    """The requests of the loop, each recorded as a round."""

    def __init__(self, config: Sift, strategy_run: StrategyRun) -> None:
        self._config, self._run = config, strategy_run

    def ask(self, texts: Mapping[Key, str]) -> dict[Key, Continuation]:
        """Returns the replies to one user message for each key."""
        limit = self._config.max_tokens
        requests = {key: Request(self._run.prompt(key, text), limit) for key, text in texts.items()}
        return self._run.ask(requests, self._config.temperature) if requests else {}

    def add(self, key: Key, step: str, reply: Continuation, *, answer: bool = False) -> None:
        """Records a round."""
        chain = self._run.chains[key]
        chain.add(step, reply.text, reply.finish_reason, len(reply.token_ids), answer=answer)

    def stickers(self, texts: Mapping[Key, str], step: str = STICKER) -> TextByKey:
        """Returns the stickers that the model writes."""
        replies = self.ask(texts)
        for key, reply in replies.items():
            self.add(key, step, reply)
        return self._said(replies)

    def compare(self, prompts: TextByKey, stickers: TextByKey) -> tuple[list[Key], TextByKey]:
        """Answers from each sticker alone and with the puzzle.

        Returns:
            The keys whose answers differ, and the answer with the puzzle of each key.
        """
        alone = self.ask(stickers)
        both = self.ask({key: with_facts(prompts[key], text) for key, text in stickers.items()})
        first = self._run.graded({key: reply.text for key, reply in alone.items()})
        second = self._run.graded({key: reply.text for key, reply in both.items()})
        disagreeing = [key for key in stickers if not agree(first[key], second[key])]
        for key in stickers:
            self.add(key, "answer from the sticker", alone[key])
            agreed = key not in disagreeing
            self.add(key, "answer" if agreed else "answer with the sticker", both[key], answer=agreed)
        return disagreeing, self._said(both)

    def _said(self, replies: Mapping[Key, Continuation]) -> TextByKey:
        """Returns the replies without their thoughts."""
        return {key: said(reply.text, self._run.puzzles[key[0]].thinking) for key, reply in replies.items()}


def agree(first: Graded, second: Graded) -> bool:
    """Returns whether two completions give the same answer to every question; missing answers never agree."""
    values = {question: answer.value for question, answer in first.answers.items()}
    others = {question: answer.value for question, answer in second.answers.items()}
    return bool(values) and None not in values.values() and values == others


def list_facts(prompt: str) -> str:
    """Returns the prompt for a first sticker."""
    return (
        f"{prompt}\n\nDo not answer yet. List every condition of this task, one on a line. "
        "Then repeat the questions and the form of the answer."
    )


def correct_facts(prompt: str, sticker: str) -> str:
    """Returns the prompt that corrects a sticker by the puzzle."""
    return (
        f"{prompt}\n\nThese notes on the task may be wrong or incomplete:\n{sticker}\n\n"
        "Do not answer yet. Write the notes again, corrected by the task: every condition on a line, then the "
        "questions and the form of the answer."
    )


def facts_of_answer(answer: str) -> str:
    """Returns the prompt for a sticker that is guessed from an answer."""
    return (
        f"This is an answer to a task:\n{answer}\n\nWrite down the conditions of the task that has this answer, one on "
        "a line, then its questions and the form of the answer."
    )


def with_facts(prompt: str, sticker: str) -> str:
    """Returns the prompt of a puzzle with a sticker."""
    return f"{prompt}\n\nNotes on the task:\n{sticker}"
