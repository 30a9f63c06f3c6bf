"""One engine as a child process: its start, verified reloads of weights, and its end."""

from __future__ import annotations

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from artifacts.errors import DeerstalkerError, TransientError
from stages.models.adapters import adapter_of, base_of, has_adapter
from stages.sampling.client import ReadyEngine, ended_error
from stages.sampling.endpoint import EndpointError
from stages.sampling.replicas import weight_exchange
from stages.sampling.replicas.placement import ReplicaPlace
from stages.sampling.replicas.process import EngineProcess
from stages.sampling.replicas.weight_exchange import SHORT_TIMEOUT_S

_ENGINE_FAILURES = (weight_exchange.ReloadRefusedError, EndpointError, OSError, http.client.HTTPException)


class Replica:
    """A vLLM server as a child process.

    One thread at a time may call `serve`. Any other thread may end the replica meanwhile; `serve` then fails.

    Args:
        place: Its share of the machine.
        log_path: File for its output.
    """

    is_child = True

    def __init__(self, place: ReplicaPlace, log_path: Path) -> None:
        self.place, self.log_path = place, log_path
        self._process: EngineProcess | None = None
        self._model_dir: Path | None = None
        self._loaded_digest = ""
        self._loaded_base: Path | None = None
        """Folder of the full weights that the process has; a checkpoint with an adapter shares it with others."""
        self._adapted = False
        self._check: weight_exchange.WeightCheck | None = None
        self._ready = self._asleep = self._ended = False
        self._starting = threading.Lock()
        self.starts = 0
        self.reloads = 0
        self.refusals: list[str] = []

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.exit_code() is None

    @property
    def process_id(self) -> int:
        """Id of the process, which is also the session id of every process that it started; 0 if there is none."""
        return 0 if self._process is None else self._process.guard_pid

    def prestart(self, model_dir: Path, digest: str) -> None:
        """Begins to start the process, if there is none, without waiting.

        Args:
            model_dir: Checkpoint folder in Hugging Face layout.
            digest: Digest of its weights; empty if the folder has only config and tokenizer.

        Raises:
            DeerstalkerError: The replica was ended.
        """
        with self._starting:
            if self._ended:
                raise ended_error()
            if self._process is None:
                base = base_of(model_dir)
                hardware = self.place.hardware.with_adapter(adapter_of(model_dir))
                self._process = EngineProcess(hardware, base, self.log_path, self.place.devices, weights=bool(digest))
                self._model_dir, self._loaded_base = model_dir, base if digest else None
                self._loaded_digest, self._adapted = "" if has_adapter(model_dir) else digest, False

    def serve(self, model_dir: Path, digest: str) -> ReadyEngine:
        """Makes the process serve this checkpoint: starts it, reloads its weights, or does nothing if it has them.

        Args:
            model_dir: Checkpoint folder in Hugging Face layout.
            digest: Digest of its weights.

        Raises:
            BadInputError: The engine cannot serve the folder's model.
            TransientError: The engine could not be started, and another try may succeed.
            DeerstalkerError: The replica was ended, or memory was refused to it.
        """
        for last in (False, True):
            process = self._started(model_dir, digest)
            try:
                if digest != self._loaded_digest:
                    if base_of(model_dir) != self._loaded_base:
                        self._reload(process, base_of(model_dir))
                    self._adapt(process, model_dir, digest)
                weight_exchange.set_weight_version(process.endpoint, digest)
                version = process.endpoint.call("GET", "/version", timeout_s=SHORT_TIMEOUT_S)["version"]
                self._model_dir, self._loaded_digest = model_dir, digest
                return ReadyEngine(process.endpoint, digest, str(version), self.place.hardware.seed)
            except _ENGINE_FAILURES as error:
                self.refusals.append(str(error) or repr(error))
                refusal, tail = f"it refused the weights of {model_dir}: {self.refusals[-1]}", process.tail()
                self._drop(process)
                if last:
                    raise TransientError(
                        "engine", refusal, "an engine that serves them", f"log: {self.log_path}", tail
                    ) from error
        raise AssertionError("the second try returns or raises")

    def sleep(self) -> None:
        """Makes the process give up its GPU memory until the next `serve`; ends it if it cannot, or is not ready."""
        process = self._process
        if process is None or self._asleep:
            return
        try:
            if not self._ready:
                raise weight_exchange.ReloadRefusedError("it was still starting when the trainer needed its memory")
            weight_exchange.sleep(process.endpoint)
            self._asleep, self._loaded_digest, self._loaded_base = True, "", None
        except _ENGINE_FAILURES as error:
            self.refusals.append(f"it did not sleep: {error!r}")
            self._drop(process)

    def failure(self) -> str | None:
        """Returns the reason why the process cannot answer any more; None while it can."""
        process = self._process
        return "the process has ended" if process is None else process.failure()

    def lost(self, reason: str) -> DeerstalkerError:
        """Kills the process and returns the error that describes its loss.

        Returns:
            A TransientError, or another error if a new start would fail in the same way.
        """
        process = self._process
        if process is None:
            return TransientError("engine", reason, "an engine that stays up", f"see {self.log_path}")
        tail = process.tail()
        memory = process.out_of_memory(reason)
        process.kill()
        self._forget()
        return memory or TransientError("engine", reason, "an engine that stays up", f"see {self.log_path}", tail)

    def end(self, *, at_once: bool = False) -> None:
        """Ends the process, gracefully or at once, and starts no other."""
        self._ended = True
        with self._starting:
            process = self._process
        if process is not None:
            (process.kill if at_once else process.stop)()

    def _adapt(self, process: EngineProcess, model_dir: Path, digest: str) -> None:
        """Loads the adapter of a checkpoint, or drops that of the one before."""
        folder, hardware = model_dir if has_adapter(model_dir) else None, process.hardware
        if folder is None and not self._adapted:
            return
        self._adapted = folder is not None
        with process.killed_if_stopped():
            weight_exchange.load_adapter(
                process.endpoint, folder, digest, hardware.on_this_machine().dtype,
                checked=hardware.tensor_parallel_size == 1,
            )  # fmt: skip
        self.reloads += 1

    def _reload(self, process: EngineProcess, model_dir: Path) -> None:
        if not process.can_reload:
            raise weight_exchange.ReloadRefusedError("a tensor parallel engine on CPUs keeps a stale output head")
        if self._check is None:
            with process.killed_if_stopped():
                weight_exchange.expect_weights(process.endpoint)
                self._check = self._weight_check(process, model_dir, weightless=True)
            self._loaded_base = model_dir
            return
        with process.killed_if_stopped(), ThreadPoolExecutor(1) as threads:
            expected = threads.submit(self._check.expected, model_dir)  # hashing takes as long as loading
            weight_exchange.load(process.endpoint, model_dir, asleep=self._asleep)
        self._asleep = False
        self._check.after_reload(expected.result())
        self._loaded_base = model_dir
        self.reloads += 1

    def _weight_check(
        self, process: EngineProcess, model_dir: Path, *, weightless: bool = False
    ) -> weight_exchange.WeightCheck:
        hardware = self.place.hardware
        limit_bytes, dtype = int(hardware.reload_check_gib * 2**30), hardware.on_this_machine().dtype
        return weight_exchange.WeightCheck(process.endpoint, model_dir, limit_bytes, dtype, weightless=weightless)

    def _started(self, model_dir: Path, digest: str) -> EngineProcess:
        """Returns the process once it is ready; starts one if none runs or the running one serves another shape.

        Raises:
            BadInputError, TransientError, DeerstalkerError: As `serve`.
        """
        old = self._process
        if old is not None and (
            not weight_exchange.same_shape(self._model_dir, model_dir)
            or (self._ready and not self.running)
            or not old.hardware.takes(adapter_of(model_dir))
        ):
            self._drop(old)
        self.prestart(model_dir, digest)
        process, served = self._process, self._model_dir
        assert process is not None and served is not None
        if not self._ready:
            try:
                process.wait_ready()
                if process.weights:
                    self._check = self._weight_check(process, base_of(served))
            except DeerstalkerError:
                self._drop(process)  # it may run: a file of its checkpoint is damaged
                raise
            except _ENGINE_FAILURES as error:
                ending, tail = f"ended right after its start: {error}", process.tail()
                self._drop(process)
                raise TransientError(
                    "engine", ending, "an engine that stays up", f"log: {self.log_path}", tail
                ) from error
            self._ready = True
            self.starts += 1
        return process

    def _drop(self, process: EngineProcess) -> None:
        process.stop()
        self._forget()

    def _forget(self) -> None:
        self._process = None
        self._check = None
        self._loaded_digest, self._loaded_base, self._adapted = "", None, False
        self._ready = self._asleep = False
