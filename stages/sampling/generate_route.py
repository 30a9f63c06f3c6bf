"""The server's route for whole completions: token ids in, arrays of tokens and log-probabilities out.

It is a middleware, which vLLM takes by its argument `--middleware`, so that vLLM's server needs no change. Requests
reach the engine as those of vLLM's own routes do (`AsyncLLM.generate`), which splits a request into its samples, checks
the length of the prompt, and ends the request in the core if the client goes away.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import orjson
from starlette.types import ASGIApp, Receive, Scope, Send
from vllm.exceptions import VLLMClientError
from vllm.inputs import tokens_input
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, SamplingParams

from stages.sampling.completions import ADAPTER_PATH, EARLY_STOP, GENERATE_PATH, Completion, Completions, to_bytes
from stages.sampling.core_scheduler import WHOLE
from stages.sampling.counts import COUNTS_PATH, COUNTS_VARIABLE, Counts

_NEW_WEIGHTS_PATH = "/update_weight_version"


@dataclass(frozen=True)
class _Reply:
    status: int
    content: bytes
    kind: bytes = b"application/json"

    @classmethod
    def error(cls, status: int, message: str) -> _Reply:
        return cls(status, orjson.dumps({"error": message}))


class GenerateRoute:
    """ASGI middleware that answers `GENERATE_PATH`, `ADAPTER_PATH` and `COUNTS_PATH`, and passes every other path on.

    The body of a request is `{"token_ids": [...], "sampling_params": {...}, "stop": [...], "early_stop": {...}}`, the
    last two optional. The answer is that of `completions.to_bytes`. All requests sample with the adapter that was
    loaded last: `{"name": digest, "folder": path}` loads one, `{}` returns to the base.

    Args:
        app: The application that answers the other paths.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._loads = 0
        self._adapters = 0
        self._adapter: LoRARequest | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or passes it on."""
        path = scope["path"] if scope["type"] == "http" else ""
        if path == COUNTS_PATH:
            counts = Counts.of_cores(os.environ[COUNTS_VARIABLE]).answer()
            await _send(send, _Reply(200, orjson.dumps(counts)))
        elif path == GENERATE_PATH and scope["method"] == "POST":
            await self._generate(scope["app"].state.engine_client, receive, send)
        elif path == ADAPTER_PATH and scope["method"] == "POST":
            reply = await self._load_adapter(scope["app"].state.engine_client, await _body(receive) or b"")
            await _send(send, reply)
        else:
            self._loads += path == _NEW_WEIGHTS_PATH
            await self._app(scope, receive, send)

    async def _generate(self, engine: Any, receive: Receive, send: Send) -> None:
        """Answers a request for completions; ends it if the client goes away."""
        body = await _body(receive)
        if body is None:
            return
        work = asyncio.ensure_future(self._reply(engine, body))
        gone = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await _send(send, work.result())
        finally:
            work.cancel()
            gone.cancel()

    async def _load_adapter(self, engine: Any, body: bytes) -> _Reply:
        """Loads an adapter beside the base, which stays loaded; the engine forgets the one before."""
        self._adapter = None
        try:
            if request := orjson.loads(body):
                self._adapters += 1  # under an id that was used before, vLLM would keep the old adapter
                adapter = LoRARequest(request["name"], self._adapters, request["folder"])
                await engine.add_lora(adapter)
                self._adapter = adapter
        except Exception as error:
            return _Reply.error(500, f"{type(error).__name__}: {error}")
        return _Reply(200, b"{}")

    async def _reply(self, engine: Any, body: bytes) -> _Reply:
        loads = self._loads
        try:
            request = orjson.loads(body)
            rules = {name: request[name] for name in ("stop", "early_stop") if request.get(name)}
            parameters = SamplingParams(
                **request["sampling_params"], logprobs=0, detokenize=False, extra_args={WHOLE: rules},
                output_kind=RequestOutputKind.FINAL_ONLY,
            )  # fmt: skip
            prompt = tokens_input(request["token_ids"])
        except (ValueError, TypeError, KeyError, VLLMClientError) as error:
            return _Reply.error(400, str(error) or repr(error))
        try:
            (output,) = [
                item async for item in engine.generate(prompt, parameters, uuid4().hex, lora_request=self._adapter)
            ]
        except VLLMClientError as error:
            return _Reply.error(400, str(error))
        except Exception as error:
            return _Reply.error(500, f"{type(error).__name__}: {error}")
        if loads != self._loads:
            return _Reply.error(500, "weights were loaded while the request was sampled")
        try:
            completions = [_completion(item) for item in output.outputs]
        except ValueError as error:
            return _Reply.error(500, str(error))
        versions = {span.version for item in output.outputs for span in item.weight_versions or ()}
        return _Reply(200, to_bytes(Completions(completions, sorted(versions))), b"application/octet-stream")


def _completion(output: Any) -> Completion:
    """Returns a completion of vLLM's output.

    Raises:
        ValueError: The request did not end by itself.
    """
    reason, stop = output.finish_reason, output.stop_reason
    if reason not in ("stop", "length"):
        raise ValueError(f"a completion ended by {reason}")
    tokens = np.asarray(output.token_ids, np.int32)
    # See core_scheduler.py on the name of the field. It is None for a completion without tokens.
    logprobs = np.empty(0, np.float32) if output.routed_experts is None else output.routed_experts
    by_string = stop if isinstance(stop, str) and stop != EARLY_STOP else None
    return Completion(tokens, logprobs, "early_stop" if stop == EARLY_STOP else reason, by_string)


async def _body(receive: Receive) -> bytes | None:
    """Returns the body of a request; None if the client went away."""
    body = bytearray()
    while (message := await receive())["type"] == "http.request":
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)
    return None


async def _send(send: Send, reply: _Reply) -> None:
    headers: Mapping[bytes, bytes] = {b"content-type": reply.kind, b"content-length": str(len(reply.content)).encode()}
    await send({"type": "http.response.start", "status": reply.status, "headers": list(headers.items())})
    await send({"type": "http.response.body", "body": reply.content})
