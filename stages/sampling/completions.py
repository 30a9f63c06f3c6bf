"""Completions as arrays, and as the bytes in which an engine's server sends those of one request.

Eight bytes a token: one int32 and one float32. vLLM's own answer has two JSON objects a token, which cost the server
and the flow more CPU time than a small model takes to compute the token.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

ADAPTER_PATH = "/sampling/adapter"
"""Path to which a server takes requests to load a LoRA adapter."""
GENERATE_PATH = "/sampling/generate"
"""Path to which a server takes requests for completions."""
EARLY_STOP = "\0early_stop"
"""Stop reason of a request that ended by the rule of `early_stop.py`. No stop string holds a NUL character."""

Tokens = npt.NDArray[np.int32]
Logprobs = npt.NDArray[np.float32]

_LENGTH = struct.Struct("<I")
_TOKEN_TYPE, _LOGPROB_TYPE = np.dtype("<i4"), np.dtype("<f4")


@dataclass(frozen=True, eq=False)
class Completion:
    """One completion of a request.

    Attributes:
        token_ids: The tokens, [T].
        logprobs: Log-probability of each token, nats, [T].
        finish_reason: "stop", "length" or "early_stop".
        stop_reason: The stop string that ended it; None if none did.
    """

    token_ids: Tokens
    logprobs: Logprobs
    finish_reason: str
    stop_reason: str | None = None


@dataclass(frozen=True)
class Completions:
    """All completions of one request.

    Attributes:
        weight_versions: Versions of the weights that sampled them, each once.
    """

    completions: Sequence[Completion]
    weight_versions: Sequence[str]


def to_bytes(answer: Completions) -> bytes:
    """Returns an answer as bytes: the length of a JSON header, the header, all tokens, all log-probabilities."""
    header: dict[str, Any] = {
        "weight_versions": answer.weight_versions,
        "completions": [
            {"tokens": len(item.token_ids), "logprobs": len(item.logprobs), "finish_reason": item.finish_reason,
             "stop_reason": item.stop_reason}
            for item in answer.completions
        ],
    }  # fmt: skip
    encoded = orjson.dumps(header)
    return b"".join(
        [
            _LENGTH.pack(len(encoded)),
            encoded,
            *(item.token_ids.astype(_TOKEN_TYPE, copy=False).tobytes() for item in answer.completions),
            *(item.logprobs.astype(_LOGPROB_TYPE, copy=False).tobytes() for item in answer.completions),
        ]
    )


def from_bytes(content: bytes) -> Completions:
    """Returns the answer that `to_bytes` wrote. The arrays are views of `content`.

    Raises:
        ValueError: The bytes are not such an answer.
    """
    try:
        (length,) = _LENGTH.unpack_from(content)
        offset = _LENGTH.size + length
        header = orjson.loads(memoryview(content)[_LENGTH.size : offset])
        rows, versions = header["completions"], header["weight_versions"]
        tokens = np.frombuffer(content, _TOKEN_TYPE, sum(row["tokens"] for row in rows), offset)
        logprobs = np.frombuffer(content, _LOGPROB_TYPE, sum(row["logprobs"] for row in rows), offset + tokens.nbytes)
        if offset + tokens.nbytes + logprobs.nbytes != len(content):
            raise ValueError("its length is not that of its header")
        completions: list[Completion] = []
        for row in rows:
            reason, stop = row["finish_reason"], row["stop_reason"]
            completions.append(Completion(tokens[: row["tokens"]], logprobs[: row["logprobs"]], reason, stop))
            tokens, logprobs = tokens[row["tokens"] :], logprobs[row["logprobs"] :]
    except (struct.error, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"no completions: {error!r}") from error
    return Completions(completions, versions)
