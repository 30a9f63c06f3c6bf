"""Breaks text into lines that fit the width of a console."""

import re
import shlex
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, chop_cells
from rich.console import Console

from flows.report.text.visible import one_line

UNLIMITED = 10_000
"""Width of a console that never breaks a line, for `--wide`."""
_NARROWEST = 20
_PART_OF_PATH = re.compile(r"[^/]*/+|[^/]+")


def print_labelled(console: Console, label: str, text: str) -> None:
    """Prints `label` and `text`; later lines are indented by the label's width, unless it exceeds half a line."""
    label, text = one_line(label), one_line(text)
    indent = cell_len(label)
    if indent > console.width // 2:
        _print_lines(console, wrapped(f"{label} {text}", console.width))
        return
    first, *rest = wrapped(text, console.width - indent) or [""]
    _print_lines(console, [label + first, *(" " * indent + line for line in rest)])


def print_command(console: Console, label: str, command: str) -> None:
    """Prints a shell command in lines that a shell reads as one command (see `command_lines`)."""
    _print_lines(console, command_lines(one_line(command), console.width, label))


def wrapped(text: str, width: int) -> list[str]:
    """Returns lines of at most `width` columns.

    Lines break between words. A word longer than a line breaks after a slash if possible, else anywhere.
    """
    width = max(width, _NARROWEST)
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines += _pieces(word, width)
    return lines


def command_lines(command: str, width: int, label: str = "") -> list[str]:
    """Returns a shell command in lines of at most `width` columns that a shell reads as one; `label` begins the first.

    An option and its value stay on one line. An argument longer than a line continues in the first column of the next,
    because a shell would take an indent as the end of the argument.
    """
    room = max(width, _NARROWEST) - len(" \\")
    indent = " " * (cell_len(label) + 2)
    (program, *_), *groups = _with_values(shlex.split(command))
    lines = [label + shlex.quote(program)]
    for group in groups:
        words = shlex.join(group)
        if cell_len(f"{lines[-1]} {words}") <= room:
            lines[-1] += f" {words}"
            continue
        lines[-1] += " \\"
        if cell_len(indent + words) <= room:
            lines.append(indent + words)
        else:
            *option, argument = group
            lines += [*(f"{indent}{name} \\" for name in option), *_continued(argument, room)]
    return lines


def _continued(argument: str, width: int) -> list[str]:
    """Returns one argument in several lines, each with its own quotes: a backslash inside quotes continues no line."""
    growth = len(shlex.quote("'")) if "'" in argument else 1
    *pieces, last = _pieces(argument, width // growth - len("''"))
    return [*(f"{shlex.quote(piece)}\\" for piece in pieces), shlex.quote(last)]


def _with_values(arguments: Sequence[str]) -> list[list[str]]:
    """Returns the arguments in groups: an option with its value, or a single argument."""
    groups: list[list[str]] = []
    for argument in arguments:
        if groups and len(groups[-1]) == 1 and groups[-1][0].startswith("--") and not argument.startswith("--"):
            groups[-1].append(argument)
        else:
            groups.append([argument])
    return groups


def _pieces(word: str, width: int) -> list[str]:
    if cell_len(word) <= width:
        return [word]
    pieces = [""]
    for part in _PART_OF_PATH.findall(word):
        for chunk in chop_cells(part, width):
            if cell_len(pieces[-1] + chunk) <= width:
                pieces[-1] += chunk
            else:
                pieces.append(chunk)
    return pieces


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
