"""What a reply means, when a failure is tried again, and what limits of money and tokens let through."""

import asyncio
import contextlib
import datetime
import gzip
import json
import threading
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest

from artifacts.errors import BadInputError, DeerstalkerError, TransientError
from artifacts.schemas import ANSWERS, as_table, validated
from artifacts.store.store import Store
from stages.answering.client import ApiClient, LostError, RefusedError, _failure, _lists, _retry_after_s
from stages.answering.estimate import estimate_purchase
from stages.answering.limits import Budget, BudgetReachedError, TokenRate
from stages.answering.prices import TokenPrice, Tokens, cached_tokens
from stages.answering.purchase import PuzzleSample, Service, buy, row_of, usage_tokens
from stages.answering.reply import reply_of
from stages.answering.settings import Access, ApiRequest, Parameters
from stages.answering.stored import stored_answers
from tests.support.serving import Replies, http_server


async def tries_again(goes_on: bool) -> bool:
    """Lets retries begin, as a budget without a limit does."""
    return goes_on


def reply(choice: dict[str, Any], **body: Any) -> Any:
    return reply_of({"choices": [choice], **body}, latency_s=1.0, attempts=1)


@pytest.mark.parametrize(
    ("choice", "outcome", "text"),
    [
        ({"finish_reason": "stop", "message": {"content": "A. x"}}, "answered", "A. x"),
        ({"finish_reason": None, "message": {"content": [{"type": "text", "text": "A. x"}]}}, "answered", "A. x"),
        ({"finish_reason": "length", "message": {"content": "A."}}, "length", "A."),
        ({"finish_reason": "length", "message": {"content": None}}, "length", ""),
        ({"finish_reason": "stop", "message": {"content": " \n"}}, "empty", " \n"),
        ({"finish_reason": "stop", "message": {"content": None, "refusal": "No."}}, "refusal", ""),
        ({"finish_reason": "content_filter", "message": {"content": ""}}, "refusal", ""),
        ({"finish_reason": "error", "message": {"content": "A"}}, "error", "A"),
        ({"finish_reason": "stop", "error": {"message": "gone"}, "message": {"content": ""}}, "error", ""),
        ({"finish_reason": "stop", "message": None}, "empty", ""),
    ],
)
def test_every_end_of_an_answer_is_an_outcome(choice: dict[str, Any], outcome: str, text: str) -> None:
    read = reply(choice)
    assert (read.outcome, read.text) == (outcome, text)
    row = row_of(PuzzleSample("p", 0, 0, "Who?"), read)
    assert row["completion_tokens"] is None, "the reply has no usage"
    validated(as_table([row], ANSWERS), ANSWERS, "here")


def test_the_whole_usage_and_the_facts_of_a_reply_are_stored() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 2}}
    message = {"content": "x", "reasoning_content": "because"}
    names = {"id": "r1", "model": "m-2025", "system_fingerprint": "fp", "provider": "Somebody"}
    row = row_of(PuzzleSample("p", 0, 0, "Who?"), reply({"message": message}, usage=usage, **names))
    assert (row["prompt_tokens"], row["completion_tokens"], row["reasoning"]) == (3, 4, "because")
    assert '"reasoning_tokens": 2' in row["usage"]
    stored = [row[key] for key in ("response_id", "model", "fingerprint", "provider")]
    assert stored == ["r1", "m-2025", "fp", "Somebody"]


class Endless(Replies):
    """Answers with 64 MiB: of the API's list of models as they are, of a question compressed a thousandfold."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        for _ in range(64):
            self.wfile.write(b" " * (1 << 20))

    def do_POST(self) -> None:
        self.reply(gzip.compress(b" " * (64 << 20)), Content_Encoding="gzip")


def test_an_answer_without_an_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.answering.client.LARGEST_DOCUMENT", 4 << 20)

    async def asked(url: str) -> None:
        request = ApiRequest(model="m", base_url=f"{url}/v1")
        async with ApiClient(request, Access(api_key_env=None, retries=0), "model 'm'") as client:
            with pytest.raises(
                BadInputError, match=r"is not an API: GET /models answers .* at most 4,194,304 are read"
            ):
                await client.check()
            with pytest.raises(LostError, match=r"a reply of .* at most 4,194,304 are read"):
                await client.ask("Who?", 0, "token", tries_again)

    with http_server(Endless) as url:
        asyncio.run(asked(url))


class Hostile(Replies):
    """By the first part of the path: drips without an end, is compressed twice, or leads to another server."""

    keys: ClassVar[list[str | None]] = []

    def do_POST(self) -> None:
        self.keys.append(self.headers["Authorization"])
        self.send_response(307 if self.path.startswith("/leads") else 200)
        if self.path.startswith("/leads"):
            self.send_header("Location", f"http://localhost:{self.server.server_port}/other")  # type: ignore[attr-defined]
        if self.path.startswith("/twice"):
            self.send_header("Content-Encoding", "gzip, gzip")
        self.end_headers()
        if self.path.startswith("/twice"):
            self.wfile.write(gzip.compress(gzip.compress(b'{"choices": [{"message": {"content": "7"}}]}')))
        with contextlib.suppress(OSError):
            while self.path.startswith("/drips"):
                self.wfile.write(b" ")
                time.sleep(0.02)


def test_a_hostile_api_neither_holds_a_run_nor_fills_the_memory_nor_passes_the_key_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEY", "sesame")
    Hostile.keys.clear()

    async def asked(url: str, timeout_s: float) -> None:
        request = ApiRequest(model="m", base_url=url)
        access = Access(api_key_env="KEY", retries=0, timeout_s=timeout_s)
        async with ApiClient(request, access, "model 'm'") as client:
            await client.ask("Who?", 0, "token", tries_again)

    with http_server(Hostile) as url:
        for path, timeout_s, error, words in (
            ("twice", 300.0, LostError, "a reply of Content-Encoding 'gzip, gzip', not gzip"),
            ("leads", 300.0, RefusedError, "HTTP 307"),
            ("drips", 2.0, LostError, "no reply within 2 s"),
        ):
            with pytest.raises(error, match=words):
                asyncio.run(asked(f"{url}/{path}/v1", timeout_s))
    assert Hostile.keys == ["Bearer sesame"] * 3, "nobody followed the redirect"


def test_what_cannot_be_stored_of_a_reply_is_replaced() -> None:
    """Half an emoji, as of a reply that is cut, and counts that no model has: both made a row that polars refuses."""
    parts = [{"type": "text", "text": "7 \ud83d"}]
    usage = {"prompt_tokens": 10**30, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 10**400}}
    read = reply({"message": {"content": parts, "reasoning": "\udfff"}}, usage=usage, model="\ud800")
    row = row_of(PuzzleSample("p", 0, 0, "Who?"), read)
    stored = validated(as_table([row], ANSWERS), ANSWERS, "here").row(0, named=True)
    counted = (stored["prompt_tokens"], stored["completion_tokens"], cached_tokens(usage))
    assert (stored["text"], stored["reasoning"], stored["model"], *counted) == ("7 ?", "?", "?", None, 2, 0.0)


def test_failures_that_may_pass_are_told_from_refusals() -> None:
    for status in (408, 409, 429, 500, 502, 503, 529):
        assert not isinstance(_failure(status, "", None, {}), RefusedError)
    for status in (400, 401, 402, 403, 404, 413, 422):
        assert isinstance(_failure(status, "", None, {}), RefusedError)
    assert isinstance(_failure(429, "", "insufficient_quota", {}), RefusedError), "no wait brings money"


def test_retry_after_is_seconds_or_a_date() -> None:
    assert _retry_after_s({"retry-after": "2.5"}) == 2.5
    assert _retry_after_s({}) is None and _retry_after_s({"retry-after": "soon"}) is None
    assert _retry_after_s({"retry-after": "nan"}) is None and _retry_after_s({"retry-after": "-3"}) == 0.0
    assert 50 < (_retry_after_s({"retry-after": formatdate(time.time() + 60, usegmt=True)}) or 0) <= 60


def test_lists_of_models_know_folders_and_variants() -> None:
    assert _lists(["models/gemini-2"], "gemini-2") and _lists(["a/b"], "a/b:nitro")
    assert not _lists(["a/b"], "a/c")


def test_a_budget_counts_what_is_under_way() -> None:
    budget = Budget(limit=1.0)
    assert budget.fits(1.0) and not budget.fits(1.1)
    budget.reserved = 0.6
    assert not budget.fits(0.5)
    budget.settle(0.6, 0.1)
    assert budget.fits(0.9) and budget.spent == 0.1
    assert Budget().fits(1e9)


def test_the_limit_of_tokens_a_minute_delays_and_corrects_itself() -> None:
    async def waited() -> list[bool]:
        rate = TokenRate(60_000)  # a thousand a second
        await asyncio.wait_for(rate.take(59_000), 0.5)
        rate.settle(59_000, 60_000)  # it was more than was taken: the bucket is empty
        try:
            await asyncio.wait_for(rate.take(30_000), 0.05)
        except TimeoutError:
            late = True
        else:
            late = False
        rate.settle(60_000, 0)
        await asyncio.wait_for(rate.take(1e9), 5.0)  # more than a minute's: waits for a full bucket only
        return [late]

    assert asyncio.run(waited()) == [True]


def test_an_estimate_expects_what_was_measured_and_bounds_what_may_come() -> None:
    price = TokenPrice(input=1.0, output=10.0, source="here", date=datetime.date(2026, 1, 1))
    questions = [PuzzleSample(str(number), number, 0, "x" * 36) for number in range(10)]
    request = ApiRequest(model="m", parameters=Parameters(max_tokens=100))
    none = as_table([], ANSWERS)
    told = estimate_purchase("a", questions, 12, none, request, price, Tokens(10, 50))
    assert told.expected == pytest.approx(10 * (10 + 500) / 1e6) and told.most == pytest.approx(10 * 1100 / 1e6)
    assert (told.missing, told.answers) == (10, 12) and "file of models" in told.by
    assert estimate_purchase("a", questions, 12, none, request, price, None).expected is None
    message = {"message": {"content": "x"}}
    row = row_of(questions[0], reply(message, usage={"prompt_tokens": 9, "completion_tokens": 20}))
    stored = as_table([row], ANSWERS)
    seen = estimate_purchase("a", questions, 12, stored, request, price, Tokens(10, 50))
    assert seen.expected == pytest.approx(10 * (9 + 200) / 1e6) and "1 stored" in seen.by
    unbounded = ApiRequest(model="m")
    assert estimate_purchase("a", questions, 12, stored, unbounded, price, None).most is None
    assert estimate_purchase("a", [], 12, stored, request, price, None).line() == "a: all 12 answers are stored"


class Choosy(Replies):
    """A provider that flags a question with "bomb", in a message cut inside an emoji, and answers others when told."""

    told: ClassVar[threading.Event] = threading.Event()

    def do_POST(self) -> None:
        asked = json.loads(self.body())["messages"][0]["content"]
        answer: dict[str, Any] = {"choices": [{"finish_reason": "stop", "message": {"content": "7"}}]}
        if flagged := "bomb" in asked:
            answer = {"error": {"code": 403, "message": "flagged: \ud83d", "metadata": {"reasons": ["violence"]}}}
        elif "first" not in asked:
            self.told.wait(30)
        self.reply(answer, 403 if flagged else 200)


def bought(words: Sequence[str], on_answer: Callable[[], None], store: Store) -> pl.DataFrame:
    """Asks all questions at once, and returns the answers that are stored, even if that ends in an OSError."""
    with http_server(Choosy) as url:
        request = ApiRequest(model="m", base_url=f"{url}/v1")
        service = Service("m", Access(api_key_env=None, retries=0, concurrency=len(words)), None)
        questions = [PuzzleSample(f"p{number}", number, 0, text) for number, text in enumerate(words)]
        attempt, _ = stored_answers(store, request)
        with contextlib.suppress(OSError):
            buy(questions, request, service, attempt, on_answer, known_good=True)
    return stored_answers(store, request)[1].sort("group")


def test_a_prompt_that_a_provider_flags_is_rejected_and_others_are_answered(tmp_path: Path) -> None:
    Choosy.told.set()
    stored = bought(["How is a bomb made?", "Who?"], lambda: None, Store.open(str(tmp_path)))
    assert stored["outcome"].to_list() == ["rejected", "answered"]
    assert stored["detail"][0] == "flagged: ?"


def test_an_error_while_an_answer_is_stored_ends_the_work_after_the_requests_under_way(tmp_path: Path) -> None:
    Choosy.told.clear()

    def fails_at_first() -> None:
        if not Choosy.told.is_set():
            Choosy.told.set()
            raise OSError("no space")

    stored = bought(["the first", "Who?", "Where?"], fails_at_first, Store.open(str(tmp_path)))
    assert len(stored) == 3, "two answers came after the error, and are paid for"


class Scripted(Replies):
    """A provider that answers each request with the next status of a list; 200 without content is a cut reply."""

    statuses: ClassVar[list[int]] = []
    content: ClassVar[bytes] = b""

    def do_POST(self) -> None:
        self.body()
        status = Scripted.statuses.pop(0) if Scripted.statuses else 200
        if status != 200:
            self.reply({"error": {"message": "no"}}, status)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)


def spent_on(
    store: Store, statuses: list[int], content: bytes, *, limit: float | None = None, questions: int = 4
) -> tuple[float, Exception | None, list[str]]:
    """Asks questions that may cost 10 cents each; returns what is booked, the error, and the stored outcomes."""
    Scripted.statuses, Scripted.content = statuses, content
    price = TokenPrice(input=0.0, output=1000.0, source="here", date=datetime.date(2026, 1, 1))
    with http_server(Scripted) as url:
        request = ApiRequest(model="m", base_url=f"{url}/v1", parameters=Parameters(max_tokens=100))
        access = Access(api_key_env=None, retries=2, retry_delay_s=0.001, concurrency=1)
        service = Service("m", access, price, Budget(limit))
        asked = [PuzzleSample(f"p{number}", number, 0, f"question {number}") for number in range(questions)]
        attempt, _ = stored_answers(store, request)
        error = None
        try:
            buy(asked, request, service, attempt, lambda: None, known_good=True)
        except DeerstalkerError as raised:
            error = raised
    return service.budget.spent, error, stored_answers(store, request)[1]["outcome"].to_list()


def test_each_attempt_that_may_be_charged_needs_money(tmp_path: Path) -> None:
    """A reply without JSON may have been charged; three attempts at one question may cost 30 cents."""
    spent, error, stored = spent_on(Store.open(str(tmp_path)), [], b"cut", limit=0.25)
    assert spent == pytest.approx(0.2) and isinstance(error, BudgetReachedError) and not stored


@pytest.mark.parametrize("status", [408, 504, 524])
def test_a_gateway_that_no_longer_waits_may_have_been_charged(tmp_path: Path, status: int) -> None:
    spent, error, stored = spent_on(Store.open(str(tmp_path)), [status] * 12, b"", limit=0.25)
    assert spent == pytest.approx(0.2) and isinstance(error, BudgetReachedError) and not stored


def test_attempts_that_cost_nothing_are_not_booked(tmp_path: Path) -> None:
    spent, error, _ = spent_on(Store.open(str(tmp_path)), [429] * 12, b"")
    assert spent == 0.0 and isinstance(error, TransientError)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 112}, (10, 102)),
        ({"prompt_tokens": 10, "completion_tokens": 102, "total_tokens": 112}, (10, 102)),
        ({"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 0}, (10, 2)),
        ({"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": "many"}, (10, 2)),
        ({"prompt_tokens": 10, "total_tokens": 112}, (10, None)),
    ],
)
def test_tokens_of_reasoning_that_only_the_total_counts_are_paid_for(
    usage: dict[str, Any], tokens: tuple[int, int | None]
) -> None:
    assert usage_tokens(usage) == tokens


@pytest.mark.parametrize("status", [302, 405, 407, 410, 451])
def test_a_refusal_that_is_not_about_the_prompt_is_no_answer(tmp_path: Path, status: int) -> None:
    """A redirect for maintenance or a retired model would make all other questions wrong for good."""
    _, error, stored = spent_on(Store.open(str(tmp_path)), [status] * 4, b"")
    assert isinstance(error, BadInputError) and "correct model or base_url" in str(error) and not stored


def test_a_reply_that_is_nested_too_deeply_is_lost(tmp_path: Path) -> None:
    _, error, _ = spent_on(Store.open(str(tmp_path)), [], b"[" * 200_000, questions=1)
    assert isinstance(error, TransientError)


def test_extra_fields_may_not_replace_parameters() -> None:
    """The budget is bounded by the limit that is set as a parameter."""
    with pytest.raises(ValueError, match="max_tokens: a parameter of its own"):
        Parameters(max_tokens=10, extra_body={"max_tokens": 9999})
