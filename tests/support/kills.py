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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.kills_deployed import DeployedRun
from tests.support.kills_kinds import make_run
from tests.support.kills_run import Run
from tests.support.kills_saving import SavingRun

KILLS_A_RUN = 12
USUAL = ("plain", "plain", "deployed")


def campaign(
    count: int, scratch: Path, seed: int = 1, at_once: int = 1, kinds: Sequence[str] = USUAL
) -> dict[str, Any]:
    """Kills at least `count` processes, in as many runs as that takes.

    Args:
        at_once: Runs side by side; each knows its own processes by a mark.
        kinds: Kinds of the runs in turn (see `tests.support.kills_kinds.EVERY`).

    Raises:
        AssertionError: Something was lost, repeated or left behind.
    """
    undisturbed: dict[str, dict[str, str]] = {}
    making = {kind: threading.Lock() for kind in kinds}
    finished: list[tuple[str, Run]] = []
    numbers, lost = itertools.count(), threading.Event()

    def made(kind: str, name: str, generator: random.Random) -> Run:
        return make_run(kind, scratch / name, generator, scratch / f"prepared-{kind}")

    def undisturbed_digests(kind: str) -> dict[str, str]:
        with making[kind]:
            if kind not in undisturbed:
                # What a deployment does is what a command does.
                first = made("plain" if kind == "deployed" else kind, f"undisturbed-{kind}", random.Random(seed))
                first.disturb(0)
                undisturbed[kind] = first.digests()
                assert undisturbed[kind]
            return undisturbed[kind]

    def killed() -> int:
        return sum(run.kills.total() for _, run in finished)

    def one() -> None:
        number = next(numbers)
        kind = kinds[number % len(kinds)]
        expected = undisturbed_digests(kind)
        run = made(kind, f"run-{number}", random.Random(f"{seed} {number}"))
        run.disturb(min(KILLS_A_RUN, count))
        run.check(expected)
        finished.append((kind, run))
        print(f"run {number}, {kind}: {dict(run.kills)}, {killed()} kills in all", file=sys.stderr, flush=True)
        shutil.rmtree(run.folder)
        shutil.rmtree(run.scratch)

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
    runs = [run for _, run in finished]
    return {
        "kills": dict(sum((run.kills for run in runs), Counter[str]())),
        "kills_by_kind": dict(sum((Counter({kind: run.kills.total()}) for kind, run in finished), Counter[str]())),
        "total": killed(),
        "runs": len(runs),
        "starts": sum(run.starts for run in runs),
        "left_s": max((run.left_s for run in runs), default=0.0),
        "left_last": max(((run.left_s, kind, run.left_last) for kind, run in finished), default=None),
        "repeated": sum(run.repeated for run in runs if isinstance(run, SavingRun)),
        "retries": sum(run.retries for run in runs if isinstance(run, DeployedRun)),
    }
