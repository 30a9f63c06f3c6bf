"""Runs a command and lets nothing of it outlive its owner: a tiny process between the flow and the engine.

Started as a script with only the standard library: `python -I guard.py LIFELINE_FD SCRATCH_DIR COMMAND...`. The owner
holds the writing end of the lifeline pipe. When the pipe closes, for whatever reason, every descendant is killed. The
guard is a subreaper: grandchildren whose parent died come to it, so none escapes. The death signal of the kernel
alone would not do: it follows the thread that started the child, and it reaches one generation only.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0
TRACKER_GRACE_S = 1.0


def set_process_option(option: int, value: int) -> None:
    """Call prctl(2), or leave the process if the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        sys.exit(f"guard: prctl({option}) failed with errno {ctypes.get_errno()}")


def children() -> list[int]:
    """Return the processes whose parent is this one, zombies left out."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid() and state != b"Z":
            found.append(int(name))
    return found


def is_tracker(pid: int) -> bool:
    """Tell whether a process is Python's resource tracker, which frees shared memory once its users are gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"resource_tracker" in file.read()
    except OSError:
        return False


def reap() -> dict[int, int]:
    """Collect the children that ended: exit code by pid (negative: the signal)."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def end_everything() -> None:
    """Kill every descendant, generation by generation; resource trackers get a moment to clean up first."""
    trackers_until = time.monotonic() + TRACKER_GRACE_S
    while True:
        reap()
        left = children()
        if not left:
            return
        patient = time.monotonic() < trackers_until
        for pid in left:
            if patient and is_tracker(pid):
                continue
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)


def main(lifeline: int, scratch: str, command: list[str]) -> int:
    """Run the command until it ends, a SIGTERM comes, or the owner is gone; return its exit code."""
    os.set_inheritable(lifeline, False)
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    terminated: list[float] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: terminated.append(time.monotonic()))
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
    code: int | None = None
    forwarded = False
    while code is None:
        ready, _, _ = select.select([lifeline, wake_read], [], [], 0.2)
        if wake_read in ready:
            os.read(wake_read, 4096)
        if lifeline in ready:
            break
        code = reap().get(child)
        if code is None and terminated and not forwarded:
            os.kill(child, signal.SIGTERM)
            forwarded = True
        if code is None and terminated and time.monotonic() > terminated[0] + GRACE_S:
            break
    end_everything()
    shutil.rmtree(scratch, ignore_errors=True)
    return 128 + signal.SIGKILL if code is None else code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
