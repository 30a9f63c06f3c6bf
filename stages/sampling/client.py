"""Requests to an engine and its answers: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from artifacts.errors import DeerstalkerError
from stages.sampling.config import EarlyStopConfig, SamplingConfig
from stages.sampling.early_stop import hopeless_at
from stages.sampling.endpoint import Endpoint


@dataclass(frozen=True)
class Prompt:
    """A tokenized prompt.

    Args:
        prompt_id: Name of the prompt and of its group; unique within a call.
        token_ids: The prompt, template included; at least one token.
        samples: Number of completions, if it differs from `SamplingConfig.samples_per_prompt`.
        max_tokens: Largest number of tokens of a completion, if it differs from `SamplingConfig.max_tokens`.
        seed: Seed of the request; None for the engine's generator.
        stop: Strings that end a completion, besides `SamplingConfig.stop`.
        stop_token_ids: Tokens that end a completion, besides those of the model and `SamplingConfig.stop_token_ids`.
    """

    prompt_id: str
    token_ids: Sequence[int]
    samples: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Turn:
    """The tokens of one request.

    Args:
        token_ids: The tokens, including the end token or the last token of a stop string.
        logprobs: Log-probability (nats) of each token; same length.
        finish_reason: See `SampledCompletion`.
        called: Whether a string of `Prompt.stop` ended it.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    called: bool


@dataclass(frozen=True)
class SampledCompletion:
    """One sampled completion.

    Args:
        token_ids: The tokens, including the end token if the model produced it.
        logprobs: Log-probability (nats) of each token under the distribution that it was drawn from; same length. It
            is 0 for a token that a tool wrote.
        finish_reason: "stop" (end token or stop string), "length" (max_tokens or the model's limit), "early_stop"
            (hopeless by the recipe's rule) or "abort".
        text: The decoded tokens without special tokens.
        by_tool: For each token whether a tool wrote it; None if there was no tool.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    text: str
    by_tool: list[bool] | None = None

    @property
    def own_tokens(self) -> int:
        """Number of tokens that the model wrote."""
        return len(self.token_ids) - sum(self.by_tool or ())


@dataclass(frozen=True)
class GroupSamples:
    """All completions of one prompt, and the engine and weights that they come from.

    Args:
        started_s: Time of the request, seconds since the call began.
        seconds: Duration of the request.
    """

    prompt_id: str
    prompt_token_ids: list[int]
    completions: list[SampledCompletion]
    weights_digest: str
    engine_version: str
    engine_seed: int
    started_s: float
    seconds: float


@dataclass(frozen=True)
class ReadyEngine:
    """An engine that is ready, with the weights that it serves.

    Args:
        endpoint: Address of its HTTP interface.
        weights_digest: Digest of the loaded weights, checked against every answer; empty to skip the check.
        version: Version of the engine.
        seed: Seed of its random generator.
    """

    endpoint: Endpoint
    weights_digest: str
    version: str
    seed: int


class EngineLostError(Exception):
    """An engine died, hung, or answered with a server error or an inconsistent answer."""


def ended_error() -> DeerstalkerError:
    """Returns the error for the use of an engine that was ended."""
    return DeerstalkerError("engine", "ended while it was in use", "", "the same command continues where it stopped")


def request_body(prompt: Prompt, config: SamplingConfig, eos_token_ids: Sequence[int]) -> dict[str, Any]:
    """Returns the body of a generate request. It sets every sampling parameter; the seed only if the prompt has one."""
    stop = [*config.stop, *prompt.stop]
    sampling: dict[str, Any] = {
        "n": prompt.samples or config.samples_per_prompt,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "min_p": config.min_p,
        "repetition_penalty": config.repetition_penalty,
        "presence_penalty": config.presence_penalty,
        "frequency_penalty": config.frequency_penalty,
        "max_tokens": prompt.max_tokens or config.max_tokens,
        "min_tokens": 0,
        "stop_token_ids": [*eos_token_ids, *config.stop_token_ids, *prompt.stop_token_ids],
        "ignore_eos": False,
        "logprobs": 0,
        "flat_logprobs": True,
        "detokenize": bool(stop),
        "skip_special_tokens": False,  # so that a stop string finds them; the text itself is not read
    }
    if stop:
        sampling["stop"] = stop
    if prompt.seed is not None:
        sampling["seed"] = prompt.seed
    if config.early_stop:
        sampling["extra_args"] = {"early_stop": config.early_stop.model_dump()}
    return {"token_ids": list(prompt.token_ids), "sampling_params": sampling}


def read_choice(
    choice: dict[str, Any], source: ReadyEngine, early_stop: EarlyStopConfig | None = None
) -> tuple[list[int], list[float], str]:
    """Returns the checked token ids, log-probabilities and finish reason of one choice.

    A hopeless completion is cut after the token that made it so, whether or not the engine ended it there.

    Args:
        choice: A choice of vLLM's answer, decoded.
        source: The engine that sent it.
        early_stop: The rule for hopeless completions; None to keep all.

    Raises:
        EngineLostError: The answer is inconsistent, or comes from other weights than those loaded.
    """
    token_ids: list[int] = choice["token_ids"] or []
    content: list[dict[str, Any]] = (choice["logprobs"] or {}).get("content") or []
    logprobs = [float(entry["logprob"]) for entry in content]
    if len(logprobs) != len(token_ids) or not all(map(math.isfinite, logprobs)):
        raise EngineLostError(f"{len(token_ids)} tokens came with {len(logprobs)} log-probabilities")
    if source.weights_digest:
        versions = {span["version"] for span in choice.get("weight_versions") or []}
        if versions - {source.weights_digest}:
            raise EngineLostError(f"sampled by weights {sorted(versions)} instead of {source.weights_digest}")
    last = hopeless_at(logprobs, early_stop.alpha, early_stop.threshold) if early_stop else None
    if last is not None:
        return token_ids[: last + 1], logprobs[: last + 1], "early_stop"
    return token_ids, logprobs, choice["finish_reason"]
