"""Entry point of every engine: vLLM's API server with a route, a scheduler and a key of ours, and fixes for CPUs.

Run this file as a script with the arguments of vLLM's server, or as `python -m stages.sampling.server` to start an
engine elsewhere. The flow never imports it. What it adds by arguments that vLLM offers:

* `--middleware`: the key on every path (`engine_key.py`), and the route for whole completions (`generate_route.py`);
* `--scheduler-cls`: requests are kept in the core until they have ended (`core_scheduler.py`);
* `--logprobs-mode`: log-probabilities are those of the distribution that was sampled from, not those before it;
* `--disable-log-stats`: vLLM's statistics would send a message in every step. The scheduler counts (`counts.py`).

Key: every request must carry the key in the environment variable VLLM_API_KEY, whatever its path. Without the variable
the server does not start.

The rest of this file works around vLLM 0.32 on CPUs. Remove each fix once its test passes without it:

* Start: vLLM spawns its engine core, which imports torch and vllm once more (10 s of CPU time), only to let OpenMP read
  its thread count from the environment. Here OpenMP starts with one thread, so that forking is safe, and the worker
  sets its own thread count. (`VLLM_WORKER_MULTIPROC_METHOD=fork` does not reach the core on a CPU.)
* Reload: the output head keeps a copy of its weights that is packed for the CPU's kernels. If the head shares the
  embedding's tensor, a reload in place replaces the tensor but not the packed copy, and the engine continues with the
  old head without an error. Here the copy is packed again after every reload. Test:
  `test_weights_loaded_in_place_are_...`.
* Seeds: a prompt that does not fit into one step is read in several, and each samples a token that is thrown away. vLLM
  then winds the request's random generator back, which generators of CPUs refuse, so its core dies. Here the state of
  the generator is kept over such a step. Test: `tests/contract/test_turns.py`, whose steps are short.
* Norms and blocks of the cache: see `replicas/cpu_kernels.py`.
* AMX: vLLM's bf16 attention uses it without a request to the kernel, which ends the process by SIGILL.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable
from typing import Any

from artifacts.errors import BadInputError
from stages.sampling.counts import COUNTS_VARIABLE, make_shared_memory
from stages.sampling.engine_key import check_server
from stages.sampling.replicas.threads import THREADS_VARIABLE

OUR_ARGUMENTS = (
    "--middleware", "stages.sampling.generate_route.GenerateRoute",
    "--middleware", "stages.sampling.engine_key.DemandKey",  # the last one is asked first
    "--scheduler-cls", "stages.sampling.core_scheduler.scheduler",
    "--logprobs-mode", "processed_logprobs",
    "--disable-log-stats",
)  # fmt: skip


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
        # Other kernels request AMX, but with a small model and a short prompt none of them runs first.
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
    add_adapters_by_products()
    setattr(CPUModelRunner, "_sample", sample_and_restore)  # noqa: B010
    setattr(CPUModelRunner, "_bookkeeping_sync", bookkeeping_without_rewinding)  # noqa: B010


def add_adapters_by_products() -> None:
    """Makes the worker for CPUs compute an adapter by two matrix products: all requests have the same one.

    vLLM 0.32 copies A and B for each token instead, because each token may have another adapter.
    """
    from torch.nn.functional import linear
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    def add_lora_linear(
        wrapper: Any, y: Any, x: Any, lora_a: Any, lora_b: Any, scale: float, sizes: Any, **unused: Any
    ) -> None:
        if not wrapper.no_lora:
            parts = y.view(-1, y.shape[-1]).split(sizes, dim=1)
            for part, a, b in zip(parts, lora_a, lora_b, strict=True):
                part.add_(linear(linear(x, a[0, 0]), b[0, 0]), alpha=scale)

    setattr(PunicaWrapperCPU, "add_lora_linear", add_lora_linear)  # noqa: B010


if __name__ == "__main__":
    try:
        check_server(sys.argv[1:], os.environ)
    except BadInputError as error:
        sys.exit(f"error: {error}")
    sys.argv += OUR_ARGUMENTS
    gc.disable()  # collecting garbage during the imports would take a tenth of their time
    if THREADS_VARIABLE in os.environ:
        # A step makes thousands of small objects: the default thresholds cost 8% of the CPU time.
        gc.set_threshold(200_000, 50, 100)
        fork_instead_of_spawn()
        import_once(int(os.environ[THREADS_VARIABLE]))
        from stages.sampling.replicas.cpu_kernels import faster_arguments

        sys.argv[1:1] = faster_arguments()  # before the owner's arguments, which win
    gc.freeze()
    gc.enable()
    os.environ[COUNTS_VARIABLE] = make_shared_memory()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
