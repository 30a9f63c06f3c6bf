"""A client of an OpenAI-compatible API: asks one question, with retries, and runs checks that are free of charge."""

import asyncio
import json
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, cast

import openai

from artifacts.documents.conversation import messages_of
from artifacts.documents.suggestions import did_you_mean
from artifacts.errors import BadInputError, DeerstalkerError
from artifacts.local.input_files import LARGEST_DOCUMENT, PLAIN_OR_GZIP, UnfitInputError, check_coding, check_size
from stages.answering.reply import Reply, objects_in, reply_of
from stages.answering.settings import Access, ApiRequest

_TRANSIENT = (408, 409, 425, 429)
_TIMEOUTS = (408, 504, 524)
"""Statuses with which a gateway ends its wait for a model that goes on, and may be charged."""
_BAD_REQUEST = 400
_OF_PROMPT = ("flagged_input", "reasons")
"""What `error.metadata` has in OpenRouter's 403 for a prompt that moderation flags; it accepts other prompts."""
_NO_MONEY = ("insufficient_quota", "billing_hard_limit_reached")
"""Codes with which a provider answers 429 although no wait helps."""
_LONGEST_DELAY_S = 60.0
_LONGEST_RETRY_AFTER_S = 3600.0
_LONGEST_WORDS = 400
"""Largest number of characters of a provider's message that an error quotes."""
_CHECK_TIMEOUT_S = 30.0
OF_REQUEST = (400, 413, 422)
"""HTTP statuses of refusals that may depend on the prompt; others tell of key, account, model or server."""
_OF_TRANSPORT = ("content-encoding", "content-length", "transfer-encoding")
"""Headers that describe the transfer of a response, which are wrong for its decoded content."""


class RefusedError(Exception):
    """The provider refused a request, and would refuse it again.

    Args:
        status: HTTP status.
        words: The provider's own words, without the key.
    """

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"HTTP {status}: {words}")
        self.status, self.words = status, words


class LostError(Exception):
    """A request had no reply.

    Args:
        attempts: Number of attempts.
        words: Description of the last failure.
    """

    def __init__(self, attempts: int, words: str) -> None:
        super().__init__(f"{attempts} attempts; the last: {words}")
        self.attempts, self.words = attempts, words


class _PassingError(Exception):
    """An attempt failed, and another may succeed.

    Args:
        words: Description of the failure.
        delay_s: Delay that the provider asks for; None if it asks for none.
        charged: Whether the provider may charge for the attempt.
    """

    def __init__(self, words: str, delay_s: float | None = None, *, charged: bool = False) -> None:
        super().__init__(words)
        self.words, self.delay_s, self.charged = words, delay_s, charged


def key_of(access: Access, where: str) -> str:
    """Returns the key of an API; empty if it requires none.

    Raises:
        BadInputError: The environment variable is not set, or its value is not allowed in a header.
    """
    name = access.api_key_env
    if name is None:
        return ""
    key = os.environ.get(name, "")
    if not key:
        problem = f"the environment variable {name} is {'empty' if name in os.environ else 'not set'}"
        raise BadInputError(where, problem, "the key of its API", f"set {name} where this process is started")
    if not key.isascii() or not key.isprintable() or " " in key:
        problem = f"the environment variable {name} holds a space, a line break or a character outside ASCII"
        raise BadInputError(where, problem, "a key, in printable ASCII characters", f"set {name} again")
    return key


class _BoundedClient(openai.DefaultAsyncHttpxClient):
    """The HTTP client of openai, which reads no response beyond `LARGEST_DOCUMENT`."""

    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Sends a request and returns the response with its content; `stream` is ignored.

        Raises:
            UnfitInputError: The response is larger, or compressed in another way than by gzip.
        """
        answer = await super().send(request, stream=True, **options)
        content = bytearray()
        try:
            check_coding(answer.headers.get("content-encoding", ""))
            async for part in answer.aiter_bytes():
                content += part
                check_size(len(content), LARGEST_DOCUMENT)
        finally:
            await answer.aclose()
        headers = [item for item in answer.headers.multi_items() if item[0] not in _OF_TRANSPORT]
        return type(answer)(answer.status_code, headers=headers, content=bytes(content), request=answer.request)


class ApiClient:
    """A client of one API; use it as an asynchronous context manager, in one event loop.

    Args:
        request: Address, model and parameters.
        access: Key, timeout and retries.
        where: Start of error messages, such as `model 'o1'`.

    Raises:
        BadInputError: The key is missing.
    """

    def __init__(self, request: ApiRequest, access: Access, where: str) -> None:
        self._request, self._access, self._where = request, access, where
        self._key = key_of(access, where)
        # The retries of this module are counted and stored, and they assume that a truncated reply may have been
        # charged.
        self._client = openai.AsyncOpenAI(
            api_key=self._key or "none",
            base_url=request.base_url,
            timeout=access.timeout_s,
            max_retries=0,
            default_headers=PLAIN_OR_GZIP,
            http_client=_BoundedClient(follow_redirects=False),
        )

    async def __aenter__(self) -> "ApiClient":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()

    async def check(self) -> None:
        """Checks at no cost that the address is an API that accepts the key and has the model.

        If an API lists no models, only the first question shows whether it has the model.

        Raises:
            BadInputError: The address is not that of an API, the key is refused, or the list of models lacks the model.
        """
        base_url = self._request.base_url
        expected = "an OpenAI-compatible API; its address usually ends in /v1"
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):  # the client's timeout is for each part of a response
                raw = await self._client.with_options(timeout=_CHECK_TIMEOUT_S).models.with_raw_response.list()
            content = raw.http_response.content
        except openai.APIStatusError as error:
            if error.status_code in (401, 403):
                raise self._refused_key(error) from error
            if not isinstance(error.body, Mapping):
                problem = f"{base_url} is not an API: GET /models answers HTTP {error.status_code}, not in JSON"
                raise BadInputError(self._where, problem, expected, "correct base_url") from error
            return
        except UnfitInputError as error:
            problem = f"{base_url} is not an API: GET /models answers {error.strerror}"
            raise BadInputError(self._where, problem, expected, "correct base_url") from error
        except TimeoutError as error:
            problem = f"{base_url} is not an API: GET /models has no whole answer within {_CHECK_TIMEOUT_S:g} s"
            raise BadInputError(self._where, problem, expected, "correct base_url") from error
        except openai.APIConnectionError as error:
            problem = f"{base_url} cannot be reached ({self._masked(str(error.__cause__ or error))})"
            raise BadInputError(self._where, problem, expected, "correct base_url, or start the server") from error
        try:
            listed = json.loads(content)
        except (ValueError, RecursionError) as error:
            problem = f"{base_url} is not an API: GET /models answers {content[:40]!r}"
            raise BadInputError(self._where, problem, expected, "correct base_url") from error
        entries = objects_in(listed.get("data") if isinstance(listed, dict) else listed)
        names = [str(item["id"]) for item in entries if isinstance(item.get("id"), str)]
        if names and not _lists(names, self._request.model):
            hint = did_you_mean(self._request.model, names)
            problem = f"{base_url} has no model {self._request.model!r}{hint}"
            raise BadInputError(self._where, problem, f"one of its {len(names)} models", "correct model")

    async def ask(self, prompt: str, sample: int, token: str, lost: Callable[[bool], Awaitable[bool]]) -> Reply:
        """Asks one question, retries after transient failures, and returns the reply.

        Args:
            prompt: The message of the user.
            sample: Index of the sample.
            token: Value of the header `Idempotency-Key`, the same for every attempt at this sample of this prompt. A
                provider that supports it charges once for a repeated question.
            lost: Called after an attempt without a reply that the provider may charge for, with whether retries are
                left; returns whether the next one may begin.

        Raises:
            RefusedError: The provider refuses the request.
            LostError: There was no reply after all retries, or after those that `lost` allowed.
        """
        for attempt in range(self._access.retries + 1):
            started = time.perf_counter()
            try:
                reply = await self._asked(prompt, sample, token)
            except _PassingError as error:
                goes_on = attempt < self._access.retries
                if error.charged:
                    goes_on = await lost(goes_on)
                if not goes_on:
                    raise LostError(attempt + 1, error.words) from error
                await asyncio.sleep(self._delay_s(attempt, error.delay_s))
            else:
                return reply_of(reply, latency_s=time.perf_counter() - started, attempts=attempt + 1)
        raise AssertionError("the loop returns or raises")

    async def _asked(self, prompt: str, sample: int, token: str) -> dict[str, Any]:
        """Returns the body of a reply.

        Raises:
            RefusedError: The provider refuses the request.
            _PassingError: There is no reply, and another attempt may have one.
        """
        try:
            async with asyncio.timeout(self._access.timeout_s):
                raw = await self._client.chat.completions.with_raw_response.create(
                    model=self._request.model,
                    messages=cast("Any", messages_of(prompt)),
                    extra_body=self._request.parameters.body(sample),
                    extra_headers={"Idempotency-Key": token},
                )
            content = raw.http_response.content
        except (openai.APITimeoutError, TimeoutError) as error:
            words = f"no reply within {self._access.timeout_s:g} s"
            raise _PassingError(words, charged=True) from error
        except UnfitInputError as error:
            raise _PassingError(f"a reply of {error.strerror}", charged=True) from error
        except openai.APIConnectionError as error:
            raise _PassingError(self._masked(f"connection: {error.__cause__ or error}"), charged=True) from error
        except openai.APIStatusError as error:
            words = self._words(error.body, error.response.text)
            raise _failure(error.status_code, words, error.code, error.response.headers, error.body) from error
        try:
            body = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _PassingError(
                f"a reply that is not JSON, {self._masked(repr(content[-40:]))}", charged=True
            ) from error
        if not isinstance(body, dict):
            raise _PassingError(f"a reply that is not an object, {self._masked(repr(body))[:80]}", charged=True)
        reply = cast("dict[str, Any]", body)
        if not objects_in(reply.get("choices")):
            fault = reply.get("error")
            code = cast("dict[str, Any]", fault).get("code") if isinstance(fault, Mapping) else None
            status = code if isinstance(code, int) and 400 <= code < 600 else 502
            raise _failure(status, self._words(reply, "a reply without choices"), None, {}, fault)
        return reply

    def _delay_s(self, attempt: int, wanted_s: float | None) -> float:
        """Returns the delay before the next attempt: the provider's plus jitter, or else exponential backoff."""
        if wanted_s is not None:
            return min(wanted_s, _LONGEST_RETRY_AFTER_S) + random.uniform(0.0, self._access.retry_delay_s)
        return min(_LONGEST_DELAY_S, self._access.retry_delay_s * 2.0**attempt) * random.uniform(0.5, 1.0)

    def _refused_key(self, error: openai.APIStatusError) -> BadInputError:
        words = self._words(error.body, error.response.text)
        if not self._key:
            remedy = "set api_key_env to the name of the environment variable that holds the key"
            return BadInputError(self._where, f"HTTP {error.status_code}: it requires a key: {words}", "", remedy)
        name = self._access.api_key_env
        problem = f"HTTP {error.status_code}: it refuses the key of the environment variable {name}: {words}"
        return BadInputError(self._where, problem, "a valid key", f"set {name} again")

    def _words(self, body: object, text: str) -> str:
        """Returns the provider's message about an error, on one line."""
        for table in (body, cast("dict[str, Any]", body).get("error") if isinstance(body, Mapping) else None):
            if isinstance(table, Mapping):
                message = cast("dict[str, Any]", table).get("message")
                if isinstance(message, str) and message:
                    text = message
            elif isinstance(table, str) and table:
                text = table
        return self._masked(" ".join(text.split()))[:_LONGEST_WORDS]

    def _masked(self, text: str) -> str:
        """Returns a text that can be stored, without the key, because some servers repeat a key that they refuse."""
        readable = text.encode(errors="replace").decode()  # some servers cut their messages inside an emoji
        return readable.replace(self._key, "***") if self._key else readable


def _lists(names: Sequence[str], model: str) -> bool:
    """Returns whether a list has a model; lists may omit a router's `:variant` and add the prefix `models/`."""
    plain = {name.removeprefix("models/") for name in names}
    return bool({model, model.removeprefix("models/"), model.partition(":")[0]} & plain)


def _is_of_prompt(fault: object) -> bool:
    """Returns whether an error describes a prompt that was flagged; openai passes the object `error` of the body."""
    metadata = cast("dict[str, Any]", fault).get("metadata") if isinstance(fault, Mapping) else None
    return isinstance(metadata, Mapping) and any(metadata.get(name) for name in _OF_PROMPT)


def _failure(status: int, words: str, code: str | None, headers: Mapping[str, str], fault: object = None) -> Exception:
    if _is_of_prompt(fault):
        return RefusedError(_BAD_REQUEST, words)
    if code in _NO_MONEY or (status not in _TRANSIENT and status < 500):
        return RefusedError(status, words)
    return _PassingError(f"HTTP {status}: {words}", _retry_after_s(headers), charged=status in _TIMEOUTS)


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Returns the delay in a reply's Retry-After, which is a number of seconds or a date; None if there is none."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        delay_s = float(value)
    except ValueError:
        try:
            delay_s = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, delay_s) if math.isfinite(delay_s) else None


def stop_of(error: RefusedError, access: Access, where: str) -> DeerstalkerError:
    """Returns the error for a refusal that ends the work with a model; it quotes the provider's own words."""
    match error.status:
        case 401 | 403:
            problem, remedy = f"it refuses the key or the model: {error}", f"check {access.api_key_env or 'the key'}"
        case 402 | 429:
            problem, remedy = (
                f"its account has no credit left: {error}",
                "the same command continues with what is missing",
            )
        case status if status in OF_REQUEST:
            problem, remedy = f"it refuses the request: {error}", "correct the parameters"
        case _:
            problem, remedy = f"no such model or address: {error}", "correct model or base_url"
    return BadInputError(where, problem, "", remedy)
