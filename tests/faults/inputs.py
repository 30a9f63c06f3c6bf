"""Bad inputs of every class, and the rule that each answer must obey: `python -m tests.faults.inputs --count 2000`.

Settings, files, words of the command line, addresses, damaged stores and damaged checkpoints are made from a seed and
met by `flows.cli.app.run_command` in this process. Commands and settings are found by reflection, so that later ones
are tried too. Each refusal ends with 1 or 2 and is one line that names the place and says what to do; it
leaves nothing in the store, nor in the temporary folder, and takes less than 10 seconds. Nothing is started: a command
that would start work gets another input that it refuses, and no server listens where Prefect's is looked for.

The store of a case exists, or is missing: a refused command makes no folder at the address of a missing store.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.support.bad_inputs.classes import CLASSES
from tests.support.bad_inputs.ground import Ground, made_ground
from tests.support.bad_inputs.trial import Case, Outcome, attempt
from tests.support.bars import Bar, add_json_option, tell

_MOST_SHOWN = 2_000
"""Characters of a violating case that are printed."""


def campaign(count: int, seed: int, only: str | None = None) -> dict[str, Any]:
    """Tries `count` bad inputs, and returns the document of `--json`.

    Args:
        only: The class that is tried; all where None.
    """
    with made_ground() as ground:
        outcomes = [attempt(ground, case) for case in _cases(ground, count, seed, only)]
    by_class = {name: [one for one in outcomes if one.case.kind == name] for name in CLASSES}
    summary = {name: _summary(tried) for name, tried in by_class.items() if tried}
    violating = [_told(one) for one in outcomes if one.violations]
    return {"count": len(outcomes), "seed": seed, "classes": summary, "violating": violating}


def _cases(ground: Ground, count: int, seed: int, only: str | None) -> Iterator[Case]:
    shares = {name: share for name, (_, share) in CLASSES.items() if only in (None, name)}
    whole, left = sum(shares.values()), count
    for number, (name, share) in enumerate(shares.items(), 1):
        part = left if number == len(shares) else min(left, max(1, round(count * share / whole)))
        left -= part
        yield from islice(CLASSES[name][0](ground, random.Random(f"{seed} {name}")), part)


def _summary(tried: list[Outcome]) -> dict[str, Any]:
    kinds = Counter(violation.partition(" /")[0] for one in tried for violation in one.violations)
    return {
        "cases": len(tried),
        "refused": sum(one.status in (1, 2) for one in tried),
        "violations": sum(bool(one.violations) for one in tried),
        "by_kind": dict(kinds),
        "slowest_s": round(max(one.seconds for one in tried), 2),
    }


def _told(outcome: Outcome) -> dict[str, Any]:
    case = outcome.case
    return {
        "class": case.kind,
        "violations": list(outcome.violations),
        "status": outcome.status,
        "words": [ascii(word)[1:-1][:200] for word in case.words],
        "input": case.told[:_MOST_SHOWN],
        "stderr": ascii(outcome.error)[1:-1][:_MOST_SHOWN],
        "seconds": round(outcome.seconds, 2),
    }


def _print_table(document: dict[str, Any]) -> None:
    console = Console()
    for one in document["violating"]:
        console.print(json.dumps(one), soft_wrap=True, markup=False, highlight=False)
    table = Table(title=f"{document['count']} bad inputs, seed {document['seed']}", title_justify="left")
    for name in ("class", "cases", "refused", "violations", "kinds", "slowest"):
        table.add_column(name, justify="left" if name in ("class", "kinds") else "right")
    for name, figures in document["classes"].items():
        kinds = ", ".join(f"{kind} {number}" for kind, number in figures["by_kind"].items())
        numbers = [str(figures[key]) for key in ("cases", "refused", "violations")]
        table.add_row(name, *numbers, kinds, f"{figures['slowest_s']:.2f} s")
    console.print(table)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.inputs", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="how many bad inputs")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same inputs")
    parser.add_argument("--only", choices=CLASSES, help="one class instead of all")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    document = campaign(options.count, options.seed, options.only)
    bars = [Bar.at_most(f"violations, {name}", row["violations"], 0) for name, row in document["classes"].items()]
    tell(document, bars, lambda: _print_table(document), as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
