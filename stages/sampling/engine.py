"""One inference engine for the life of a flow run: started on first use, its weights exchanged in place."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from artifacts.errors import BadInputError, DeerstalkerError, TransientError
from stages.models.chat import ChatTokenizer

from . import client, weights
from .client import EngineLostError, GroupSamples, Prompt, Source
from .config import EngineHardware, SamplingConfig
from .endpoint import Endpoint, EndpointError
from .process import EngineProcess

LOAD_TIMEOUT_S = 600.0
SHORT_TIMEOUT_S = 10.0


class Engine:
    """A vLLM server as a child process, or engines that run elsewhere, behind one interface.

    Nothing is started before `ensure`. Use it as a context manager, or call `stop`.

    Args:
        hardware: The profile.
        workdir: Folder for the engine's log.
        api_key: Key of external engines; a child process gets its own random one.
    """

    def __init__(self, hardware: EngineHardware, workdir: Path, *, api_key: str = "") -> None:
        self.hardware, self.workdir = hardware, workdir
        self.log_path = workdir / "engine.log"
        self._external = [Endpoint(url, api_key) for url in hardware.external_urls]
        self._process: EngineProcess | None = None
        self._model_dir: Path | None = None
        self._loaded_digest = ""
        self._check: weights.WeightCheck | None = None
        self._tokenizer: ChatTokenizer | None = None
        self._sources: list[Source] = []
        self._retired = False
        self.start_s = 0.0
        self.starts = 0
        self.reloads = 0
        self.refusals: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether a child process is up."""
        return self._process is not None and self._process.exit_code() is None

    @property
    def process_id(self) -> int:
        """Id of the child process, which is also the session of everything it started; 0 without one."""
        return 0 if self._process is None else self._process.guard_pid

    @property
    def version(self) -> str:
        """The engine's version; empty before `ensure`."""
        return self._sources[0].version if self._sources else ""

    def prestart(self, model_dir: Path, digest: str) -> None:
        """Begin starting the engine without waiting, so that its start overlaps with other work.

        The checkpoint only has to have the shape of the one that `ensure` asks for later; errors show there.
        """
        if not self._external and self._process is None:
            self._process = EngineProcess(self.hardware, model_dir, self.log_path)
            self._model_dir, self._loaded_digest = model_dir, digest

    def ensure(self, model_dir: Path, digest: str) -> None:
        """Serve this checkpoint: start the engine, or load the weights in place, or do nothing if it has them.

        Args:
            model_dir: Checkpoint folder in Hugging Face layout.
            digest: Digest of its weights.

        Raises:
            BadInputError: The folder is not a model that the engine can serve.
            TransientError: The engine could not be started this time.
            DeerstalkerError: It was retired, or was refused memory.
        """
        if self._retired:
            raise DeerstalkerError(
                "engine", "ended while it was in use", "", "the same command goes on where it stopped"
            )
        if self._sources and digest == self._loaded_digest and (self._external or self.running):
            return
        self._sources = []
        self._tokenizer = ChatTokenizer(model_dir)
        if self._external:
            for endpoint in self._external:
                self._load_external(endpoint, model_dir, digest)
            self._serve(self._external, model_dir, digest)
            return
        for last in (False, True):
            process = self._started(model_dir, digest)
            try:
                if digest != self._loaded_digest:
                    if not process.reloads:
                        raise weights.ReloadRefusedError("engines on several CPUs keep a stale output head")
                    with process.killed_where_held():
                        weights.load(process.endpoint, model_dir, timeout_s=LOAD_TIMEOUT_S)
                    if self._check is not None:
                        self._check.after_reload(model_dir)
                    self.reloads += 1
                weights.name_version(process.endpoint, digest, timeout_s=SHORT_TIMEOUT_S)
                self._serve([process.endpoint], model_dir, digest)
                return
            except (weights.ReloadRefusedError, EndpointError, OSError, http.client.HTTPException) as error:
                self.refusals.append(str(error) or repr(error))
                found = f"did not take the weights of {model_dir}: {self.refusals[-1]}\n{process.tail()}\n"
                self.stop()
                if last:
                    raise TransientError(
                        "engine", found, "an engine that serves them", f"log: {self.log_path}"
                    ) from error

    def _started(self, model_dir: Path, digest: str) -> EngineProcess:
        """Return the running process, started with this checkpoint if there is none of its shape."""
        if self._process is not None and (
            not weights.same_shape(self._model_dir, model_dir) or (self._check is not None and not self.running)
        ):
            self.stop()
        if self._process is None:
            self.prestart(model_dir, digest)
        process, served = self._process, self._model_dir
        assert process is not None and served is not None
        if self._check is None:
            try:
                self.start_s = process.wait_ready()
                limit_bytes = int(self.hardware.reload_check_gib * 2**30)
                dtype = self.hardware.on_this_machine().dtype
                self._check = weights.WeightCheck(
                    process.endpoint, served, limit_bytes, dtype, timeout_s=LOAD_TIMEOUT_S
                )
            except DeerstalkerError:
                self._forget()
                raise
            except (weights.ReloadRefusedError, EndpointError, OSError, http.client.HTTPException) as error:
                found = f"gone right after its start: {error}\n{process.tail()}\n"
                self.stop()
                raise TransientError("engine", found, "an engine that stays up", f"log: {self.log_path}") from error
            self.starts += 1
        return process

    def _load_external(self, endpoint: Endpoint, model_dir: Path, digest: str) -> None:
        where = f"engine {endpoint.address}"
        try:
            if weights.keeps_stale_head(endpoint, model_dir, timeout_s=LOAD_TIMEOUT_S):
                found = "a CPU engine of vLLM and a model whose output head shares the embedding"
                remedy = "vLLM 0.32 would go on sampling with the old head after a reload; leave external_urls empty"
                raise BadInputError(where, found, "an engine on a GPU, or one that the flow starts itself", remedy)
            weights.load(endpoint, model_dir, timeout_s=LOAD_TIMEOUT_S)
            weights.name_version(endpoint, digest, timeout_s=SHORT_TIMEOUT_S)
        except weights.ReloadRefusedError as error:
            expected = "vLLM 0.32 with VLLM_SERVER_DEV_MODE=1, --enable-scale-out and a view of the checkpoint folder"
            raise BadInputError(where, f"did not take the weights of {model_dir}: {error}", expected) from error
        except (OSError, EndpointError, http.client.HTTPException) as error:
            raise TransientError(where, f"unreachable: {error!r}", "an engine that answers", "start it") from error

    def sample_groups(
        self, prompts: Sequence[Prompt], config: SamplingConfig, on_group: Callable[[GroupSamples], None]
    ) -> None:
        """Sample a group for each prompt; groups are handed over one by one, as they complete, in this thread.

        A dead or hung engine is restarted and the groups in flight are sampled again; no group is handed over twice.

        Raises:
            BadInputError: The engine refused a request (too long a prompt, say).
            TransientError: The engine was lost more often than `restarts` allows.
            DeerstalkerError: It was refused memory, which another start would repeat.
        """
        if not self._sources or self._tokenizer is None or self._model_dir is None:
            raise BadInputError("engine", "no weights are loaded", "ensure(model_dir, digest) first")
        pending = {prompt.prompt_id: prompt for prompt in prompts}
        if len(pending) != len(prompts):
            raise BadInputError("prompts", "the same prompt_id twice", "unique ids")
        digest, model_dir = self._loaded_digest, self._model_dir

        def deliver(group: GroupSamples) -> None:
            on_group(group)
            del pending[group.prompt_id]

        for attempt in range(self.hardware.restarts + 1):
            if not pending:
                return
            try:
                client.sample_groups(
                    self._sources,
                    list(pending.values()),
                    config,
                    deliver,
                    decode=self._tokenizer.decode,
                    eos_token_ids=self._tokenizer.eos_ids,
                    max_num_seqs=self.hardware.max_num_seqs,
                    stall_timeout_s=self.hardware.stall_timeout_s,
                    exited=self._exited,
                )
                return
            except EngineLostError as error:
                lost, memory = f"lost while {len(pending)} groups were in flight: {error}", None
                if self._process is not None:
                    lost += f". Its last lines:\n{self._process.tail()}\n"
                    memory = self._process.out_of_memory(lost)
                    self._process.kill()
                self._forget()
                if memory is not None and (attempt == self.hardware.restarts or not isinstance(memory, TransientError)):
                    raise memory from error
                if attempt == self.hardware.restarts:
                    raise TransientError("engine", lost, "an engine that stays up", f"see {self.log_path}") from error
                self.ensure(model_dir, digest)

    def stop(self, *, at_once: bool = False) -> None:
        """End the child process, if any, politely or at once; the next `ensure` starts a new one."""
        if self._process is not None:
            (self._process.kill if at_once else self._process.stop)()
        self._forget()

    def retire(self) -> None:
        """End the child process for good; whoever is sampling in another thread fails instead of restarting it."""
        self._retired = True
        if self._process is not None:
            self._process.kill()

    def _exited(self) -> str | None:
        return None if self._process is None else self._process.wrong()

    def _forget(self) -> None:
        self._process = None
        self._check = None
        self._sources = []
        self._loaded_digest = ""

    def _serve(self, endpoints: Sequence[Endpoint], model_dir: Path, digest: str) -> None:
        self._sources = [
            Source(endpoint, digest, str(answer["version"]), self.hardware.seed)
            for endpoint in endpoints
            for answer in [endpoint.call("GET", "/version", timeout_s=SHORT_TIMEOUT_S)]
        ]
        self._model_dir, self._loaded_digest = model_dir, digest
