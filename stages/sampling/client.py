"""Requests to an engine and its answers: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from artifacts.errors import BadInputError, DeerstalkerError
from stages.sampling.completions import Completion, Completions, Logprobs, Tokens
from stages.sampling.config import SamplingConfig
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


@dataclass(frozen=True, eq=False)
class SampledCompletion:
    """One sampled completion.

    Args:
        token_ids: The tokens, including the end token if the model produced it, [T].
        logprobs: Log-probability (nats) of each token under the distribution that it was drawn from, [T]. It is 0 for a
            token that a tool wrote.
        finish_reason: "stop" (end token or stop string), "length" (max_tokens or the model's limit) or "early_stop"
            (hopeless by the recipe's rule).
        text: The decoded tokens without special tokens.
        by_tool: For each token whether a tool wrote it, [T]; None if there was no tool.
    """

    token_ids: Tokens
    logprobs: Logprobs
    finish_reason: str
    text: str
    by_tool: npt.NDArray[np.bool_] | None = None

    @property
    def model_tokens(self) -> int:
        """Number of tokens that the model wrote."""
        return len(self.token_ids) - (0 if self.by_tool is None else int(self.by_tool.sum()))


@dataclass(frozen=True)
class GroupSamples:
    """All completions of one prompt, the engine and weights that they come from, and how long they took in seconds."""

    prompt_id: str
    prompt_token_ids: list[int]
    completions: list[SampledCompletion]
    weights_digest: str
    engine_version: str
    engine_seed: int
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


def seed_of(text: str) -> int:
    """Returns the seed of a request that a text describes."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])


def ended_error() -> DeerstalkerError:
    """Returns the error for the use of an engine that was ended."""
    return DeerstalkerError("engine", "ended while it was in use", "", "the same command continues where it stopped")


def request_body(prompt: Prompt, config: SamplingConfig, eos_token_ids: Sequence[int]) -> dict[str, Any]:
    """Returns the body of a request for completions (see `generate_route.py`).

    It sets every sampling parameter; the seed only if the prompt has one.
    """
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
    }
    if prompt.seed is not None:
        sampling["seed"] = prompt.seed
    body: dict[str, Any] = {"token_ids": list(prompt.token_ids), "sampling_params": sampling}
    if stop := [*config.stop, *prompt.stop]:
        body["stop"] = stop
    if config.early_stop:
        body["early_stop"] = config.early_stop.model_dump()
    return body


def checked(answer: Completions, expected: int, source: ReadyEngine) -> Sequence[Completion]:
    """Returns the completions of an answer.

    Args:
        answer: The engine's answer.
        expected: Number of completions that were asked for.
        source: The engine that sent it.

    Raises:
        EngineLostError: The answer is inconsistent, or comes from other weights than those loaded.
        BadInputError: A log-probability is not finite; the engine would compute the same again.
    """
    if len(answer.completions) != expected:
        raise EngineLostError(f"{len(answer.completions)} completions instead of {expected}")
    for item in answer.completions:
        if len(item.logprobs) != len(item.token_ids):
            raise EngineLostError(f"{len(item.token_ids)} tokens came with {len(item.logprobs)} log-probabilities")
    if source.weights_digest and set(answer.weight_versions) - {source.weights_digest}:
        raise EngineLostError(f"sampled by weights {answer.weight_versions} instead of {source.weights_digest}")
    for item in answer.completions:
        if (wrong := item.logprobs[~np.isfinite(item.logprobs)]).size:
            raise BadInputError(
                f"engine {source.endpoint.address}",
                f"a completion with the log-probability {wrong[0]}",
                "finite numbers",
                "compute in bfloat16 or float32 (engine.dtype; elsewhere --dtype), or go on from an earlier checkpoint",
            )
    return answer.completions
