"""A child process under a guard: it and all that it started end with their owner, however that one ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from stages import guard

STOP_LIMIT_S = 10.0


class GuardedProcess:
    """A command that runs in a session of its own, under `stages/guard.py`.

    Args:
        command: What the guard runs.
        scratch: Folder that the guard removes at the end.
        log: Where its output goes.
        environment: Its environment variables.
        keep: Open file descriptors that it inherits.
        cwd: Its working folder; this process's where None.
    """

    def __init__(
        self,
        command: Sequence[str],
        scratch: Path,
        log: BinaryIO,
        environment: Mapping[str, str],
        *,
        keep: Sequence[int] = (),
        cwd: Path | None = None,
    ) -> None:
        lifeline_read, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", guard.__file__, str(lifeline_read), str(scratch), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=cwd,
                pass_fds=(lifeline_read, *keep),
                start_new_session=True,
            )
        except BaseException:
            self._close_lifeline()
            raise
        finally:
            os.close(lifeline_read)

    @property
    def pid(self) -> int:
        """Process id of the guard, which is also the session id of everything it runs."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """The command's exit code (above 128: it or its guard was ended by a signal), None while it runs."""
        code = self._process.poll()
        return None if code is None else guard.exit_status(code)

    def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        """Ends it politely, by force after `limit_s`."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(limit_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self._close_lifeline()

    def kill(self) -> None:
        """Ends it and all that it started at once."""
        self._close_lifeline()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _close_lifeline(self) -> None:
        lifeline, self._lifeline = self._lifeline, -1  # once, though two threads may end the process
        if lifeline >= 0:
            os.close(lifeline)
