"""Draws groups of completions from one or more engines: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

import http.client
import json
import math
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from artifacts.errors import BadInputError

from .config import EarlyStopConfig, SamplingConfig
from .early_stop import hopeless_at
from .endpoint import Endpoint, EndpointError
from .window import Pulse, Window

PROGRESS = ("vllm:iteration_tokens_total_sum", "vllm:generation_tokens_total", "vllm:request_success_total")
PRESSURE = ("vllm:num_preemptions_total", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
POLL_S = 1.0
POLL_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model sees it.

    Args:
        prompt_id: Name that comes back with the group; unique within a call.
        token_ids: The prompt, template included; at least one token.
    """

    prompt_id: str
    token_ids: Sequence[int]


@dataclass(frozen=True)
class Completion:
    """One sampled completion.

    Args:
        token_ids: The tokens, the end token included where the model produced it.
        logprobs: Log-probability of each token under the distribution it was drawn from; same length.
        finish_reason: "stop" (end token or stop string), "length" (max_tokens or the model's limit), "early_stop"
            (hopeless by the recipe's rule) or "abort".
        text: The decoded tokens, special ones left out.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    text: str


@dataclass(frozen=True)
class GroupSamples:
    """All completions of one prompt, with where they came from.

    Args:
        started_s: When the request was sent, seconds since the call began.
        seconds: How long the request took.
    """

    prompt_id: str
    prompt_token_ids: list[int]
    completions: list[Completion]
    weights_digest: str
    engine_version: str
    engine_seed: int
    started_s: float
    seconds: float


@dataclass(frozen=True)
class Source:
    """What an engine serves at the moment, and how its tokens are read.

    Args:
        endpoint: Where it answers.
        weights_digest: Digest of the weights loaded, checked against every answer; empty: not checked.
        version: Version of the engine.
        seed: Seed of its generator.
    """

    endpoint: Endpoint
    weights_digest: str
    version: str
    seed: int


class EngineLostError(Exception):
    """No engine is left to finish the call: it died, hung or answered with a server error."""


def request_body(prompt: Prompt, config: SamplingConfig, eos_token_ids: Sequence[int]) -> dict[str, Any]:
    """Return the body of a generate request: every sampling parameter explicit, no seed (vLLM on CPU cannot)."""
    sampling: dict[str, Any] = {
        "n": config.samples_per_prompt,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "min_p": config.min_p,
        "repetition_penalty": config.repetition_penalty,
        "presence_penalty": config.presence_penalty,
        "frequency_penalty": config.frequency_penalty,
        "max_tokens": config.max_tokens,
        "min_tokens": 0,
        "stop_token_ids": list(eos_token_ids),
        "ignore_eos": False,
        "logprobs": 0,
        "flat_logprobs": True,
        "detokenize": bool(config.stop),
        "skip_special_tokens": True,
    }
    if config.stop:
        sampling["stop"] = list(config.stop)
    if config.early_stop:
        sampling["extra_args"] = {"early_stop": config.early_stop.model_dump()}
    return {"token_ids": list(prompt.token_ids), "sampling_params": sampling}


@dataclass
class Call:
    """State of one `sample_groups` call, shared by its threads."""

    todo: queue.SimpleQueue[Prompt]
    config: SamplingConfig
    eos_token_ids: Sequence[int]
    began_s: float = field(default_factory=time.monotonic)
    done: queue.SimpleQueue[tuple[Source, Prompt, dict[str, Any], float, float] | BaseException] = field(
        default_factory=queue.SimpleQueue
    )
    connections: set[http.client.HTTPConnection] = field(default_factory=set)
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, source: Source, window: Window) -> None:
        """Take prompts off the queue until none is left or the call ended."""
        connection = source.endpoint.connect(None)
        with self.lock:
            self.connections.add(connection)
        try:
            while window.enter():
                try:
                    self.draw(source, connection, self.todo.get_nowait())
                except queue.Empty:
                    return
                finally:
                    window.leave()
        except EndpointError as error:
            if error.status >= 500:
                self.done.put(EngineLostError(str(error)))
            else:
                remedy = "check prompt length plus max_tokens against max_model_len, and the sampling settings"
                self.done.put(BadInputError("sampling request", f"refused: {error}", "a valid request", remedy))
        except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
            self.done.put(EngineLostError(f"connection lost: {error!r}"))
        finally:
            with self.lock:
                self.connections.discard(connection)
            connection.close()

    def draw(self, source: Source, connection: http.client.HTTPConnection, prompt: Prompt) -> None:
        """Sample one group and queue the answer."""
        started = time.monotonic()
        body = request_body(prompt, self.config, self.eos_token_ids)
        data = source.endpoint.exchange(connection, "POST", "/inference/v1/generate", body)
        finished = time.monotonic()
        self.done.put((source, prompt, json.loads(data), started - self.began_s, finished - started))

    def watch(self, source: Source, window: Window, stall_timeout_s: float) -> None:
        """Follow the engine's counters; one that stands still, or does not answer, for the stall time is lost."""
        pulse = Pulse()
        while not self.ended.wait(POLL_S):
            with suppress(OSError, EndpointError, http.client.HTTPException):
                metrics = source.endpoint.metrics(timeout_s=POLL_TIMEOUT_S)
                pulse.beat(tuple(metrics.get(name, 0.0) for name in PROGRESS))
                window.observe(*(metrics.get(name, 0.0) for name in PRESSURE))
            if pulse.still_s > stall_timeout_s and not self.ended.is_set():
                self.done.put(EngineLostError(f"no new token for {pulse.still_s:.0f} s"))
                return

    def end(self, windows: Sequence[Window]) -> None:
        """Wake every thread that waits for an answer."""
        self.ended.set()
        for window in windows:
            window.close()
        with self.lock:
            for connection in self.connections:
                if connection.sock is not None:
                    with suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)


def read_choice(
    choice: dict[str, Any], source: Source, early_stop: EarlyStopConfig | None = None
) -> tuple[list[int], list[float], str]:
    """Return token ids, log-probabilities and finish reason of one choice, checked.

    A hopeless one is cut behind the token that made it so, whether or not the engine ended it there.

    Raises:
        EngineLostError: The answer does not hold together, or comes from other weights than those loaded.
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


def sample_groups(
    sources: Sequence[Source],
    prompts: Sequence[Prompt],
    config: SamplingConfig,
    on_group: Callable[[GroupSamples], None],
    *,
    decode: Callable[[list[int]], str],
    eos_token_ids: Sequence[int],
    max_num_seqs: int,
    stall_timeout_s: float,
    exited: Callable[[], str | None] = lambda: None,
) -> None:
    """Sample a group for every prompt and hand each over as it completes, in the caller's thread.

    Args:
        sources: Engines to spread the prompts over.
        on_group: Receives each finished group, in order of completion.
        decode: Token ids to text.
        eos_token_ids: Tokens that end a completion.
        max_num_seqs: Sequences an engine decodes together; requests in flight are kept a little above that.
        stall_timeout_s: Time without progress before an engine counts as hung.
        exited: Says why the engine's process is gone, or nothing while it lives; asked ten times a second.

    Raises:
        EngineLostError: An engine died or hung; groups not handed over yet are not sampled.
        BadInputError: An engine refused a request.
    """
    call = Call(queue.SimpleQueue(), config, eos_token_ids)
    for prompt in prompts:
        call.todo.put(prompt)
    in_flight = math.ceil(1.25 * max_num_seqs / config.samples_per_prompt) + 1
    workers = min(math.ceil(len(prompts) / len(sources)), in_flight)
    windows = [Window(workers) for _ in sources]
    threads: list[threading.Thread] = []
    for source, window in zip(sources, windows, strict=True):
        threads += [threading.Thread(target=call.run, args=(source, window), daemon=True) for _ in range(workers)]
        threads += [threading.Thread(target=call.watch, args=(source, window, stall_timeout_s), daemon=True)]
    for thread in threads:
        thread.start()
    try:
        for _ in prompts:
            while True:
                try:
                    result = call.done.get(timeout=0.1)
                    break
                except queue.Empty:
                    if (reason := exited()) is not None:
                        raise EngineLostError(reason) from None
            if isinstance(result, BaseException):
                raise result
            source, prompt, answer, started_s, seconds = result
            parts = [read_choice(choice, source, config.early_stop) for choice in answer["choices"]]
            if len(parts) != config.samples_per_prompt:
                raise EngineLostError(f"{len(parts)} completions instead of {config.samples_per_prompt}")
            completions = [Completion(ids, logprobs, why, decode(ids)) for ids, logprobs, why in parts]
            on_group(
                GroupSamples(
                    prompt.prompt_id,
                    list(prompt.token_ids),
                    completions,
                    source.weights_digest,
                    source.version,
                    source.seed,
                    started_s,
                    seconds,
                )
            )
    finally:
        call.end(windows)
        for thread in threads:
            thread.join(POLL_TIMEOUT_S + POLL_S)
