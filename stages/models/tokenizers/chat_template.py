"""Renders chat templates in a separate process with limits, because a template is a program from a model folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from artifacts.errors import BadInputError, TransientError
from stages.processes.late import killed_after

Conversation = list[dict[str, str]]
"""Messages, each with `role` and `content`."""
MAX_SOURCE_CHARACTERS = 1_000_000
MAX_TEXT_CHARACTERS = 4_000_000
CPU_S = 2
"""CPU time for one text; templates of published models need less than a thousandth of it."""
MEMORY_MIB = 512
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH")
_ANSWER_LIMIT_S = 120.0
"""Longest wait for an answer; only a process that is stopped takes so long, because `CPU_S` ends one that computes."""
_ENDING_LIMIT_S = 10.0
_AT_ONCE = 16
"""Number of conversations in one request."""
_CHILD = Path(__file__).with_name("chat_template_child.py")


class ChatTemplate:
    """The chat template of a model folder.

    One process renders all templates. It starts in the background with the first of them.

    Args:
        source: The template in Jinja.
        where: The model folder, for error messages.

    Raises:
        BadInputError: The source is too long.
    """

    def __init__(self, source: str, where: str) -> None:
        self._source, self._where = source, where
        if len(source) > MAX_SOURCE_CHARACTERS:
            size = f"a chat template of {len(source)} characters"
            raise BadInputError(where, size, f"at most {MAX_SOURCE_CHARACTERS}", "use the model's own")
        self._renderer = _renderer()

    def check(self) -> None:
        """Compiles the template.

        Raises:
            BadInputError: The template is not valid Jinja.
            TransientError: The process that renders did not answer in time.
        """
        reply = self._request([], {})
        if "error" in reply:
            raise BadInputError(self._where, f"a chat template with an error ({reply['error']})", "valid Jinja")

    def render(self, conversations: Sequence[Conversation], **variables: Any) -> list[str]:
        """Returns the text of each conversation, as `apply_chat_template` of transformers writes it.

        Args:
            conversations: Conversations, each a list of messages with `role` and `content`.
            **variables: Further variables of the template, such as `add_generation_prompt` and `eos_token`.

        Raises:
            BadInputError: The template fails, or exceeds its limit of time, memory or length.
            TransientError: The process that renders did not answer in time.
        """
        texts: list[str] = []
        for start in range(0, len(conversations), _AT_ONCE):
            reply = self._request(conversations[start : start + _AT_ONCE], variables)
            if "error" in reply:
                raise BadInputError(
                    self._where, f"its chat template fails ({reply['error']})", "a template for one user message"
                )
            texts += reply["texts"]
        return texts

    def _request(self, conversations: Sequence[Conversation], variables: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer to a request. If the process ended, perhaps killed by others, the request is sent again.

        Raises:
            BadInputError: The template computes for too long, or ended the process twice.
            TransientError: The process did not answer in time.
        """
        request = {"source": self._source, "conversations": list(conversations), "variables": variables}
        for last in (False, True):
            try:
                return self._renderer.answer(request)
            except _EndedError as error:
                if error.status == -signal.SIGPROF:
                    reason = f"its chat template computes for more than {CPU_S} s"
                    expected = "a template that needs milliseconds"
                    raise BadInputError(self._where, reason, expected, "use the model's own template") from None
                if last:
                    reason = f"its chat template twice ended the process that renders it (status {error.status})"
                    raise BadInputError(self._where, reason, "a text", "use the model's own template") from None
        raise AssertionError("the second attempt returns or raises")


class _EndedError(Exception):
    """The process ended instead of answering; `status` is its exit status, -n for signal n."""

    def __init__(self, status: int | None) -> None:
        super().__init__(status)
        self.status = status


@lru_cache(maxsize=1)
def _renderer() -> _Renderer:
    return _Renderer()


class _Renderer:
    """The process that renders templates. It is started again if it ended; threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        limits = [str(CPU_S), str(MEMORY_MIB), str(MAX_TEXT_CHARACTERS)]
        self._pipe, other_end = Pipe()
        with other_end:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_CHILD), str(other_end.fileno()), *limits],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[other_end.fileno()],
                cwd="/",
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                start_new_session=True,  # a Ctrl-C must not reach it
            )
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _end, self._process, self._pipe)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the answer.

        Raises:
            _EndedError: The process ended instead.
            TransientError: The process did not answer in time.
        """
        with self._lock:
            if self._owner != os.getpid() or self._process.poll() is not None:
                self._end()
                self._start()
            with killed_after(_ANSWER_LIMIT_S, self._process.kill) as late:
                try:
                    self._pipe.send_bytes(json.dumps(request).encode())
                    return json.loads(self._pipe.recv_bytes())
                except (OSError, EOFError):
                    with suppress(subprocess.TimeoutExpired):
                        self._process.wait(_ENDING_LIMIT_S)  # it ends by itself, with a status of its own
                    self._end()
                    if late.is_set():
                        problem = f"no answer in {_ANSWER_LIMIT_S:.0f} s"
                        raise TransientError("chat template", problem, "a text") from None
                    raise _EndedError(self._process.returncode) from None


def _end(process: subprocess.Popen[bytes], pipe: Connection) -> None:
    """Kills a renderer, which has no state to lose."""
    process.kill()
    process.wait()
    pipe.close()
