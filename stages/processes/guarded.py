"""A child process under a guard: when its owner ends for any reason, the child and its descendants end too."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from stages.processes import guard

STOP_LIMIT_S = 10.0


class GuardedProcess:
    """A command that runs in its own session under `stages/processes/guard.py`.

    Args:
        command: The command that the guard runs.
        scratch: Folder that the guard removes at the end.
        log: Receives the output of the command.
        environment: Environment variables of the command.
        keep: Open file descriptors that the command inherits.
        cwd: Working folder of the command; None for this process's.
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
        """Process id of the guard, which is also the session id of everything that it runs."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Returns the command's exit code, None while it runs. Above 128, a signal ended the command or its guard."""
        code = self._process.poll()
        return None if code is None else guard.exit_status(code)

    def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        """Ends the command with SIGTERM, and with SIGKILL after the lesser of `guard.GRACE_S` and `limit_s` seconds."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(limit_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self._close_lifeline()

    def kill(self) -> None:
        """Kills the command and all its descendants."""
        self._close_lifeline()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _close_lifeline(self) -> None:
        lifeline, self._lifeline = self._lifeline, -1  # two threads may end the process; only one closes
        if lifeline >= 0:
            os.close(lifeline)
