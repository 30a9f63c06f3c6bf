"""The engines of a flow run: started on first use, their weights exchanged in place, groups spread over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from artifacts.errors import BadInputError
from stages.guarded import STOP_LIMIT_S
from stages.models.chat import ChatTokenizer
from stages.models.tensors import check_weights

from . import access, placement, weights
from .call import Answer, Call, Loss
from .client import EngineLostError, GroupSamples, Prompt, Source
from .config import EngineHardware, SamplingConfig
from .endpoint import Endpoint
from .external import ExternalEngine
from .pool import LOOK_INTERVAL_S, Party, Pool
from .replica import Replica, ended


class Engine:
    """vLLM servers as child processes, engines that run elsewhere, or both, behind one interface.

    Nothing is started before `prestart` or `ensure`. Use it as a context manager, or call `stop`. Sampling begins with
    the first server that has the weights; the others join when they have them.

    Args:
        hardware: The profile.
        workdir: Folder for the engines' logs.

    Raises:
        BadInputError: The key of the engines that run elsewhere is missing.
    """

    def __init__(self, hardware: EngineHardware, workdir: Path) -> None:
        self.hardware, self.workdir = hardware, workdir
        self.log_path = workdir / "engine.log"
        key, name = access.external_key(hardware), hardware.api_key_env or ""
        self._external = [ExternalEngine(Endpoint(url, key, name), hardware.seed) for url in hardware.external_urls]
        self._replicas: list[Replica] = []
        self._past: list[Replica] = []
        self._pool: Pool | None = None
        self._shape: Path | None = None
        self._tokenizer: ChatTokenizer | None = None
        self._retired = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether a child process is up."""
        return any(replica.running for replica in self._replicas)

    @property
    def process_ids(self) -> list[int]:
        """Ids of the child processes, which are also the sessions of everything they started."""
        return [replica.process_id for replica in self._replicas if replica.process_id]

    @property
    def process_id(self) -> int:
        """The first of `process_ids`; 0 without one."""
        return next(iter(self.process_ids), 0)

    @property
    def starts(self) -> int:
        """Child processes that became ready so far."""
        return sum(replica.starts for replica in self._past + self._replicas)

    @property
    def reloads(self) -> int:
        """Exchanges of weights in place, one for each child process that made it."""
        return sum(replica.reloads for replica in self._past + self._replicas)

    @property
    def refusals(self) -> list[str]:
        """Why child processes did not take weights and were started again."""
        return [reason for replica in self._past + self._replicas for reason in replica.refusals]

    @property
    def sources(self) -> list[Source]:
        """What the engines that are ready serve."""
        return [] if self._pool is None else list(self._pool.ready().values())

    @property
    def version(self) -> str:
        """The engine's version; empty before `ensure`."""
        return self.sources[0].version if self.sources else ""

    def prestart(self, model_dir: Path, digest: str) -> None:
        """Begin starting the child processes without waiting, so that their start overlaps with other work.

        The checkpoint only has to have the shape of the one that `ensure` asks for later; errors show there.

        Raises:
            BadInputError: The folder's tensors are not those of its config.json, which vLLM would serve all the same;
                the machine has no room for so many.
        """
        check_weights(model_dir)
        if not weights.same_shape(self._shape, model_dir):
            self.stop()
            places = placement.places(self.hardware, model_dir)
            self._replicas = [Replica(place, self._log_of(number)) for number, place in enumerate(places)]
            self._shape = model_dir
        for replica in self._replicas:
            replica.prestart(model_dir, digest)

    def ensure(self, model_dir: Path, digest: str) -> None:
        """Serve this checkpoint: start the engines, or load the weights in place, or do nothing if they have them.

        Returns as soon as one engine has the weights; `sample_groups` takes the others in when they have them.

        Args:
            model_dir: Checkpoint folder in Hugging Face layout.
            digest: Digest of its weights.

        Raises:
            BadInputError: The folder is not a model that the engine can serve, or the profile does not fit the machine.
            TransientError: No engine could be started this time.
            DeerstalkerError: They were retired, or were refused memory.
        """
        if self._retired:
            raise ended()
        self._tokenizer = ChatTokenizer(model_dir)
        self.prestart(model_dir, digest)
        if self._pool is None:
            self._pool = Pool([*self._external, *self._replicas])
        self._pool.aim(model_dir, digest)
        try:
            self._pool.wait_for_first()
        except BaseException:
            self.stop(at_once=True)
            raise
        self._shape = model_dir

    def sample_groups(
        self, prompts: Sequence[Prompt], config: SamplingConfig, on_group: Callable[[GroupSamples], None]
    ) -> None:
        """Sample a group for each prompt; groups are handed over one by one, as they complete, in this thread.

        The groups of a dead or hung engine are sampled by the others, and by itself once it is restarted; no group is
        handed over twice.

        Raises:
            BadInputError: An engine refused a request (too long a prompt, say).
            TransientError: Engines were lost more often than `restarts` allows.
            DeerstalkerError: One was refused memory, which another start would repeat.
        """
        pool, hardware, tokenizer = self._pool, self.hardware, self._tokenizer
        if pool is None or tokenizer is None:
            raise BadInputError("engine", "no weights are loaded", "ensure(model_dir, digest) first")
        if len({prompt.prompt_id for prompt in prompts}) != len(prompts):
            raise BadInputError("prompts", "the same prompt_id twice", "unique ids")
        call = Call(
            prompts,
            config,
            tokenizer.eos_ids,
            engines=len(pool.servers),
            max_num_seqs=hardware.max_num_seqs,
            stall_timeout_s=hardware.stall_timeout_s,
        )
        with call:
            party = Party(pool, call, hardware.restarts, lambda: self._retired)
            while call.unfinished:
                party.look()
                event = call.next(LOOK_INTERVAL_S)
                if isinstance(event, Loss):
                    party.lose(event.member, event.reason)
                elif isinstance(event, Answer):
                    try:
                        group = event.group(config, tokenizer.decode)
                    except EngineLostError as error:
                        call.put_back(event.prompt)
                        party.lose(event.member, str(error))
                        continue
                    on_group(group)
                    call.unfinished -= 1

    def stop(self, *, at_once: bool = False) -> None:
        """End the child processes, if any, politely or at once; the next `ensure` starts new ones."""
        if self._replicas:
            with ThreadPoolExecutor(len(self._replicas)) as threads:
                list(threads.map(partial(Replica.end, at_once=at_once), self._replicas))
        if self._pool is not None:
            self._pool.settle(STOP_LIMIT_S)
        self._past += self._replicas
        self._replicas, self._pool, self._shape = [], None, None

    def retire(self) -> None:
        """End the child processes for good; whoever is sampling in another thread fails instead of restarting them."""
        self._retired = True
        for replica in self._replicas:
            replica.end(at_once=True)

    def _log_of(self, number: int) -> Path:
        return self.log_path if number == 0 else self.log_path.with_name(f"engine-{number + 1}.log")
