"""SIGKILL at random moments of tiny runs: of the flow, its Prefect server, the engine, the trainer and their guards.

`python -m tests.faults.kills --count 200 [--json]`, by hand; `tests/flow/test_kills.py` is the short form. A run is
killed a few times and then left to finish; every third is a run of a deployment, whose worker is killed as well.
Afterwards nothing is lost: what was published is what it was, shards that were flushed are part of the rollouts, the
deterministic stages have the digests of an undisturbed run, every file of the store holds against its checksum, and no
process is left.
"""

import argparse
import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.faults.kills_deployed import DeployedRun
from tests.faults.kills_run import Run

KILLS_A_RUN = 6
DEPLOYED_EVERY = 3


def campaign(count: int, scratch: Path, seed: int = 1) -> dict[str, Any]:
    """Kills so many processes, over as many runs as that takes.

    Raises:
        AssertionError: Something was lost, repeated or left behind.
    """
    generator = random.Random(seed)
    first = Run(_folder(scratch / "undisturbed"), generator)
    first.disturb(0)
    undisturbed = first.digests()
    assert undisturbed
    kills: Counter[str] = Counter()
    runs = starts = retries = 0
    while kills.total() < count:
        kind = DeployedRun if runs % DEPLOYED_EVERY == DEPLOYED_EVERY - 1 else Run
        run = kind(_folder(scratch / f"run-{runs}"), generator)
        run.disturb(min(KILLS_A_RUN, count - kills.total()))
        run.check(undisturbed)
        kills += run.kills
        runs, starts = runs + 1, starts + run.starts
        retries += run.retries if isinstance(run, DeployedRun) else 0
    found = {"kills": dict(kills), "total": kills.total(), "runs": runs, "starts": starts, "retries": retries}
    return {**found, "finished": runs}


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def main() -> None:
    """Prints the table; an AssertionError if work was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="processes to kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as scratch:
        report = campaign(options.count, Path(scratch), options.seed)
    if options.json:
        print(json.dumps(report, indent=2))
        return
    table = Table(title="SIGKILL at random moments", title_justify="left")
    table.add_column("")
    table.add_column("kills", justify="right")
    for name, number in sorted(report["kills"].items()):
        table.add_row(name, str(number))
    Console().print(table)
    told = f"{report['runs']} runs, {report['starts']} starts, {report['retries']} retries by Prefect"
    print(f"{told}: all finished; nothing lost, repeated or left behind")


if __name__ == "__main__":
    main()
