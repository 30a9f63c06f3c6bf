"""Failures of S3 endpoints: translates them into errors and retries those that may pass."""

import logging
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from artifacts.errors import SEE_DOCTOR, DeerstalkerError, DiskFullError, StoreError, TransientError
from artifacts.store.keys import MissingKeyError
from artifacts.store.unreachable import why_unreachable

_log = logging.getLogger("deerstalker.store")

ResultT = TypeVar("ResultT")

_PASSING_CODES = frozenset(
    {
        "SlowDown",
        "RequestTimeout",
        "InternalError",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "RequestLimitExceeded",
        "OperationAborted",
        "ConditionalRequestConflict",
        "BadDigest",
        "IncompleteBody",
        "XAmzContentSHA256Mismatch",
        "XAmzContentChecksumMismatch",
    }
)
_REFUSED_CODES = frozenset(
    {
        "AccessDenied",
        "AccountProblem",
        "AllAccessDisabled",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "InvalidSecurity",
        "NotSignedUp",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "400",  # without a body: the response to a HEAD request with an expired token
        "401",
        "403",
    }
)
_FULL_CODES = frozenset({"InsufficientStorage", "XMinioStorageFull", "QuotaExceeded", "507"})
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 5.0


def error_code(error: BaseException) -> str | None:
    """Returns the S3 error code of an exception of s3fs or botocore; None if the endpoint sent no code."""
    from botocore.exceptions import ClientError

    cause = error if isinstance(error, ClientError) else error.__cause__
    if not isinstance(cause, ClientError):
        return None
    response: dict[str, Any] = dict(cause.response)
    return str(response.get("Error", {}).get("Code") or response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))


def translate(error: BaseException, where: str) -> DeerstalkerError:
    """Returns Deerstalker's error for an exception of s3fs.

    Returns:
        MissingKeyError only for an explicit NoSuchKey, because a bare 404 proves nothing; TransientError for failures
        that may pass; StoreError for all others.
    """
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        CredentialRetrievalError,
        HTTPClientError,
        IncompleteReadError,
        NoCredentialsError,
        PartialCredentialsError,
        ResponseStreamingError,
        SSLError,
    )
    from botocore.exceptions import ConnectionError as UnconnectedError
    from botocore.parsers import ResponseParserError

    cause = error if isinstance(error, ClientError) else error.__cause__
    if isinstance(cause, ClientError):
        return _translate_answer(cause, where)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        remedy = f"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile; {SEE_DOCTOR}"
        return StoreError(where, "no complete credentials", "an access key and its secret", remedy)
    reason = why_unreachable(error)
    if isinstance(error, SSLError):
        return StoreError(where, *(reason or (_line(error), "a trusted certificate", "check the endpoint")))
    passing = (UnconnectedError, CredentialRetrievalError, HTTPClientError, IncompleteReadError, ResponseStreamingError)
    if isinstance(error, (*passing, ResponseParserError)):
        return TransientError(where, reason[0] if reason else _line(error))
    if isinstance(error, BotoCoreError):
        return StoreError(where, _line(error), "", "check the endpoint, region and credentials")
    return TransientError(where, _line(error))


def _translate_answer(cause: Any, where: str) -> DeerstalkerError:
    code = error_code(cause) or "?"
    status = int(cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    message = str(cause.response.get("Error", {}).get("Message") or "")[:200]
    problem = f"{code} (HTTP {status}){': ' + message if message else ''}"
    if code in _FULL_CODES or status == 507:
        remedy = "free space there (`deerstalker prune` lists artifacts that may be removed), then retry"
        return DiskFullError(where, f"no space left: {problem}", "room for the object", f"{remedy}; {SEE_DOCTOR}")
    if code in _PASSING_CODES or status in (408, 425, 429) or (status >= 500 and status != 501):
        return TransientError(where, problem)
    if code == "NoSuchKey":
        return MissingKeyError(where, "no such key")
    if code in ("NoSuchBucket", "InvalidBucketName"):
        return StoreError(
            where, f"no such bucket: {problem}", "an existing bucket", f"check its name or create it; {SEE_DOCTOR}"
        )
    if code == "RequestTimeTooSkewed":
        return StoreError(where, f"refused: {problem}", "a clock that agrees with the server's", "set the clock")
    if code in _REFUSED_CODES or status in (401, 403):
        remedy = f"renew them or check their rights; {SEE_DOCTOR}"
        return StoreError(where, f"refused: {problem}", "accepted credentials", remedy)
    return StoreError(where, problem, "", "check the endpoint, bucket and rights")


def is_transport_error(error: BaseException) -> bool:
    """Returns whether an exception may come from communication with an endpoint; others are programming errors."""
    from aiohttp import ClientError as AiohttpError
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    kinds = (OSError, TimeoutError, EOFError, AiohttpError, BotoCoreError, ClientError, ResponseParserError)
    return isinstance(error, kinds) or isinstance(error.__cause__, ClientError)


def with_retries(
    action: Callable[[], ResultT],
    where: str,
    *,
    retry_for_s: float,
    at_least: int = 2,
    pause: Callable[[float], object] = time.sleep,
) -> ResultT:
    """Runs an action until it succeeds, fails permanently or has no time left, and returns its result.

    Delays double from 0.1 s up to 5 s; each is shortened by a random share of at most a half.

    Args:
        action: One attempt.
        where: Name of the object or store, for error messages.
        retry_for_s: Time after which no new attempt starts, unless fewer than `at_least` were made.
        at_least: Number of attempts before the time counts.
        pause: Called to wait for a delay in seconds.

    Raises:
        TransientError: The last attempt failed too, in a way that may pass.
        DeerstalkerError: The action failed permanently (see `translate`).
    """
    started = time.monotonic()
    attempt = 0
    while True:
        try:
            return action()
        except DeerstalkerError as error:
            failure, cause = error, error
        except Exception as error:
            if not is_transport_error(error):
                raise
            failure, cause = translate(error, where), error
        attempt += 1
        delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
        if not isinstance(failure, TransientError):
            raise failure from (cause if cause is not failure else cause.__cause__)
        if attempt >= at_least and time.monotonic() - started + delay_s > retry_for_s:
            problem = f"{failure.found} (attempt {attempt}, after {time.monotonic() - started:.1f} s)"
            remedy = f"retry when it answers again; {SEE_DOCTOR}"
            raise TransientError(failure.where, problem, failure.expected, remedy) from cause
        _log.info("%s: %s; attempt %d, again in %.1f s", where, failure.found, attempt, delay_s)
        pause(delay_s)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
