"""Child process: renders one chat template in Jinja's sandbox, within limits of CPU time, memory and length.

``python -I chat_template_child.py CPU_SECONDS MEMORY_MIB MAX_CHARACTERS``. Messages are JSON, each preceded by its
length in four bytes. The first message, ``{"source": ...}``, gets no answer. Each later one is ``{}`` to check that
the source compiles, or ``{"variables": {...}}`` to render it. The answer is ``{"text": ...}`` or ``{"error": ...}``.
The process ends when its input ends.

Jinja's sandbox keeps a template from writing files and from attributes that lead out of the sandbox. Python cannot
interrupt a multiplication of strings or a power of numbers, so the kernel ends the process by SIGPROF when its CPU time
is used up.
"""

import json
import resource
import signal
import struct
import sys
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

_SHOWN_CHARACTERS = 300


def _raise_template_error(message: object) -> None:
    raise TemplateError(str(message))


def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_template_error  # pyright: ignore[reportArgumentType]
    return environment.from_string(source)


def _reason(error: BaseException) -> str:
    """Returns one line about an error, without control characters."""
    if isinstance(error, MemoryError):
        return "it takes too much memory"
    message = f"{error}" if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
    line = " ".join("".join(c if c.isprintable() else " " for c in message[: 10 * _SHOWN_CHARACTERS]).split())
    return line if len(line) <= _SHOWN_CHARACTERS else line[: _SHOWN_CHARACTERS - 3] + "..."


def _receive() -> dict[str, Any] | None:
    start = sys.stdin.buffer.read(4)
    if len(start) < 4:
        return None
    (length,) = struct.unpack("<I", start)
    content = sys.stdin.buffer.read(length)
    return json.loads(content) if len(content) == length else None


def _send(message: dict[str, str]) -> None:
    content = json.dumps(message).encode()
    sys.stdout.buffer.write(struct.pack("<I", len(content)) + content)
    sys.stdout.buffer.flush()


def _rendered(template: Template, variables: dict[str, Any], max_characters: int) -> dict[str, str]:
    parts: list[str] = []
    characters = 0
    for part in template.generate(**variables):
        characters += len(part)
        if characters > max_characters:
            return {"error": f"it writes more than {max_characters} characters"}
        parts.append(part)
    text = "".join(parts)
    text.encode()  # fails for half a surrogate pair, which no tokenizer accepts
    return {"text": text}


def _limit(cpu_s: float, memory_bytes: int) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def main(cpu_s: float, memory_bytes: int, max_characters: int) -> None:
    """Answers messages until the input ends."""
    first = _receive()
    if first is None:
        return
    _limit(cpu_s, memory_bytes)
    template, refusal = None, ""
    try:
        template = _compile(first["source"])
    except Exception as error:
        refusal = _reason(error)
    while (request := _receive()) is not None:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            if template is None:
                reply = {"error": refusal}
            else:
                reply = _rendered(template, request["variables"], max_characters) if request else {"text": ""}
        except Exception as error:
            reply = {"error": _reason(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(reply)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) << 20, int(sys.argv[3]))
