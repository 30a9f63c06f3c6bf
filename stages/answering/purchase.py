"""Buys the missing answers of a model by concurrent requests, and stores each answer as soon as it arrives."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from artifacts.address import Attempt
from artifacts.errors import TransientError
from artifacts.identity import sha256_json
from artifacts.refs import Answers
from artifacts.schemas import ANSWERS, as_table
from stages.answering.client import OF_REQUEST, ApiClient, LostError, RefusedError, stop_of
from stages.answering.limits import Budget, BudgetReachedError, TokenRate
from stages.answering.prices import MOST_TOKENS, TokenPrice, Tokens, cached_tokens, dollars
from stages.answering.reply import Reply
from stages.answering.settings import Access, ApiRequest

STEM = "answers"
"""First part of the names of shards."""
_OVERHEAD_TOKENS = 64
"""Bound of the tokens that a chat format adds to a prompt."""
_TYPICAL_TOKENS = 1000.0
"""Length of an answer that the limit of tokens a minute assumes before the first answer, if no limit is sent."""
REFUSALS = 3
"""Number of questions, all refused before any is answered, from which the parameters are taken for the reason."""


@dataclass(frozen=True)
class PuzzleSample:
    """One sample of one puzzle.

    Attributes:
        prompt_id: Id of the puzzle.
        group: Index of the puzzle in its split.
        sample: Index of the sample.
        prompt: The message.
    """

    prompt_id: str
    group: int
    sample: int
    prompt: str

    @property
    def answer(self) -> str:
        """Digest of prompt and sample, by which an answer is found again."""
        return sha256_json([self.prompt, self.sample])


@dataclass(frozen=True)
class Service:
    """How the answers of one model are bought. None of these settings is part of an identity.

    Attributes:
        name: Name of the model in its file.
        access: Key, concurrency, limits and retries.
        price: Price of its answers; None if it is not known.
        budget: The budget that it shares.
        budget_setting: What raises the budget, for errors.
    """

    name: str
    access: Access
    price: TokenPrice | None
    budget: Budget = field(default_factory=Budget)
    budget_setting: str = "--max-cost"

    @property
    def where(self) -> str:
        """Start of error messages."""
        return f"model {self.name!r}"


def most_tokens(prompt: str, request: ApiRequest) -> Tokens | None:
    """Returns upper bounds of a request's tokens; None if no limit of the answer's length is sent.

    The bound of the prompt counts its bytes, because a tokenizer makes at most one token of a byte.
    """
    limit = request.parameters.limit_tokens
    return None if limit is None else Tokens(len(prompt.encode()) + _OVERHEAD_TOKENS, limit)


def cost_of(price: TokenPrice | None, usage: dict[str, Any], most: float) -> float:
    """Returns the cost of a reply in dollars by its usage, or `most` if that lacks a count; 0 without a price."""
    prompt, completion = usage_tokens(usage)
    if price is None:
        return 0.0
    if prompt is None or completion is None:
        return most
    return price.cost(Tokens(prompt, completion, cached_tokens(usage)))


def most_cost(price: TokenPrice | None, prompt: str, request: ApiRequest) -> float:
    """Returns the highest possible cost of a request in dollars; 0 without a price or a limit of the length."""
    tokens = most_tokens(prompt, request)
    return 0.0 if price is None or tokens is None else price.cost(tokens)


def usage_tokens(usage: dict[str, Any]) -> tuple[int | None, int | None]:
    """Returns the numbers of prompt and completion tokens of a usage; None where it does not state them.

    Some providers leave the tokens of reasoning out of `completion_tokens`, and count them in `total_tokens` only.
    """

    def count(*names: str) -> int | None:
        counts = (value for name in names if isinstance(value := usage.get(name), int))
        return next((value for value in counts if 0 <= value <= MOST_TOKENS), None)

    prompt, completion = count("prompt_tokens", "input_tokens"), count("completion_tokens", "output_tokens")
    if prompt is not None and completion is not None:
        completion = max(completion, (count("total_tokens") or 0) - prompt)
    return prompt, completion


def buy(
    questions: Sequence[PuzzleSample],
    request: ApiRequest,
    service: Service,
    attempt: Attempt[Answers],
    on_answer: Callable[[], None],
    *,
    known_good: bool,
) -> None:
    """Asks the questions and stores every answer as soon as it arrives.

    After an error that ends the work, the requests under way are still finished and stored.

    Args:
        questions: Questions without a stored answer.
        request: Address, model and parameters.
        service: Key, speed, price and budget.
        attempt: Where shards are stored.
        on_answer: Called after each stored answer.
        known_good: Whether the model has answered before with these parameters. If not, questions are asked one at a
            time until one is answered.

    Raises:
        BadInputError: The provider refuses the key, the model or the parameters: it refuses the first three questions,
            or all if they are fewer.
        BudgetReachedError: The next answer might exceed the budget.
        TransientError: Some questions had no reply after all retries.
    """
    asyncio.run(_Buyer(questions, request, service, attempt, on_answer).run(known_good=known_good))


class _Buyer:
    def __init__(
        self,
        questions: Sequence[PuzzleSample],
        request: ApiRequest,
        service: Service,
        attempt: Attempt[Answers],
        on_answer: Callable[[], None],
    ) -> None:
        self._questions, self._request, self._service = deque(questions), request, service
        self._total, self._on_answer = len(questions), on_answer
        self._shards = _Shards(attempt)
        self._rate = TokenRate(service.access.tokens_per_minute)
        self._money = asyncio.Condition()
        self._stop: Exception | None = None
        self._refused: list[tuple[PuzzleSample, RefusedError]] = []
        self._lost: list[str] = []
        self._lost_in_a_row = 0
        self._stored = self._answered = self._tokens = 0

    async def run(self, *, known_good: bool) -> None:
        access = self._service.access
        try:
            async with ApiClient(self._request, access, self._service.where) as client:
                if not known_good:
                    await self._first(client)
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(access.concurrency, len(self._questions))):
                        group.create_task(self._work(client))
        finally:
            self._shards.flush()
        if self._stop is not None:
            raise self._stop
        if self._lost:
            raise TransientError(
                self._service.where,
                f"{len(self._lost)} of {self._total} questions had no reply ({self._lost[-1]})",
                "a reply to each",
                "the same command asks them again; failed_calls = 'count' counts them as wrong instead",
            )

    async def _first(self, client: ApiClient) -> None:
        """Asks one question at a time until one is answered; decides what those that were refused before it mean."""
        while self._questions and not (self._answered or self._stop) and len(self._refused) < REFUSALS:
            await self._one(client, self._questions.popleft(), first=True)
        for question, error in self._refused:
            if self._answered:
                await self._reject(question, error)
            else:
                self._stop = self._stop or stop_of(error, self._service.access, self._service.where)

    async def _work(self, client: ApiClient) -> None:
        while self._questions and self._stop is None:
            try:
                await self._one(client, self._questions.popleft(), first=False)
            except Exception as error:  # raised here, it would cancel requests that are paid for
                self._stop = self._stop or error

    async def _one(self, client: ApiClient, question: PuzzleSample, *, first: bool) -> None:
        service = self._service
        most = most_cost(service.price, question.prompt, self._request)
        if not await self._reserved(most):
            return
        reserved, cost = most, 0.0

        async def lost(goes_on: bool) -> bool:
            """Books an attempt that may be charged, and reserves money for the next; returns whether that may begin."""
            nonlocal reserved
            async with self._money:
                service.budget.settle(reserved, most)
                self._money.notify_all()
            goes_on = goes_on and await self._reserved(most)
            reserved = most if goes_on else 0.0
            return goes_on

        expected_tokens = len(question.prompt.encode()) / 4 + self._typical_tokens()
        await self._rate.take(expected_tokens)
        used_tokens = 0.0
        try:
            if self._stop is not None:  # since this task has waited for its turn
                return
            token = sha256_json([self._request.identity(), question.answer])
            reply = await client.ask(question.prompt, question.sample, token, lost)
            used_tokens = float(sum(count or 0 for count in usage_tokens(reply.usage)))
            cost = cost_of(service.price, reply.usage, most)
            self._lost_in_a_row = 0
            self._answered += 1
            await self._store(question, reply)
        except RefusedError as error:
            if error.status not in OF_REQUEST:
                self._stop = self._stop or stop_of(error, service.access, service.where)
            elif first:
                self._refused.append((question, error))
            else:
                await self._reject(question, error)
        except LostError as error:
            if error.attempts > service.access.retries:  # else the budget is reached
                await self._give_up(question, error)
        finally:
            self._rate.settle(expected_tokens, used_tokens)
            async with self._money:
                service.budget.settle(reserved, cost)
                self._money.notify_all()

    def _typical_tokens(self) -> float:
        if self._stored:
            return self._tokens / self._stored
        return min(_TYPICAL_TOKENS, self._request.parameters.limit_tokens or _TYPICAL_TOKENS)

    async def _reserved(self, most: float) -> bool:
        """Reserves money for an answer, waits while pending requests may free some; returns whether it succeeded."""
        budget = self._service.budget
        async with self._money:
            while not budget.fits(most) and budget.reserved > 1e-12 and self._stop is None:
                await self._money.wait()
            if self._stop is None and not budget.fits(most):
                self._stop = BudgetReachedError(
                    self._service.where,
                    f"the next answer may cost {dollars(most)}, and {dollars(budget.spent)} of "
                    f"{dollars(budget.limit or 0.0)} is spent; {self._stored} of {self._total} missing answers were "
                    "bought",
                    "",
                    f"raise {self._service.budget_setting}; the same command buys only what is missing",
                )
            if self._stop is None:
                budget.reserved += most
            return self._stop is None

    async def _give_up(self, question: PuzzleSample, error: LostError) -> None:
        if self._service.access.failed_calls == "count":
            await self._store(question, Reply("failed", detail=error.words, attempts=error.attempts))
            return
        self._lost.append(f"{question.prompt_id}: {error}")
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= max(3, self._service.access.concurrency):
            self._stop = self._stop or TransientError(
                self._service.where,
                f"{self._lost_in_a_row} questions in a row had no reply ({error})",
                "an API that answers",
                "the same command asks again",
            )

    async def _reject(self, question: PuzzleSample, error: RefusedError) -> None:
        await self._store(question, Reply("rejected", detail=error.words, usage={"total_tokens": 0}))

    async def _store(self, question: PuzzleSample, reply: Reply) -> None:
        await self._shards.add(row_of(question, reply))
        self._stored += 1
        self._tokens += usage_tokens(reply.usage)[1] or 0
        self._on_answer()


def row_of(question: PuzzleSample, reply: Reply) -> dict[str, Any]:
    """Returns an answer as a row of the `answers` schema."""
    prompt_tokens, completion_tokens = (0, 0) if reply.outcome == "rejected" else usage_tokens(reply.usage)
    return {
        "answer": question.answer,
        "prompt_id": question.prompt_id,
        "group": question.group,
        "sample": question.sample,
        "text": reply.text,
        "reasoning": reply.reasoning,
        "outcome": reply.outcome,
        "finish_reason": reply.finish_reason,
        "detail": reply.detail,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "usage": json.dumps(reply.usage),
        "response_id": reply.response_id,
        "model": reply.model,
        "fingerprint": reply.fingerprint,
        "provider": reply.provider,
        "latency_s": reply.latency_s,
        "attempts": reply.attempts,
        "answered_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


class _Shards:
    """Stores rows as they come. While one shard is written, the rows that come make up the next one."""

    def __init__(self, attempt: Attempt[Answers]) -> None:
        self._attempt = attempt
        self._rows: list[dict[str, Any]] = []
        self._turn = asyncio.Lock()

    async def add(self, row: dict[str, Any]) -> None:
        """Stores a row; returns when it is stored."""
        self._rows.append(row)
        async with self._turn:
            rows, self._rows = self._rows, []
            if rows:
                try:
                    await asyncio.to_thread(self._write, rows)
                except BaseException:
                    self._rows = rows + self._rows  # `flush` tries again
                    raise

    def flush(self) -> None:
        """Stores the rows whose storing was interrupted."""
        rows, self._rows = self._rows, []
        if rows:
            self._write(rows)

    def _write(self, rows: Iterable[dict[str, Any]]) -> None:
        self._attempt.write_shard(STEM, as_table(list(rows), ANSWERS), ANSWERS)
