"""Multi-round thinking: ask again with the last answer in the prompt (Tian et al., arXiv 2503.19855)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from artifacts.documents.conversation import with_last
from stages.environments.puzzle import Graded
from stages.environments.single_answer import is_partial
from stages.environments.thoughts import said
from stages.strategies.config import ThinkTwice
from stages.strategies.requests import Chain, Request

if TYPE_CHECKING:
    from stages.strategies.rounds import StrategyRun

_CLOSING, _ESCAPED = "</answer>", "&lt;/answer&gt;"


def think_twice(config: ThinkTwice, strategy_run: StrategyRun) -> None:
    """Asks `rounds - 1` times again. The first round is the sampled answers, so one round is the plain evaluation."""
    texts = {key: row["text"] for key, row in strategy_run.rollouts.items()}
    grades = strategy_run.graded(texts)
    for key, row in strategy_run.rollouts.items():
        chain = strategy_run.chains[key] = Chain()
        tokens = len(row["completion_token_ids"])
        chain.add("answer", row["text"], row["finish_reason"], tokens, point="round 1", answer=True)
    sampled = strategy_run.sampled
    for number in range(2, config.rounds + 1):
        answers = {
            key: last_answer(graded, said(texts[key], strategy_run.puzzles[key[0]].thinking))
            for key, graded in grades.items()
        }
        requests = {
            key: Request(
                strategy_run.prompt(key, again_prompt(strategy_run.puzzles[key[0]].prompt, answer)), sampled.max_tokens
            )
            for key, answer in answers.items()
        }
        replies = strategy_run.ask(requests, sampled.temperature)
        texts = {key: reply.text for key, reply in replies.items()}
        grades = strategy_run.graded(texts)
        for key, reply in replies.items():
            tokens = len(reply.token_ids)
            strategy_run.chains[key].add(
                "answer", reply.text, reply.finish_reason, tokens, point=f"round {number}", answer=True
            )


def again_prompt(prompt: str, answer: str) -> str:
    """Returns the prompt of a further round, byte for byte as published."""
    words = f"The assistant's previous answer is: <answer> {answer} </answer>, and please re-answer."
    return with_last(prompt, lambda text: f"{text}\n{words}")


def last_answer(graded: Graded, text: str) -> str:
    """Returns the answers that were read: a line for each letter, or the only answer.

    If the grade does not say what was answered, or only how the answer begins, the text itself is returned. The mark
    that ends an answer in the prompt is escaped.

    Args:
        graded: The grade of a completion.
        text: The completion without its thoughts.
    """
    read = {question: answer.text for question, answer in graded.answers.items() if answer.text is not None}
    if any(is_partial(answer) for answer in graded.answers.values()):
        return text.replace(_CLOSING, _ESCAPED)
    lettered = all(len(question) == 1 for question in graded.answers)
    lines = [f"{question}. {words}" if lettered else words for question, words in read.items()]
    return "\n".join(lines).replace(_CLOSING, _ESCAPED)
