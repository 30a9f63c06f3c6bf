"""Turns cyclopts' errors into one line that names the help page of the command."""

import difflib
import re
from collections.abc import Sequence

from cyclopts import App, CycloptsError, UnknownCommandError, UnusedCliTokensError

_OUT_OF_RANGE = re.compile(r"Invalid value (\S+) for (--[\w-]+)\. Must")
"""The beginning of cyclopts' message about a number out of range; it is rewritten so that the option comes first."""


def usage_error(error: CycloptsError) -> str:
    """Returns the error, the probable correction, and the command whose `--help` explains more."""
    chain = list(error.command_chain or ())
    message = _unknown_argument(error, chain) or " ".join(str(error).split()).rstrip(".")
    message = _OUT_OF_RANGE.sub(r"\2: \1; must", message)
    help_command = " ".join(["deerstalker", *chain, "--help"])
    return f"{message} See `{help_command}`" if message.endswith("?") else f"{message}; see `{help_command}`"


def command_names(app: App) -> list[str]:
    """Returns the names of an app's commands in alphabetical order, as its help page lists them."""
    return sorted(name for name in app if not name.startswith("-"))


def _unknown_argument(error: CycloptsError, chain: Sequence[str]) -> str:
    """Returns the message for the first unknown argument; empty if the error has another cause."""
    if not isinstance(error, UnknownCommandError | UnusedCliTokensError) or not error.unused_tokens or not error.app:
        return ""
    argument, names = error.unused_tokens[0], command_names(error.app)
    where = repr(" ".join([*chain, argument]))
    if not names:
        return f"argument {argument!r}: unexpected"
    if argument.startswith("-"):
        return f"option {where}: unknown; expected a command: {', '.join(names)}"
    close = difflib.get_close_matches(argument, names, n=1)
    hint = f"; did you mean {' '.join([*chain, *close])!r}?" if close else ""
    return f"command {where}: unknown; expected {', '.join(names)}{hint}"
