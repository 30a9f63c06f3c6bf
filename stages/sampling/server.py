"""Entry of the engine's process on a CPU: vLLM's own API server, imported once and with two faults of 0.32 made good.

Start: vLLM spawns its engine core on CPUs, which imports torch and vllm all over (10 s of CPU time), only so that
OpenMP reads its thread count from the environment. Here OpenMP starts with one thread, so that forking is safe, and
the worker sets its own count.

Reload: the output head keeps a copy of its weights packed for the CPU's kernels. When the head shares the embedding's
tensor, an in-place reload renews that tensor but not the packed copy, and the engine goes on sampling with the old
head, silently. Here the copy is packed anew after every reload.

Run as a script with the server's arguments; never imported by the flow.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
from collections.abc import Callable
from typing import Any

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

    def call(task: Callable[[], Any]) -> Any:
        return task()

    set_num_threads = torch.set_num_threads
    init_device: Any = CPUWorker.init_device
    reload_weights: Any = CPUModelRunner.reload_weights

    def init_device_with_threads(worker: Any) -> None:
        set_num_threads(threads)
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


if __name__ == "__main__":
    gc.set_threshold(200_000, 50, 100)  # thousands of small objects a step: the defaults cost 8% of the CPU time
    fork_instead_of_spawn()
    import_once(int(os.environ[THREADS_VARIABLE]))
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
