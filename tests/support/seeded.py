"""Code that benchmarks over fresh seeds share: options, the store of the runs, and tables of several calls."""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages.statistics.beta import t_quantile
from stages.statistics.estimates import standard_error
from tests.support.bars import parser_of


def seeded_parser(doc: str | None, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """Returns the parser of a command with `--seeds`, `--profile`, `--store`, `--join` and `--json`.

    Args:
        doc: The docstring of its module, which is the help.
        seeds: The seeds of the published table.
    """
    parser = parser_of(doc)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(seeds), help="none: only those of --join")
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--store", help="keep the runs here, and go on with those begun; else they go at the end")
    parser.add_argument("--join", nargs="+", default=[], metavar="FILE", help="add the rows of these documents")
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command with seeds; refuses a call with neither seeds nor documents."""
    options = parser.parse_args(arguments)
    if not (options.seeds or options.join):
        parser.error("--seeds is empty: name a seed, or documents to --join")
    return options


@contextmanager
def run_store(options: argparse.Namespace) -> Iterator[str]:
    """Yields the store of the runs: that of the options, or one that is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        yield options.store or scratch


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the mean of each figure with half of its 95% interval by Student's t, in the form of one seed's row.

    Args:
        rows: The figures of each seed, numbers in equal nested mappings. A seed may lack some of them.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _mean([row[name] for row in rows if name in row]) for name in names}


def _mean(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Mapping):
        return over_seeds(values)
    if len(values) == 1:
        return f"{values[0]:.3g}"
    half = t_quantile(0.025, len(values) - 1) * standard_error(values)
    return f"{statistics.mean(values):.3g} ± {half:.2g}"


def joined(paths: Sequence[str], document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of earlier documents with those of this call, which replace them; seeds in order.

    Args:
        paths: Files with documents that earlier calls printed.
        document: The figures of this call. Keys may be seeds.
    """
    together: dict[str, Any] = {}
    for later in [*(json.loads(Path(path).read_text()) for path in paths), json.loads(json.dumps(document))]:
        together = _overlaid(together, later)
    together.pop("bars", None)  # computed again from the figures
    return together


def _overlaid(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {**below, **above}
    for name, value in above.items():
        if isinstance(value, dict) and isinstance(old := below.get(name), dict):
            both[name] = _overlaid(old, value)
    return dict(sorted(both.items(), key=lambda item: int(item[0]))) if all(name.isdecimal() for name in both) else both
