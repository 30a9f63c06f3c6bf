"""Multi-round thinking: ask again with the last answer in the prompt (Tian et al., arXiv 2503.19855)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stages.environments.puzzle import Graded
from stages.strategies.config import ThinkTwice
from stages.strategies.requests import Chain, Request

if TYPE_CHECKING:
    from stages.strategies.rounds import Interview

_CLOSING, _ESCAPED = "</answer>", "&lt;/answer&gt;"


def think_twice(config: ThinkTwice, interview: Interview) -> None:
    """Asks `rounds - 1` times again. The first round are the sampled answers, so one round is the plain evaluation."""
    grades = interview.graded({key: row["text"] for key, row in interview.rollouts.items()})
    for key, row in interview.rollouts.items():
        chain = interview.chains[key] = Chain()
        tokens = len(row["completion_token_ids"])
        chain.add("answer", row["text"], row["finish_reason"], tokens, point="round 1", answer=True)
    sampled = interview.sampled
    for number in range(2, config.rounds + 1):
        requests = {
            key: Request(
                interview.prompt(key, again_prompt(interview.puzzles[key[0]].prompt, last_answer(graded))),
                sampled.max_tokens,
            )
            for key, graded in grades.items()
        }
        replies = interview.ask(requests, sampled.temperature)
        grades = interview.graded({key: reply.text for key, reply in replies.items()})
        for key, reply in replies.items():
            tokens = len(reply.token_ids)
            interview.chains[key].add(
                "answer", reply.text, reply.finish_reason, tokens, point=f"round {number}", answer=True
            )


def again_prompt(prompt: str, answer: str) -> str:
    """Returns the prompt of a further round, byte for byte as published."""
    return f"{prompt}\nThe assistant's previous answer is: <answer> {answer} </answer>, and please re-answer."


def last_answer(graded: Graded) -> str:
    """Returns the answers that were read, without the thinking: a line for each letter, or the only answer.

    The mark that ends an answer in the prompt is escaped.
    """
    read = {question: answer.text for question, answer in graded.answers.items() if answer.text is not None}
    lettered = all(len(question) == 1 for question in graded.answers)
    lines = [f"{question}. {text}" if lettered else text for question, text in read.items()]
    return "\n".join(lines).replace(_CLOSING, _ESCAPED)
