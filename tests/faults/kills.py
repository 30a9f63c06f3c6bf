"""SIGKILL at random moments of tiny runs: of the flow, its Prefect server, the engine, the trainer and their guards.

`python -m tests.faults.kills --count 200 [--json]`, by hand; `tests/flow/test_kills.py` is the short form. A run is
killed a few times and then left to finish; every third is a run of a deployment, whose worker is killed as well.
Afterwards nothing is lost: what was published is what it was, shards that were flushed are part of the rollouts, the
deterministic stages have the digests of an undisturbed run, every file of the store holds against its checksum, and no
process is left.
"""

import argparse
import itertools
import json
import random
import shutil
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.faults.kills_deployed import DeployedRun
from tests.faults.kills_run import Run

KILLS_A_RUN = 6
DEPLOYED_EVERY = 3


def campaign(count: int, scratch: Path, seed: int = 1, at_once: int = 1) -> dict[str, Any]:
    """Kills at least so many processes, over as many runs as that takes.

    Args:
        at_once: Runs side by side; each knows its own processes by a mark.

    Raises:
        AssertionError: Something was lost, repeated or left behind.
    """
    first = Run(_folder(scratch / "undisturbed"), random.Random(seed))
    first.disturb(0)
    undisturbed = first.digests()
    assert undisturbed
    finished: list[Run] = []
    numbers, lost = itertools.count(), threading.Event()

    def killed() -> int:
        return sum(run.kills.total() for run in finished)

    def one() -> None:
        number = next(numbers)
        kind = DeployedRun if number % DEPLOYED_EVERY == DEPLOYED_EVERY - 1 else Run
        run = kind(_folder(scratch / f"run-{number}"), random.Random(f"{seed} {number}"))
        run.disturb(min(KILLS_A_RUN, count))
        run.check(undisturbed)
        finished.append(run)
        print(f"run {number}: {dict(run.kills)}, {killed()} kills in all", file=sys.stderr, flush=True)
        shutil.rmtree(run.folder)

    def work() -> None:
        try:
            while killed() < count and not lost.is_set():
                one()
        except BaseException:
            lost.set()
            raise

    with ThreadPoolExecutor(at_once) as pool:
        for worker in [pool.submit(work) for _ in range(at_once)]:
            worker.result()
    return {
        "kills": dict(sum((run.kills for run in finished), Counter[str]())),
        "total": killed(),
        "runs": len(finished),
        "starts": sum(run.starts for run in finished),
        "retries": sum(run.retries for run in finished if isinstance(run, DeployedRun)),
    }


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def main() -> None:
    """Prints the table; an AssertionError if work was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="processes to kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="kills-"))
    print(f"runs in {scratch}; it stays if one of them fails", file=sys.stderr, flush=True)
    report = campaign(options.count, scratch, options.seed, options.at_once)
    shutil.rmtree(scratch)
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
