"""A function that does what code of a user may do: loop, exit, crash, take memory, raise, print, leave children."""

import ctypes
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any


def load(factor: int) -> Callable[[str, Any], Any]:
    """Returns the function; for an unknown kind, it multiplies the value by the factor."""
    if factor < 0:
        raise ValueError("a negative factor")
    held: list[bytes] = []

    def call(kind: str, value: Any) -> Any:
        match kind:
            case "loop":
                while True:
                    pass
            case "regex":  # in C, without giving up Python's lock
                return re.match(r"(a+)+b", "a" * 60)
            case "sleep":
                time.sleep(value)
            case "exit":
                os._exit(value)
            case "sys_exit":
                sys.exit(value)
            case "signal":
                os.kill(os.getpid(), value)
            case "segfault":
                ctypes.string_at(0)
            case "memory":
                return len(bytearray(value))
            case "hold":
                held.append(bytes(value))
            case "raise":
                raise ValueError(value)
            case "recursion":
                return call(kind, value)
            case "unsendable":
                return threading.Lock()
            case "print":
                print("noise on stdout")
            case "child":
                return subprocess.Popen(["sleep", "1000"]).pid
            case "deep":
                raise type("Odd", (Exception,), {"__str__": lambda self: 1 / 0})
            case "pid":
                return os.getpid()
            case _:
                return value * factor
        return value

    return call
