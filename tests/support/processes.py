"""The command, a test's own memory, and processes found by a variable that they inherited, or by their session."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

DEERSTALKER = str(Path(sys.executable).with_name("deerstalker"))
"""The program of this environment."""


def own_memory(field: str) -> int:
    """Returns the memory of this process in bytes: `VmRSS` is the present size, `VmHWM` the largest so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def marked(name: str, value: object) -> dict[int, str]:
    """Command lines of the live processes with a variable in their environment, by id."""
    return _live(lambda entry: f"{name}={value}".encode() in (entry / "environ").read_bytes().split(b"\0"))


class Descendants:
    """The processes that a command started, wherever they are now.

    They have a variable in their environment, or are in the session of one that had it: vLLM's core writes its title
    over its environment, and outlives a server that is killed beside its guard.

    Args:
        name: Name of the variable.
        value: Its value.
    """

    def __init__(self, name: str, value: object) -> None:
        self._name, self._value = name, value
        self._sessions: set[int] = set()

    def living(self) -> dict[int, str]:
        """Returns command lines by id; zombies have none and are left out."""
        lines = marked(self._name, self._value)
        for pid in lines:
            with suppress(ProcessLookupError):
                self._sessions.add(os.getsid(pid))
        for session in self._sessions - {os.getsid(0)}:
            lines |= in_session(session)
        return {pid: line for pid, line in lines.items() if line}


def in_session(leader: int) -> dict[int, str]:
    """Command lines of the live processes of a session, by id; zombies left out."""

    def belongs(entry: Path) -> bool:
        state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        return int(session) == leader and state != "Z"

    return _live(belongs)


def _live(chosen: Callable[[Path], bool]) -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if chosen(entry):
                found[int(entry.name)] = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue
    return found
