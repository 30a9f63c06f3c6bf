"""Entry of the engine's process on a CPU: vLLM's own API server, with its three processes forked from one import.

vLLM spawns its engine core and its worker on CPUs, each importing torch and vllm again (10 s of CPU time each), only
so that OpenMP reads its thread count from the environment. Here OpenMP starts with one thread, so that forking is
safe, and the worker sets its own count. Run as a script with the server's arguments; never imported by the flow.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

THREADS_VARIABLE = "DEERSTALKER_ENGINE_THREADS"


def fork_instead_of_spawn() -> None:
    """Make the contexts that vLLM asks for fork."""
    original: Callable[[str | None], BaseContext] = multiprocessing.get_context

    def get_context(method: str | None = None) -> BaseContext:
        return original("fork" if method == "spawn" else method)

    multiprocessing.get_context = get_context  # type: ignore[assignment]


def import_once(threads: int) -> None:
    """Import what the core and the worker need, and let the worker set its thread count when it starts."""
    import torch
    import vllm.model_executor.models.registry as registry
    import vllm.v1.engine.core
    import vllm.v1.executor.multiproc_executor
    from vllm.v1.worker.cpu_worker import CPUWorker

    def call(task: Callable[[], Any]) -> Any:
        return task()

    registry._run_in_subprocess = call  # a model's class is looked at here, not in a fourth process
    set_num_threads = torch.set_num_threads
    init_device = CPUWorker.init_device

    def init_device_with_threads(worker: CPUWorker) -> None:
        set_num_threads(threads)
        init_device(worker)

    CPUWorker.init_device = init_device_with_threads


if __name__ == "__main__":
    fork_instead_of_spawn()
    import_once(int(os.environ[THREADS_VARIABLE]))
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
