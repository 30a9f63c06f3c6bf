"""Child process: renders chat templates by transformers' own code, within limits of CPU time, memory and length.

``python -I chat_template_child.py SOCKET CPU_SECONDS MEMORY_MIB MAX_CHARACTERS``. SOCKET is the number of a file
descriptor, over which a `multiprocessing.connection.Connection` sends messages in JSON. A request is ``{"source": ...,
"conversations": [...], "variables": {...}}``; without conversations it only checks that the source compiles. The answer
is ``{"texts": [...]}``, a text for each conversation, or ``{"error": ...}``. The process ends when the connection ends.
Limits of CPU time and length are for one text; that of memory comes on top of what transformers takes itself.

Jinja's sandbox, in which transformers renders, keeps a template from writing files and from attributes that lead out of
the sandbox. Python cannot interrupt a multiplication of strings or a power of numbers, so the kernel ends the process
by SIGPROF when its CPU time is used up.
"""

import json
import os
import resource
import signal
import sys
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

TODAY = datetime(2024, 7, 26)
"""The date that templates write, that of Llama 3.2 without a clock: prompts must not change with the day of a run."""
_SHOWN_CHARACTERS = 300


def _reason(error: BaseException) -> str:
    """Returns one line about an error, without control characters."""
    if isinstance(error, MemoryError):
        return "it takes too much memory"
    message = f"{error}" if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
    line = " ".join("".join(c if c.isprintable() else " " for c in message[: 10 * _SHOWN_CHARACTERS]).split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 3] + "..."


def _rendered(request: dict[str, Any], cpu_s: float, max_characters: int) -> dict[str, Any]:
    source: str = request["source"]
    variables: dict[str, Any] = {"strftime_now": TODAY.strftime, **request["variables"]}
    texts: list[str] = []
    try:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        render_jinja_template([], chat_template=source)  # compiles it; transformers keeps the result
        for conversation in request["conversations"]:
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            text = render_jinja_template([conversation], chat_template=source, **variables)[0][0]
            if len(text) > max_characters:
                return {"error": f"it writes more than {max_characters} characters"}
            text.encode()  # fails for a lone surrogate, which no tokenizer accepts
            texts.append(text)
    except Exception as error:
        return {"error": _reason(error)}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"texts": texts}


def _limit(memory_bytes: int) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory_bytes += pages * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(owner: Connection, cpu_s: float, memory_bytes: int, max_characters: int) -> None:
    """Answers requests until the connection ends."""
    _limit(memory_bytes)
    while True:
        try:
            request = json.loads(owner.recv_bytes())
        except EOFError:
            return
        owner.send_bytes(json.dumps(_rendered(request, cpu_s, max_characters)).encode())


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), float(sys.argv[2]), int(sys.argv[3]) << 20, int(sys.argv[4]))
