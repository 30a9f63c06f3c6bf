"""Every command of the command line, found by reflection, and arguments with which it starts no work."""

import typing
from collections.abc import Iterator
from inspect import signature

from cyclopts import App, Argument

from flows.cli import app as cli
from tests.support.bad_inputs.ground import NOBODY

_REFUSED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("train",): ("--refresh", "nothing"),
    ("evaluate",): ("--checkpoint", NOBODY),
    ("benchmark",): ("--models", NOBODY),
    ("merge",): ("--model", NOBODY),
    ("export",): (),
    ("solve",): ("--checkpoint", NOBODY),
    ("compare",): ("--iteration", "0"),
    ("iterate",): ("--refresh", "nothing"),
    ("backfill",): (NOBODY,),
    ("plan",): ("--gpus", "nothing"),
    ("up",): ("--server", "nothing"),
    ("puzzles", "make"): ("--tokenizer", NOBODY),
    ("puzzles", "solve"): ("--no-such-option",),
    ("environments", "try"): (NOBODY,),
}
"""Arguments that a command that starts work refuses, at the last possible moment."""

_LOOKS = {
    *(
        ("runs",),
        ("show",),
        ("report",),
        ("lineage",),
        ("diff",),
        ("prune",),
        ("verify",),
        ("down",),
        ("recipes",),
        ("rollouts",),
    ),
    *(("study",), ("recipes", "show"), ("recipes", "diff"), ("puzzles", "prove"), ("environments",)),
}
"""Commands that read, or write a page at most."""


def commands(app: App = cli.app, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Yields every command with its words."""
    if app.default_command is not None:
        yield path, app
    for name in app:
        if not name.startswith("-"):
            yield from commands(app[name], (*path, name))


def refused(path: tuple[str, ...]) -> tuple[str, ...]:
    """Returns arguments with which a command starts nothing; for a command in neither table, an unknown option."""
    return _REFUSED.get(path, () if path in _LOOKS else ("--no-such-option",))


def only_looks(path: tuple[str, ...]) -> bool:
    """Returns whether a command only reads, so that it may succeed."""
    return path in _LOOKS


def options(app: App) -> list[Argument]:
    """Returns a command's options, except those for help."""
    return [one for one in app.assemble_argument_collection() if one.show and one.name.startswith("--")]


def is_switch(option: Argument) -> bool:
    """Returns whether an option takes no value."""
    return bool in (option.hint, *typing.get_args(option.hint))


def required(path: tuple[str, ...], app: App, but: str = "") -> list[str]:
    """Returns a word for each argument without a default, except `but` and the options of `refused`.

    Args:
        but: Name of an option that gets another value.
    """
    function = app.default_command
    assert function is not None
    words: list[str] = []
    for one in signature(function).parameters.values():
        option = f"--{one.name.rstrip('_').replace('_', '-')}"
        if one.default is one.empty and option not in {but, *refused(path)}:
            words += [NOBODY] if one.kind is one.POSITIONAL_ONLY else [f"{option}={NOBODY}"]
    return words


def positionals(app: App) -> int:
    """Returns the number of a command's positional arguments."""
    function = app.default_command
    assert function is not None
    return sum(one.kind is one.POSITIONAL_ONLY for one in signature(function).parameters.values())
