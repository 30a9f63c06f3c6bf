"""One call for groups of completions, distributed over engines that may join and leave while it runs."""

from __future__ import annotations

import http.client
import math
import queue
import resource
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from artifacts.errors import BadInputError
from stages.processes.awake import LastProgress
from stages.sampling import engine_key
from stages.sampling.client import GroupSamples, Prompt, ReadyEngine, SampledCompletion, checked, request_body
from stages.sampling.completions import GENERATE_PATH, Completion, Completions, from_bytes
from stages.sampling.config import SamplingConfig
from stages.sampling.counts import COUNTS_PATH, Counts
from stages.sampling.endpoint import EndpointError
from stages.sampling.replicas.window import Window

POLL_S = 1.0
POLL_TIMEOUT_S = 2.0
REUSED_WITHIN_S = 2.0
"""A connection that was idle for longer is opened again, because vLLM closes one after 5 s."""
_OTHER_FILES = 256
"""Files and connections that this process may open beside those of a call."""
_ENOUGH_FILES = 65_536


@dataclass(eq=False)
class Member:
    """An engine that takes part in a call.

    Attributes:
        source: The engine, with the weights that it serves.
        window: Limit of its requests in flight.
        in_flight: Prompts that it is sampling, by id.
        connections: Open connections to it.
        counts: Its counters as they were read last; None before.
        has_left: Set when it has left the call.
    """

    source: ReadyEngine
    window: Window
    in_flight: dict[str, Prompt] = field(default_factory=dict)
    connections: set[http.client.HTTPConnection] = field(default_factory=set)
    counts: Counts | None = None
    has_left: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Answer:
    """The completions of one request, as the engine sent them.

    Attributes:
        started_s: Time of the request, seconds since the call began.
        seconds: Duration of the request.
    """

    member: Member
    prompt: Prompt
    sampled: Completions
    started_s: float
    seconds: float

    def group(self, config: SamplingConfig, decode: Callable[[list[int]], str]) -> GroupSamples:
        """Returns the checked group.

        Args:
            config: The settings that the group was sampled with.
            decode: Converts token ids to text.

        Raises:
            EngineLostError: The answer is inconsistent, or comes from other weights than those loaded.
            BadInputError: A log-probability is not finite.
        """
        source = self.member.source
        return GroupSamples(
            self.prompt.prompt_id,
            list(self.prompt.token_ids),
            [
                SampledCompletion(item.token_ids, item.logprobs, item.finish_reason, decode(item.token_ids.tolist()))
                for item in self.completions(config)
            ],
            source.weights_digest,
            source.version,
            source.seed,
            self.seconds,
        )

    def completions(self, config: SamplingConfig) -> Sequence[Completion]:
        """Returns the checked completions of the request; argument and errors are those of `group`."""
        return checked(self.sampled, self.prompt.samples or config.samples_per_prompt, self.member.source)


@dataclass(frozen=True)
class EngineLoss:
    """An engine that can no longer be used, with the reason."""

    member: Member
    reason: str


class Call:
    """A queue of prompts, and the engines that take prompts from it.

    Use it as a context manager. At the end of the block every connection is closed, so that the engines abort their
    requests.

    Args:
        prompts: Prompts with unique ids. The caller decrements `unfinished` for each answer that it accepts, and
            increments it for each prompt that it adds.
        config: Sampling settings.
        eos_token_ids: Tokens that end a completion.
        engines: Expected number of engines; each gets at most an equal share of the prompts at a time.
        max_num_seqs: Number of sequences that an engine decodes together. The requests in flight hold about a quarter
            more, so that sequences are always waiting.
        stall_timeout_s: Time without progress after which an engine counts as hung, seconds.
        turns: Whether completions have several turns.

    Raises:
        BadInputError: This process may not open so many connections.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        config: SamplingConfig,
        eos_token_ids: Sequence[int],
        *,
        engines: int,
        max_num_seqs: int,
        stall_timeout_s: float,
        turns: bool = False,
    ) -> None:
        self._config, self._eos_token_ids, self._stall_timeout_s = config, eos_token_ids, stall_timeout_s
        # A turn after a reply is a request of its own, with one sequence.
        sequences, requests = config.samples_per_prompt, len(prompts)
        if turns:
            sequences, requests = 1, requests * sequences
        enough = math.ceil(1.25 * max_num_seqs / sequences) + 1
        self._requests_per_engine = min(math.ceil(requests / engines), enough)
        _allow_files(engines * self._requests_per_engine)
        self.unfinished = len(prompts)
        self._began_s = time.monotonic()
        self._todo = deque(prompts)
        self._events: queue.SimpleQueue[Answer | EngineLoss | BadInputError] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._members: list[Member] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for member in self._members:
            self.leave(member)
        # All together: a thread that opens a connection to an address that is silent cannot be woken.
        deadline = time.monotonic() + POLL_TIMEOUT_S + POLL_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def join(self, source: ReadyEngine) -> Member:
        """Adds an engine, which takes prompts from now on, and returns its membership."""
        member = Member(source, Window(self._requests_per_engine))
        self._members.append(member)
        targets = [self._work] * self._requests_per_engine + [self._poll, self._watch]
        threads = [threading.Thread(target=target, args=(member,), daemon=True) for target in targets]
        self._threads += threads
        for thread in threads:
            thread.start()
        return member

    def leave(self, member: Member) -> None:
        """Removes an engine. The prompts that it was sampling go back to the front of the queue."""
        with self._changed:
            if not member.has_left.is_set():
                member.has_left.set()
                self._todo.extendleft(member.in_flight.values())
                member.in_flight.clear()
            for connection in member.connections:
                if connection.sock is not None:
                    with suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()
        member.window.close()

    def put_first(self, prompts: Sequence[Prompt]) -> None:
        """Puts prompts at the front of the queue, so that groups that have begun end early."""
        with self._changed:
            self._todo.extendleft(reversed(prompts))
            self._changed.notify(len(prompts))  # one waiter each: hundreds would wake for one prompt

    def next(self, timeout_s: float) -> Answer | EngineLoss | None:
        """Returns the next answer, or the loss of an engine that has not left; None after `timeout_s` without either.

        Raises:
            BadInputError: An engine refused a request.
        """
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(event, BadInputError):
            raise event
        return None if isinstance(event, EngineLoss) and event.member.has_left.is_set() else event

    def _work(self, member: Member) -> None:
        """Samples prompts over one connection until the engine leaves the call or fails."""
        connection, used_s = member.source.endpoint.connect(None), 0.0
        with self._changed:
            member.connections.add(connection)
        try:
            while member.window.enter():
                try:
                    if (prompt := self._take(member)) is None:
                        return
                    if time.monotonic() - used_s > REUSED_WITHIN_S:
                        connection.close()
                    self._sample(member, connection, prompt)
                    used_s = time.monotonic()
                finally:
                    member.window.leave()
        except EndpointError as error:
            if error.status >= 500:
                self._events.put(EngineLoss(member, str(error)))
            elif error.status in engine_key.REFUSED:
                self._events.put(engine_key.refused_key(member.source.endpoint, error.status))
            else:
                remedy = "check prompt length plus max_tokens against max_model_len, and the sampling settings"
                self._events.put(BadInputError("sampling request", f"refused: {error}", "a valid request", remedy))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._events.put(EngineLoss(member, f"connection lost: {error!r}"))
        finally:
            with self._changed:
                member.connections.discard(connection)
            connection.close()

    def _take(self, member: Member) -> Prompt | None:
        with self._changed:
            while not self._todo and not member.has_left.is_set():
                self._changed.wait()
            if member.has_left.is_set():
                return None
            prompt = self._todo.popleft()
            member.in_flight[prompt.prompt_id] = prompt
            return prompt

    def _sample(self, member: Member, connection: http.client.HTTPConnection, prompt: Prompt) -> None:
        started = time.monotonic()
        body = request_body(prompt, self._config, self._eos_token_ids)
        data = member.source.endpoint.exchange(connection, "POST", GENERATE_PATH, body)
        finished = time.monotonic()
        sampled = from_bytes(data)
        with self._changed:
            if member.in_flight.pop(prompt.prompt_id, None) is None:
                return  # the engine has left, and the prompt is back in the queue
        self._events.put(Answer(member, prompt, sampled, started - self._began_s, finished - started))

    def _poll(self, member: Member) -> None:
        """Reads the engine's counters until it leaves the call.

        The timeout bounds a single socket operation only: an address that is silent, a name server or an answer that
        drips can take much longer. So `_watch`, which must look often, does not wait for it.
        """
        while not member.has_left.wait(POLL_S):
            with suppress(OSError, EndpointError, http.client.HTTPException):
                answer = member.source.endpoint.call("GET", COUNTS_PATH, timeout_s=POLL_TIMEOUT_S)
                member.counts = counts = Counts.of_answer(answer)
                member.window.observe(counts.preemptions, counts.waiting, counts.kv_cache_use)

    def _watch(self, member: Member) -> None:
        """Reports the engine as lost if its counters do not change for the stall timeout."""
        progress = LastProgress()
        while not member.has_left.wait(POLL_S):
            if (counts := member.counts) is not None:
                progress.observe((counts.steps, counts.tokens))
            if not member.in_flight:
                progress.reset()
            elif (silent_s := progress.age_s) > self._stall_timeout_s:
                self._events.put(EngineLoss(member, f"no new token for {silent_s:.0f} s"))
                return


def _allow_files(connections: int) -> None:
    """Raises this process's limit of open files if it is too low for a number of connections; it is often 1,024.

    Raises:
        BadInputError: The hard limit, which only an administrator can raise, is too low as well.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(list(Path("/proc/self/fd").iterdir())) + connections + _OTHER_FILES
    if needed <= soft:
        return
    if needed > hard:
        raise BadInputError(
            "ulimit -Hn", f"{hard} open files", f"at least {needed}, for {connections} requests at a time",
            "lower engine.max_num_seqs in the profile, or raise the limit",
        )  # fmt: skip
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(needed, min(hard, _ENOUGH_FILES)), hard))
