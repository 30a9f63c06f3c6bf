"""Forces an answer: at a budget of thinking (s1, arXiv 2501.19393), or at cuts of sampled answers (T1, 2501.11651)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.environments.thoughts import answer_start
from stages.strategies.config import BudgetForcing, TruncationProbe
from stages.strategies.requests import Chain, Key, Request

if TYPE_CHECKING:
    from stages.strategies.rounds import StrategyRun


@dataclass
class _Thinking:
    """The thinking about one puzzle.

    Attributes:
        token_ids: Its tokens, without those that ended it.
        own: Number of tokens that the model wrote, with those that ended it; the budget counts them.
        ended: Whether the model ended it; otherwise the budget did.
    """

    token_ids: list[int]
    own: int = 0
    ended: bool = False


def budget_forcing(config: BudgetForcing, strategy_run: StrategyRun) -> None:
    """Thinks within a budget, continues after `wait` where the model would end, and then forces the answer.

    The tokens of all stretches together are within the budget; the published code gives each stretch the full budget
    again. Inserted texts are not counted. Without a text that ends the thinking, the model's completion is its answer,
    and an answer is forced only when the budget is used up.
    """
    budget = config.budget or strategy_run.sampled.max_tokens
    thinking = {(prompt_id, 0): _Thinking([]) for prompt_id in strategy_run.puzzles}
    strategy_run.chains.update({key: Chain() for key in thinking})
    _think(config, strategy_run, thinking, budget, "thinking")
    wait_ids = strategy_run.tokenizer.text_ids(config.wait)
    for _ in range(config.waits):
        longer = {key: item for key, item in thinking.items() if item.ended and item.own < budget}
        for item in longer.values():
            item.token_ids = item.token_ids + wait_ids
        _think(config, strategy_run, longer, budget, "wait")
    starts: dict[Key, list[int]] = {}
    for key, item in thinking.items():
        text = strategy_run.tokenizer.decode(item.token_ids)
        if item.ended and not config.end:
            strategy_run.chains[key].add("answer", text, "stop", 0, answer=True)
        elif item.ended:
            starts[key] = item.token_ids + strategy_run.tokenizer.text_ids(config.end)
        else:
            words = config.end + config.answer if config.end else _answer_prompt(text, config.answer, strategy_run, key)
            starts[key] = item.token_ids + strategy_run.tokenizer.text_ids(forced(text, words))
    _force(strategy_run, starts, config.answer_tokens, config.temperature)


def _think(
    config: BudgetForcing, strategy_run: StrategyRun, thinking: dict[Key, _Thinking], budget: int, step: str
) -> None:
    """Lets the model continue its thinking about each puzzle until it ends or the budget is used up."""
    requests = {
        key: Request([*strategy_run.prompt(key), *item.token_ids], budget - item.own, config.end)
        for key, item in thinking.items()
    }
    if not requests:
        return
    for key, reply in strategy_run.ask(requests, config.temperature).items():
        item, tokens = thinking[key], len(reply.token_ids)
        kept = strategy_run.without_end(reply, config.end)
        item.token_ids, item.own = item.token_ids + kept, item.own + tokens
        item.ended = reply.finish_reason == "stop"
        strategy_run.chains[key].add(step, reply.text, reply.finish_reason, tokens)


def _force(
    strategy_run: StrategyRun,
    starts: dict[Key, list[int]],
    max_tokens: int,
    temperature: float,
    point: str | None = None,
) -> None:
    """Lets the model continue forced beginnings of its text to an answer; the whole text is graded."""
    requests = {key: Request([*strategy_run.prompt(key), *ids], max_tokens) for key, ids in starts.items()}
    if not requests:
        return
    for key, reply in strategy_run.ask(requests, temperature).items():
        text = strategy_run.tokenizer.decode([*starts[key], *reply.token_ids])
        strategy_run.chains[key].add(
            "answer", text, reply.finish_reason, len(reply.token_ids), point=point, answer=True
        )


def forced(text: str, words: str) -> str:
    """Returns the words to insert after a cut text, with a line break before them if there is none."""
    return words if text.endswith("\n") or words.startswith("\n") else f"\n{words}"


def _answer_prompt(text: str, words: str, strategy_run: StrategyRun, key: Key) -> str:
    """Returns the words that force an answer after a cut text; they end the thought that the cut leaves open."""
    thinking = strategy_run.puzzles[key[0]].thinking
    return words if answer_start(text, thinking) is not None else f"{thinking.closing}\n{words}"


def truncation_probe(config: TruncationProbe, strategy_run: StrategyRun) -> None:
    """Cuts the sampled answers at each budget and forces the answer there. An answer that ended earlier is kept.

    The answer with the largest budget is the strategy's; the tokens of an answer include those before the cut.
    """
    longest = strategy_run.sampled.max_tokens
    budgets = config.budgets if config.budgets is not None else tuple(longest * part // 4 for part in range(5))
    strategy_run.chains.update({key: Chain() for key in strategy_run.rollouts})
    for budget in sorted(set(budgets)):
        point, starts = f"{budget} tokens", dict[Key, list[int]]()
        for key, row in strategy_run.rollouts.items():
            ids, chain = row["completion_token_ids"], strategy_run.chains[key]
            chain.spent = min(len(ids), budget)
            if len(ids) <= budget and row["finish_reason"] == "stop":
                chain.add("answer", row["text"], "stop", 0, point=point, answer=True)
            else:
                text = strategy_run.tokenizer.decode(ids[:budget])
                starts[key] = ids[:budget] + strategy_run.tokenizer.text_ids(
                    forced(text, _answer_prompt(text, config.answer, strategy_run, key))
                )
        _force(strategy_run, starts, config.answer_tokens, strategy_run.sampled.temperature, point)
