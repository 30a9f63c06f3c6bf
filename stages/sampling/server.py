"""Entry of the engine's process: vLLM's own API server with an early stop and, on CPUs, three faults of 0.32 mended.

Key: every request must carry the key of the environment variable VLLM_API_KEY, whatever its path (see access.py).
Without such a key the server does not start.

Early stop: a request whose `extra_args` ask for it ends when its running mean log-probability falls too low. It takes
the way of vLLM's stop strings, which are looked for in the server's process and end the request in the engine core;
so the sampled distribution is not touched, and it works with every model runner. A custom logits processor would have
to exist twice (for both model runners), keep the last step's logits, and end a request by forcing a token on it.

Start: vLLM spawns its engine core on CPUs, which imports torch and vllm all over (10 s of CPU time), only so that
OpenMP reads its thread count from the environment. Here OpenMP starts with one thread, so that forking is safe, and
the worker sets its own count.

Reload: the output head keeps a copy of its weights packed for the CPU's kernels. When the head shares the embedding's
tensor, an in-place reload renews that tensor but not the packed copy, and the engine goes on sampling with the old
head, silently. Here the copy is packed anew after every reload.

Run as a script with the server's arguments, or as `python -m stages.sampling.server` where others start engines; never
imported by the flow.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from artifacts.errors import BadInputError
from stages.sampling.access import server_arguments
from stages.sampling.early_stop import next_average

THREADS_VARIABLE = "DEERSTALKER_ENGINE_THREADS"


def fork_instead_of_spawn() -> None:
    """Make the multiprocessing contexts that vLLM asks for fork."""
    original: Any = multiprocessing.get_context

    def get_context(method: str | None = None) -> Any:
        return original("fork" if method == "spawn" else method)

    setattr(multiprocessing, "get_context", get_context)  # noqa: B010


def import_once(threads: int) -> None:
    """Import what the engine core needs, and let the worker set its thread count and keep its head fresh."""
    import torch
    import vllm.v1.engine.core  # pyright: ignore[reportUnusedImport]
    import vllm.v1.executor.uniproc_executor  # noqa: F401 # pyright: ignore[reportUnusedImport]
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.models import registry
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.cpu_worker import CPUWorker

    from stages.processes import end_with_parent

    def call(task: Callable[[], Any]) -> Any:
        return task()

    set_num_threads = torch.set_num_threads
    init_device: Any = CPUWorker.init_device
    reload_weights: Any = CPUModelRunner.reload_weights

    def init_device_with_threads(worker: Any) -> None:
        end_with_parent()  # vLLM's core waits for ever for a server that was killed together with its guard
        set_num_threads(threads)
        # Linux kills a process by SIGILL that uses AMX before it asks for it. vLLM's bf16 attention does so without
        # asking; other kernels ask, but a small model and a short prompt use none of them before.
        torch.cpu._init_amx()  # pyright: ignore[reportPrivateUsage]
        init_device(worker)

    def reload_weights_and_head(runner: Any, **keywords: Any) -> None:
        reload_weights(runner, **keywords)
        for module in runner.get_model().modules():
            if hasattr(module, "cpu_linear") and module.weight.numel() > 0:
                dispatch_cpu_unquantized_gemm(module, remove_weight=False)

    # A model's class is looked at in this process, not in one more that imports everything.
    setattr(registry, "_run_in_subprocess", call)  # noqa: B010
    setattr(CPUWorker, "init_device", init_device_with_threads)  # noqa: B010
    setattr(CPUModelRunner, "reload_weights", reload_weights_and_head)  # noqa: B010


class Watch:
    """Follows the log-probabilities of one request; its `update` takes the place of its detokenizer's.

    Args:
        update: The detokenizer's own: new token ids and whether the core ended the request, to the stop string found.
        alpha: Share of the old mean in the new one.
        threshold: Mean below which the request ends, nats.
    """

    def __init__(self, update: Callable[[list[int], bool], str | None], alpha: float, threshold: float) -> None:
        self._update, self._alpha, self._threshold = update, alpha, threshold
        self._average, self._hopeless = 0.0, False

    def observe(self, logprobs: Sequence[float]) -> None:
        """Take note of newly sampled tokens' log-probabilities."""
        for logprob in logprobs:
            self._average = next_average(self._average, logprob, self._alpha)
            self._hopeless = self._hopeless or self._average < self._threshold

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """Say what stops the request, if anything does."""
        return self._update(new_token_ids, stop_terminated) or ("early_stop" if self._hopeless else None)


def end_hopeless_requests() -> None:
    """Let requests with `early_stop` in their extra arguments end by it."""
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState

    from_new_request: Any = RequestState.from_new_request
    process_outputs: Any = OutputProcessor.process_outputs
    watches: WeakValueDictionary[str, Watch] = WeakValueDictionary()  # a request's state holds its watch

    def watched_request(**keywords: Any) -> Any:
        state = from_new_request(**keywords)
        parameters = keywords["request"].sampling_params
        if parameters is not None and (rule := (parameters.extra_args or {}).get("early_stop")):
            watches[state.request_id] = watch = Watch(state.detokenizer.update, rule["alpha"], rule["threshold"])
            state.detokenizer.update = watch.update
        return state

    def process_watched(self: Any, outputs: Any, *arguments: Any, **keywords: Any) -> Any:
        for output in outputs if watches else ():
            watch = watches.get(output.request_id)
            if watch is not None and output.new_logprobs is not None:
                watch.observe(output.new_logprobs.logprobs[:, 0].tolist())  # column 0 is the sampled token
        return process_outputs(self, outputs, *arguments, **keywords)

    setattr(RequestState, "from_new_request", watched_request)  # noqa: B010
    setattr(OutputProcessor, "process_outputs", process_watched)  # noqa: B010


def answer_cheaply() -> None:
    """Send each sampled token's log-probability once, encode with orjson, and read environment variables once.

    vLLM sends it twice, the second time as the first of the most likely tokens, and makes five objects of it. Together
    these took a fifth of the server's CPU time.
    """
    import orjson
    from fastapi.responses import JSONResponse
    from vllm import envs
    from vllm.entrypoints.scale_out.token_in_token_out import api_router, serving
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateLogProbs, GenerateLogProbsContent
    from vllm.logprobs import FlatLogprobs
    from vllm.v1.engine.async_llm import AsyncLLM

    init: Any = AsyncLLM.__init__
    clamped: Any = serving._clamp_logprob  # pyright: ignore[reportPrivateUsage]
    all_logprobs: Any = serving.ServingTokens._create_tokens_logprobs  # pyright: ignore[reportPrivateUsage]

    def sampled_logprobs(
        self: Any, token_ids: Sequence[int], top_logprobs: Any, num_output_top_logprobs: int | None = None
    ) -> Any:
        # With `logprobs` 0 there is one entry a position: the sampled token's.
        one_each = num_output_top_logprobs == 0 and isinstance(top_logprobs, FlatLogprobs)
        if not one_each or list(top_logprobs.token_ids) != list(token_ids):
            return all_logprobs(self, token_ids, top_logprobs, num_output_top_logprobs)
        content = [
            GenerateLogProbsContent.model_construct(token_id=token, logprob=clamped(logprob))
            for token, logprob in zip(token_ids, top_logprobs.logprobs, strict=True)
        ]
        return GenerateLogProbs.model_construct(content=content)

    class QuickResponse(JSONResponse):
        def render(self, content: Any) -> bytes:
            return orjson.dumps(content)

    def init_and_keep_variables(self: Any, *arguments: Any, **keywords: Any) -> None:
        init(self, *arguments, **keywords)
        envs.enable_envs_cache()  # vLLM does it in its core only; the server looks several up for each token

    setattr(serving.ServingTokens, "_create_tokens_logprobs", sampled_logprobs)  # noqa: B010
    setattr(api_router, "JSONResponse", QuickResponse)  # noqa: B010
    setattr(AsyncLLM, "__init__", init_and_keep_variables)  # noqa: B010


if __name__ == "__main__":
    try:
        sys.argv[1:] = server_arguments(sys.argv[1:], os.environ)
    except BadInputError as error:
        sys.exit(f"error: {error}")
    if THREADS_VARIABLE in os.environ:
        gc.set_threshold(200_000, 50, 100)  # thousands of small objects a step: the defaults cost 8% of the CPU time
        fork_instead_of_spawn()
        import_once(int(os.environ[THREADS_VARIABLE]))
    end_hopeless_requests()
    answer_cheaply()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
