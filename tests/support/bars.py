"""The bars of a benchmark or fault campaign: targets, measurements, and one JSON document of both."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

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


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--json` to a command."""
    parser.add_argument("--json", action="store_true", help="print one JSON document, with its bars in `bars`")


def tell(figures: Mapping[str, Any], bars: Sequence[Bar], show: Callable[[], None], *, as_json: bool) -> None:
    """Prints figures and bars: as one JSON document, or by `show` and a line for each bar.

    A campaign that broke a promise (see `kept`) has no figures to show; its error is printed instead.
    """
    if as_json:
        print(json.dumps({**figures, "bars": [asdict(bar) for bar in bars]}, indent=2))
        return
    if broken := figures.get("broken_by"):
        print(f"ended by: {broken}")
    else:
        show()
    sys.stdout.flush()
    for bar in bars:
        print(bar)


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
