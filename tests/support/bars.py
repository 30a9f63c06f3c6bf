"""The bars of a benchmark or fault campaign: targets, measurements, and one JSON document of both."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDE = 10_000
"""Columns of a table at most: it is not folded, because its lines are often read in a file."""
_SHOWN = 50
"""Values of a list that a table shows."""
_TOO_LATE = re.compile(r"over before|over already")
"""Errors of a campaign whose fault came too late, so that nothing was measured."""


@dataclass(frozen=True)
class Bar:
    """One promise beside its measurement.

    Attributes:
        name: The figure, with its unit.
        value: The measured value.
        bar: The target: a number, or a condition in words.
        met: Whether the value reaches the bar.
    """

    name: str
    value: float
    bar: float | str
    met: bool

    @classmethod
    def at_most(cls, name: str, value: float, bar: float) -> Self:
        """Returns the bar of a figure that should be small."""
        return cls(name, value, bar, value <= bar)

    @classmethod
    def at_least(cls, name: str, value: float, bar: float) -> Self:
        """Returns the bar of a figure that should be large."""
        return cls(name, value, bar, value >= bar)

    def __str__(self) -> str:
        return f"{'met   ' if self.met else 'MISSED'} {self.name}: {self.value:.4g} (bar {self.bar})"


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Returns the parser of a command: `--json`, and the docstring of its module as help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document, with its bars in `bars`")
    return parser


def progress(words: str) -> None:
    """Says on stderr what is measured next."""
    print(words, file=sys.stderr, flush=True)


def tell(figures: Mapping[str, Any], bars: Sequence[Bar], *, as_json: bool) -> None:
    """Prints figures and bars: as one JSON document, or as tables and a line for each bar."""
    if as_json:
        print(json.dumps({**figures, "bars": [asdict(bar) for bar in bars]}, indent=2))
        return
    # Through JSON, because keys may be numbers and rows may be tuples.
    for (name, heads), rows in _tables(json.loads(json.dumps(figures))).items():
        table = Table(*heads, title=name or None, title_justify="left", box=SIMPLE_HEAD)
        for row in rows:
            table.add_row(*map(escape, row))
        Console(width=WIDE).print(table)
    for bar in bars:
        print(bar)


def _tables(figures: Mapping[str, Any]) -> dict[tuple[str, tuple[str, ...]], list[list[str]]]:
    """Returns the rows of each table, by its name and heads: mappings in one place that have the same keys.

    A row begins with the keys that lead to it.
    """
    tables: dict[tuple[str, tuple[str, ...]], list[list[str]]] = {}

    def add(value: Mapping[str, Any], path: tuple[str, ...]) -> None:
        cells = {name: cell for name, cell in value.items() if not (isinstance(cell, dict) or _is_table(cell))}
        if cells:
            heads = (*("" for _ in path[1:]), *(name.replace("_", " ") for name in cells))
            tables.setdefault((path[0] if path else "", heads), []).append([*path[1:], *map(_text, cells.values())])
        for name, cell in value.items():
            if isinstance(cell, dict):
                add(cell, (*path, name))
            elif name not in cells:
                for number, row in enumerate(cell, 1):
                    add(row, (*path, name, str(number)))

    add(figures, ())
    return tables


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _text(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(_text, value[:_SHOWN])) + " ..." * (len(value) > _SHOWN)
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def kept(promises: Mapping[str, str], campaign: Callable[[], Mapping[str, Any]]) -> tuple[dict[str, Any], list[Bar]]:
    """Runs a campaign that ends with an AssertionError as soon as a promise is broken.

    Args:
        promises: A regular expression for the errors that tell of a broken promise, by the name of the promise. An
            error counts for the first expression that matches. If none matches, nothing was measured, and the error is
            raised.
        campaign: Returns the figures of a campaign that kept every promise.

    Returns:
        The figures (of a broken campaign only the error, as `broken_by`), and a bar of 0 for each promise. A broken
        campaign has only the bar of the broken promise, because it ended before the others were measured.
    """
    figures: dict[str, Any] = {"broken_by": None}
    broken = None
    try:
        figures |= campaign()
    except AssertionError as error:
        if not _TOO_LATE.search(str(error)):
            broken = next((name for name, words in promises.items() if re.search(words, str(error))), None)
        if broken is None:
            raise
        figures["broken_by"] = str(error)
    return figures, [Bar.at_most(name, int(name == broken), 0) for name in ([broken] if broken else promises)]
