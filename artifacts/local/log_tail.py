"""The last lines of a child process's log that explain its end."""

import re
from collections.abc import Sequence

TAIL_LINES = 10
_LONGEST_LINE = 240
_PREFIX = re.compile(
    r"^\([^)]*pid=\d+\) (?:[A-Z]+ [\d-]+ [\d:.]+ \[[^\]]*\] ?)?"  # vLLM
    r"|^\[rank\d+\]:(?:\[[^\]]*\])? ?"  # torch, before the lines of a worker
    r"|^[EWI]\d{4} [\d:.]+ \d+ \S+\] (?:\[[^\]]*\] )?"  # torchrun
)
"""Prefixes that some programs write before each line of a log, those of a traceback included."""
_FRAME = re.compile(r'^\s*File ".*", line \d+|^frame #\d+: ')
_HEADING = re.compile(
    r"^(Traceback \(most recent call last\):|-{8,}|={8,}|[\s^~|]+)$"
    r"|^Exception raised from .* \(most recent call first\):$"
    r"|^(During handling of the above exception|The above exception was the direct cause)"
    r"|Engine Exception caught|See stack trace \(above\)"
)
"""Lines that name no reason: headings of tracebacks, rules, marks below source lines, and what vLLM repeats for each
request in flight."""


def without_prefix(line: str) -> str:
    """Returns a line of a log without the names of program, process and time before it."""
    return _PREFIX.sub("", line)


def tail_of(log: str, lines: int = TAIL_LINES) -> tuple[str, ...]:
    """Returns the last distinct lines of a log that may name a reason, without frames, headings and empty lines.

    If there are only such lines, returns the last of them.

    Args:
        log: A log, or the part of it that the process wrote.
        lines: Largest number of lines.
    """
    bare = [without_prefix(line) for line in log.splitlines()]
    return _last(_reasons(bare), lines) or _last(bare, lines)


def _reasons(log: Sequence[str]) -> list[str]:
    reasons: list[str] = []
    frame_indent: int | None = None
    for line in log:
        indent = len(line) - len(line.lstrip())
        if _FRAME.match(line):
            frame_indent = indent
        elif frame_indent is not None and indent > frame_indent:
            pass  # a source line below its frame
        elif not _HEADING.search(line):
            frame_indent = None
            reasons.append(line)
    return reasons


def _last(log: Sequence[str], lines: int) -> tuple[str, ...]:
    found = dict.fromkeys(reversed([line.strip() for line in log if line.strip()]))
    return tuple(line[:_LONGEST_LINE] for line in reversed(list(found)[:lines]))
