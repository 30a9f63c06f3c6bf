"""The guard: a small process that runs a command and kills all of it when its owner ends.

Started as a script: `python -I guard.py LIFELINE_FD SCRATCH_DIR COMMAND...`. It imports only the standard library, so
that it starts fast. The owner holds the writing end of the lifeline pipe. When the pipe closes for any reason, the
guard kills every descendant. The guard is a subreaper: grandchildren whose parent died become its children, so none
escapes. The kernel's parent death signal alone is not enough: it follows the thread that started the child, and it
reaches one generation only. A LIFELINE_FD of -1 means that there is no owner: the command runs until it ends or SIGTERM
arrives.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0
TRACKER_GRACE_S = 1.0


def set_process_option(option: int, value: int) -> None:
    """Calls prctl(2); exits if the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        sys.exit(f"guard: prctl({option}) failed with errno {ctypes.get_errno()}")


def descendants() -> list[int]:
    """Returns the ids of all processes below this one, parents before their children, without zombies."""
    running: set[int] = set()
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        children.setdefault(int(parent), []).append(int(entry.name))
        if state != b"Z":
            running.add(int(entry.name))
    pids = [os.getpid()]
    for pid in pids:  # which grows: each process adds its children
        pids += children.pop(pid, [])
    return [pid for pid in pids[1:] if pid in running]


def is_tracker(pid: int) -> bool:
    """Returns whether a process is Python's resource tracker, which frees shared memory after its users end."""
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def reap() -> tuple[dict[int, int], bool]:
    """Reaps the children that ended.

    Returns:
        Exit code by process id (negative: the signal), and whether any child is left, running or about to end.
    """
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = os.waitstatus_to_exitcode(status)


def end_everything() -> None:
    """Kills every descendant; resource trackers have `TRACKER_GRACE_S` to clean up first.

    All generations die at once, because the kernel takes up to a second to free the memory of each. A dying process
    passes its children to the guard only when its last thread is gone. So the loop ends when the kernel lists no child
    at all, not when none runs.
    """
    trackers_until = time.monotonic() + TRACKER_GRACE_S
    while reap()[1]:
        spare_trackers = time.monotonic() < trackers_until
        for pid in descendants():
            if spare_trackers and is_tracker(pid):
                continue
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def exit_status(code: int) -> int:
    """Returns an exit code in the convention of shells: 128 + n for signal n, which Python reports as -n."""
    return code if code >= 0 else 128 - code


def main(lifeline: int, scratch: str, command: list[str]) -> int:
    """Runs the command until it ends, SIGTERM arrives or the owner is gone; returns its exit code."""
    if lifeline >= 0:
        os.set_inheritable(lifeline, False)
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    sigterm_times: list[float] = []

    def wake(_signal: int, _frame: FrameType | None) -> None:
        """Does nothing: the wake-up descriptor makes `poll` return."""

    def note_sigterm(_signal: int, _frame: FrameType | None) -> None:
        sigterm_times.append(time.monotonic())

    signal.signal(signal.SIGCHLD, wake)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, note_sigterm)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.execvp(command[0], command)
    poll = select.poll()  # `select` refuses descriptors above 1,023, which an owner with many connections hands over
    for descriptor in (lifeline, wake_read):
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
    code: int | None = None
    forwarded = False
    while code is None:
        ready = [descriptor for descriptor, _ in poll.poll(200)]
        if wake_read in ready:
            os.read(wake_read, 4096)
        if lifeline in ready:
            break
        code = reap()[0].get(child)
        if code is None and sigterm_times and not forwarded:
            os.kill(child, signal.SIGTERM)
            forwarded = True
        if code is None and sigterm_times and time.monotonic() > sigterm_times[0] + GRACE_S:
            break
    end_everything()
    shutil.rmtree(scratch, ignore_errors=True)
    return exit_status(-signal.SIGKILL if code is None else code)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
