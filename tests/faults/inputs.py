"""Bad inputs of every class, and the rule that each answer must obey: `python -m tests.faults.inputs --count 2000`.

Settings, files, words of the command line, addresses, damaged stores and damaged checkpoints are made from a seed and
met by `flows.cli.app.run_command` in a process of their own. Commands and settings are found by reflection, so that
later ones are tried too. Each refusal ends with 1 or 2 and is one line that names the place and says what to do; it
leaves nothing in the store, nor in the temporary folder, and takes less than 10 seconds and 2 GiB. A case that exceeds
a limit is ended. Nothing is started: a command that would start work gets another input that it refuses, and no server
listens where Prefect's is looked for.

The seed is a new one each time and is printed; `--seed` repeats the cases.

The store of a case exists, or is missing: a refused command makes no folder at the address of a missing store.
"""

import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tests.support.bad_inputs.classes import CLASSES
from tests.support.bad_inputs.ground import Ground
from tests.support.bad_inputs.trial import Case, Outcome
from tests.support.bad_inputs.worker import Tried, tried
from tests.support.bars import Bar, parser_of, progress, tell

_MOST_SHOWN = 2_000
"""Characters of a violating case that are printed."""


@dataclass(frozen=True)
class Series:
    """The cases of a campaign, the same for the same seed.

    Attributes:
        only: The class that is tried; all where None.
    """

    count: int
    seed: int
    only: str | None = None

    def __call__(self, ground: Ground) -> Iterator[Case]:
        """Yields the cases, class by class."""
        shares = {name: share for name, (_, share) in CLASSES.items() if self.only in (None, name)}
        whole, left = sum(shares.values()), self.count
        for number, (name, share) in enumerate(shares.items(), 1):
            part = left if number == len(shares) else min(left, max(1, round(self.count * share / whole)))
            left -= part
            yield from islice(CLASSES[name][0](ground, random.Random(f"{self.seed} {name}")), part)


def campaign(series: Series) -> dict[str, Any]:
    """Tries bad inputs, and returns the document of `--json`."""
    began, outcomes = time.monotonic(), list[Tried]()
    with tempfile.TemporaryDirectory(prefix="bad-inputs-") as folder:
        trials = tried(series, series.count, Path(folder).resolve())
        try:
            while True:
                outcomes.append(next(trials))
        except StopIteration as end:
            peak_bytes: int = end.value
    by_class = {name: [one for one in outcomes if one.case.kind == name] for name in CLASSES}
    return {
        "count": len(outcomes),
        "seed": series.seed,
        "seconds": round(time.monotonic() - began, 1),
        "peak_mib": peak_bytes >> 20,
        "classes": {name: _summary([one.outcome for one in cases]) for name, cases in by_class.items() if cases},
        "violating": [_told(one) for one in outcomes if one.outcome.violations],
    }


def _summary(outcomes: list[Outcome]) -> dict[str, Any]:
    kinds = Counter(violation.partition(" /")[0] for one in outcomes for violation in one.violations)
    return {
        "cases": len(outcomes),
        "refused": sum(one.status in (1, 2) for one in outcomes),
        "violations": sum(bool(one.violations) for one in outcomes),
        "by_kind": dict(kinds),
        "slowest_s": round(max(one.seconds for one in outcomes), 2),
    }


def _told(one: Tried) -> dict[str, Any]:
    case, outcome = one.case, one.outcome
    return {
        "class": case.kind,
        "violations": list(outcome.violations),
        "status": outcome.status,
        "words": [ascii(word)[1:-1][:200] for word in case.words],
        "input": case.told[:_MOST_SHOWN],
        "stderr": ascii(outcome.error)[1:-1][:_MOST_SHOWN],
        "seconds": round(outcome.seconds, 2),
    }


def main(arguments: list[str]) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--count", type=int, default=2000, help="how many bad inputs")
    parser.add_argument("--seed", type=int, help="the same seed makes the same inputs; a new one by default")
    parser.add_argument("--only", choices=CLASSES, help="one class instead of all")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    progress(f"seed {seed}")  # before anything can end this process
    document = campaign(Series(options.count, seed, options.only))
    bars = [Bar.at_most(f"violations, {name}", row["violations"], 0) for name, row in document["classes"].items()]
    tell(document, bars, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
