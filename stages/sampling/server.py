"""Entry point of the engine's process: vLLM's API server with a key on every path, early stop and fixes for CPUs.

Key: every request must carry the key in the environment variable VLLM_API_KEY, whatever its path (see engine_key.py).
Without the variable the server does not start.

Early stop: a request with `early_stop` in its `extra_args` ends when its running mean log-probability falls below the
threshold. It ends as a request with a stop string does: the server's process detects the end and tells the engine core
to end the request. The sampled distribution does not change, and every model runner supports it. A custom logits
processor would be needed twice (for both model runners), would have to keep the last step's logits, and could end a
request only by forcing a token.

Start: on CPUs vLLM spawns its engine core, which imports torch and vllm once more (10 s of CPU time), only to let
OpenMP read its thread count from the environment. Here OpenMP starts with one thread, so that forking is safe, and the
worker sets its own thread count.

Reload: the output head keeps a copy of its weights that is packed for the CPU's kernels. If the head shares the
embedding's tensor, a reload in place replaces the tensor but not the packed copy, and the engine continues with the old
head without an error. Here the copy is packed again after every reload.

Seeds: a prompt that does not fit into one step is read in several, and each samples a token that is thrown away. vLLM
0.32 then winds the request's random generator back, which generators of CPUs refuse, so its core dies. Here the state
of the generator is kept over such a step.

Run this file as a script with the server's arguments, or as `python -m stages.sampling.server` to start an engine
elsewhere. The flow never imports it.
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
from stages.sampling.early_stop import next_average
from stages.sampling.engine_key import server_arguments
from stages.sampling.replicas.threads import THREADS_VARIABLE


def fork_instead_of_spawn() -> None:
    """Makes the multiprocessing contexts of vLLM fork instead of spawn."""
    original: Any = multiprocessing.get_context

    def get_context(method: str | None = None) -> Any:
        return original("fork" if method == "spawn" else method)

    setattr(multiprocessing, "get_context", get_context)  # noqa: B010


def import_once(threads: int) -> None:
    """Imports the modules of the engine core before it is forked, and patches the worker for CPUs.

    The patched worker sets its own thread count, ends with its parent, requests AMX, packs the output head again after
    a reload and keeps random generators over steps that read a part of a prompt.

    Args:
        threads: OpenMP threads of the worker.
    """
    import torch
    import vllm.v1.engine.core  # pyright: ignore[reportUnusedImport]
    import vllm.v1.executor.uniproc_executor  # noqa: F401 # pyright: ignore[reportUnusedImport]
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.models import registry
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.cpu_worker import CPUWorker

    from stages.processes.process_pool import end_with_parent

    def call(task: Callable[[], Any]) -> Any:
        return task()

    set_num_threads = torch.set_num_threads
    init_device: Any = CPUWorker.init_device
    reload_weights: Any = CPUModelRunner.reload_weights

    def init_device_with_threads(worker: Any) -> None:
        end_with_parent()  # otherwise vLLM's core waits forever after its server and the guard were killed
        set_num_threads(threads)
        # Linux kills a process by SIGILL if it uses AMX without a request to the kernel. vLLM's bf16 attention makes no
        # request. Other kernels make one, but with a small model and a short prompt none of them runs first.
        torch.cpu._init_amx()  # pyright: ignore[reportPrivateUsage]
        init_device(worker)

    def reload_weights_and_head(runner: Any, **keywords: Any) -> None:
        reload_weights(runner, **keywords)
        for module in runner.get_model().modules():
            if hasattr(module, "cpu_linear") and module.weight.numel() > 0:
                dispatch_cpu_unquantized_gemm(module, remove_weight=False)

    sample: Any = CPUModelRunner._sample  # pyright: ignore[reportPrivateUsage]
    bookkeeping: Any = CPUModelRunner._bookkeeping_sync  # pyright: ignore[reportPrivateUsage]

    def unfinished(runner: Any) -> dict[int, Any]:
        """Returns the generators, by row, of the requests whose prompt is not read completely."""
        generators: dict[int, Any] = runner.input_batch.generators
        if not generators:
            return {}
        rows = runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0].tolist()
        return {row: generators[row] for row in rows if row in generators}

    def sample_and_restore(runner: Any, *arguments: Any, **keywords: Any) -> Any:
        states = [(generator, generator.get_state()) for generator in unfinished(runner).values()]
        output = sample(runner, *arguments, **keywords)
        for generator, state in states:
            generator.set_state(state)
        return output

    def bookkeeping_without_rewinding(runner: Any, *arguments: Any, **keywords: Any) -> Any:
        restored, generators = unfinished(runner), runner.input_batch.generators
        for row in restored:
            del generators[row]
        try:
            return bookkeeping(runner, *arguments, **keywords)
        finally:
            generators.update(restored)

    # Inspect a model's class in this process instead of another one that imports everything.
    setattr(registry, "_run_in_subprocess", call)  # noqa: B010
    setattr(CPUWorker, "init_device", init_device_with_threads)  # noqa: B010
    setattr(CPUModelRunner, "reload_weights", reload_weights_and_head)  # noqa: B010
    setattr(CPUModelRunner, "_sample", sample_and_restore)  # noqa: B010
    setattr(CPUModelRunner, "_bookkeeping_sync", bookkeeping_without_rewinding)  # noqa: B010


class EarlyStopWatch:
    """Follows the log-probabilities of one request. Its `update` replaces that of the request's detokenizer.

    Args:
        update: The detokenizer's `update`: takes new token ids and whether the core ended the request, and returns
            the stop string in the text, if any.
        alpha: Share of the old mean in the new one.
        threshold: Mean below which the request ends, nats.
    """

    def __init__(self, update: Callable[[list[int], bool], str | None], alpha: float, threshold: float) -> None:
        self._update, self._alpha, self._threshold = update, alpha, threshold
        self._average, self._hopeless = 0.0, False

    def observe(self, logprobs: Sequence[float]) -> None:
        """Records the log-probabilities of newly sampled tokens."""
        for logprob in logprobs:
            self._average = next_average(self._average, logprob, self._alpha)
            self._hopeless = self._hopeless or self._average < self._threshold

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
        """Returns the stop string or rule that ends the request; None if it goes on."""
        return self._update(new_token_ids, stop_terminated) or ("early_stop" if self._hopeless else None)


def end_hopeless_requests() -> None:
    """Makes vLLM end requests by the `early_stop` rule in their extra arguments."""
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState

    from_new_request: Any = RequestState.from_new_request
    process_outputs: Any = OutputProcessor.process_outputs
    # The request's state keeps its watch alive.
    watches: WeakValueDictionary[str, EarlyStopWatch] = WeakValueDictionary()

    def watched_request(**keywords: Any) -> Any:
        state = from_new_request(**keywords)
        parameters = keywords["request"].sampling_params
        if parameters is not None and (rule := (parameters.extra_args or {}).get("early_stop")):
            watches[state.request_id] = watch = EarlyStopWatch(
                state.detokenizer.update, rule["alpha"], rule["threshold"]
            )
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
    """Makes vLLM send each log-probability once, encode answers with orjson and read environment variables once.

    vLLM sends a sampled token's log-probability twice, the second time as the first of the most likely tokens, and
    makes five objects of it. The three changes save a fifth of the server's CPU time.
    """
    import orjson
    from fastapi.responses import JSONResponse
    from vllm import envs
    from vllm.entrypoints.scale_out.token_in_token_out import api_router, serving
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateLogProbs, GenerateLogProbsContent
    from vllm.logprobs import FlatLogprobs
    from vllm.v1.engine.async_llm import AsyncLLM

    init: Any = AsyncLLM.__init__
    clamp: Any = serving._clamp_logprob  # pyright: ignore[reportPrivateUsage]
    all_logprobs: Any = serving.ServingTokens._create_tokens_logprobs  # pyright: ignore[reportPrivateUsage]

    def sampled_logprobs(
        self: Any, token_ids: Sequence[int], top_logprobs: Any, num_output_top_logprobs: int | None = None
    ) -> Any:
        # With `logprobs` 0 each position has one entry: that of the sampled token.
        only_sampled = num_output_top_logprobs == 0 and isinstance(top_logprobs, FlatLogprobs)
        if not only_sampled or list(top_logprobs.token_ids) != list(token_ids):
            return all_logprobs(self, token_ids, top_logprobs, num_output_top_logprobs)
        content = [
            GenerateLogProbsContent.model_construct(token_id=token, logprob=clamp(logprob))
            for token, logprob in zip(token_ids, top_logprobs.logprobs, strict=True)
        ]
        return GenerateLogProbs.model_construct(content=content)

    class QuickResponse(JSONResponse):
        def render(self, content: Any) -> bytes:
            return orjson.dumps(content)

    def init_and_keep_variables(self: Any, *arguments: Any, **keywords: Any) -> None:
        init(self, *arguments, **keywords)
        envs.enable_envs_cache()  # vLLM caches them in its core only; its server looks several up for each token

    setattr(serving.ServingTokens, "_create_tokens_logprobs", sampled_logprobs)  # noqa: B010
    setattr(api_router, "JSONResponse", QuickResponse)  # noqa: B010
    setattr(AsyncLLM, "__init__", init_and_keep_variables)  # noqa: B010


if __name__ == "__main__":
    try:
        sys.argv[1:] = server_arguments(sys.argv[1:], os.environ)
    except BadInputError as error:
        sys.exit(f"error: {error}")
    gc.disable()  # collecting garbage during the imports would take a tenth of their time
    if THREADS_VARIABLE in os.environ:
        # A step makes thousands of small objects: the default thresholds cost 8% of the CPU time.
        gc.set_threshold(200_000, 50, 100)
        fork_instead_of_spawn()
        import_once(int(os.environ[THREADS_VARIABLE]))
    end_hopeless_requests()
    answer_cheaply()
    gc.freeze()
    gc.enable()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
