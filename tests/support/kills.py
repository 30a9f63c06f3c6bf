"""SIGKILL at random moments of tiny runs: of the flow, its Prefect server, the engine, the trainer and their guards.

A run is killed a few times and then left to finish; every third is a run of a deployment, whose worker is killed, too.
Afterwards nothing is lost: published artifacts are unchanged, flushed shards are part of the rollouts, the
deterministic stages have the digests of an undisturbed run, every file of the store matches its checksum, and no
process is left.
"""

import itertools
import random
import shutil
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.kills_deployed import DeployedRun
from tests.support.kills_run import Run
from tests.support.kills_saving import SavingRun

KILLS_A_RUN = 6
DEPLOYED_EVERY = 3


def campaign(
    count: int, scratch: Path, seed: int = 1, at_once: int = 1, *, while_saving: bool = False
) -> dict[str, Any]:
    """Kills at least `count` processes, in as many runs as that takes.

    Args:
        at_once: Runs side by side; each knows its own processes by a mark.
        while_saving: Whether each kill is to come while an optimizer state is saved beside other stages.

    Raises:
        AssertionError: Something was lost, repeated or left behind.
    """
    first = (SavingRun if while_saving else Run)(_folder(scratch / "undisturbed"), random.Random(seed))
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
        kind = SavingRun if while_saving else kind
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
        "repeated": sum(run.repeated for run in finished if isinstance(run, SavingRun)),
        "retries": sum(run.retries for run in finished if isinstance(run, DeployedRun)),
    }


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path
