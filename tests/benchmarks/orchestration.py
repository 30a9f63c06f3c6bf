"""What orchestration costs and how fast it ends: `python -m tests.benchmarks.orchestration`.

Four measurements of the same code, in one go:

* **overhead**: wall time of an iteration minus its stages' own work. An iteration lasts from one decision to the next,
  manifest by manifest. Own work is the sum of `provenance.seconds` of the artifacts made between them (its six, and in
  the first iteration the evaluation on the test split): from the moment in which a stage asks the store for its
  artifact to the writing of the manifest. So reading inputs, waiting for engine or trainer and writing files are own
  work. The rest is overhead: Prefect's task runs and pages, pictures, the live view, trackers, and the work of
  a stage after its manifest.
* **re-entry**: the same command again, everything published. Seconds of each task run that ends `Cached`, as Prefect
  recorded them, those of the flow run, and those of the whole command with its imports and its server.
* **cancel**: a run by `deerstalker up`'s worker, set to `Cancelling` as the button of the page and `prefect flow-run
  cancel` do; seconds until no process is left that was not there before the run, and until Prefect says `Cancelled`.
* **kill**: the same with SIGKILL to the flow's process, and until Prefect says `Crashed`.

Cancel and kill strike once in `sample` and once in `finetune`, in a tiny run whose sampling and training are made long.
On a machine that does other things the wall times grow with its load, which is printed.
"""

import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from artifacts.store.store import Store
from flows.lookup.history import RunRecord, read_run
from tests.support.bars import Bar, parser_of, tell
from tests.support.installed import SLOW, TINY, Installation
from tests.support.processes import DEERSTALKER

OVERHEAD_BAR, CACHED_BAR_S, CANCEL_BAR_S, KILL_BAR_S = 0.05, 1.0, 5.0, 10.0
LONG = ["puzzles.train=512", "sample.puzzles_per_iteration=512", "finetune.epochs=2000"]
PHASES = ("sample", "finetune")


def train(recipe: str, iterations: int, store: Path) -> float:
    """Runs the recipe to the end, as a user would; returns the command's seconds."""
    command = [DEERSTALKER, "train", "--json", "--recipe", recipe]
    command += ["--run", "measured", "--store", str(store), "--set", f"iterations={iterations}"]
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def overheads(record: RunRecord) -> list[dict[str, float]]:
    """Wall time and own work of each iteration, in seconds."""
    ends = {item.number: item.manifests["promote"].made_at for item in record.iterations}
    rows: list[dict[str, float]] = []
    for item in record.iterations:
        if item.number:
            start, end = ends[item.number - 1], ends[item.number]
            wall_s = (end - start).total_seconds()
            looks = [made for made in record.evaluations.values() if start < made.made_at < end]
            own_s = sum(item.seconds().values()) + sum(made.provenance["seconds"] for made in looks)
            rows.append({"wall_s": wall_s, "own_s": own_s, "overhead_s": wall_s - own_s, "share": 1 - own_s / wall_s})
    return rows


def reentry(home: Path) -> dict[str, float]:
    """Seconds of the newest flow run and of its tasks, all of which were found published."""
    with sqlite3.connect(home / "prefect.db") as database:
        flow, seconds = database.execute(
            "select id, (julianday(end_time) - julianday(start_time)) * 86400 from flow_run order by start_time desc"
        ).fetchone()
        tasks = database.execute(
            "select state_name, (julianday(end_time) - julianday(start_time)) * 86400 from task_run"
            " where flow_run_id = ?",
            (flow,),
        ).fetchall()
    others = [state for state, _ in tasks if state != "Cached"]
    assert tasks and not others, f"not everything was Cached: {others}"
    durations = [duration for _, duration in tasks]
    return {
        "stages": len(tasks), "flow_s": seconds, "median_s": statistics.median(durations), "worst_s": max(durations),
    }  # fmt: skip


@contextmanager
def installed(folder: Path) -> Iterator[Installation]:
    """What `deerstalker up` starts, ended behind the block."""
    folder.mkdir()
    installation = Installation(folder)
    installation.up("--port", "0")
    try:
        yield installation
    finally:
        installation.down()


def ends(place: Installation, phase: str) -> Iterator[dict[str, Any]]:
    """Cancels a run in a phase, retries it, and kills it in the same phase."""
    idle = set(place.processes())
    shutil.copy(SLOW, place.folder / "profile.toml")
    overrides = LONG if phase == "sample" else [*LONG[2:]]
    request = {
        "run": phase, "recipe": str(TINY), "profile": str(place.folder / "profile.toml"),
        "overrides": overrides,
    }  # fmt: skip
    run = place.deploy_run("train/quickstart", request)
    for attempt, (what, bar_s, state) in enumerate(
        (("cancel", CANCEL_BAR_S, "Cancelled"), ("kill", KILL_BAR_S, "Crashed")), 1
    ):
        place.wait(lambda attempt=attempt: place.tasks(run, attempt).get(f"{phase}-0001") == "Running")
        time.sleep(3)  # into the middle of it: engine or trainer are at work
        assert place.tasks(run, attempt)[f"{phase}-0001"] == "Running", "over already; make it longer"
        started = time.perf_counter()
        if what == "cancel":
            place.cancel(run)
        else:
            (flow,) = place.flow_processes()
            os.kill(flow, signal.SIGKILL)
        place.wait(lambda: set(place.processes()) <= idle, 120, 0.02)
        gone_s = time.perf_counter() - started
        place.wait(lambda state=state: place.state(run) == state, 120)
        told_s = time.perf_counter() - started
        yield {"what": what, "phase": phase, "gone_s": gone_s, "told_s": told_s, "bar_s": bar_s}
        if what == "cancel":
            place.prefect("flow-run", "retry", run)


def measured(recipe: str, iterations: int, folder: Path) -> dict[str, Any]:
    """All four, side by side."""
    first_s = train(recipe, iterations, folder / "store")
    rows = overheads(read_run(Store.open(str(folder / "store")), "measured"))
    again_s = train(recipe, iterations, folder / "store")
    measurement: dict[str, Any] = {
        "recipe": recipe,
        "iterations": rows,
        "first_s": first_s,
        "overhead_s": statistics.median(row["overhead_s"] for row in rows),
        "overhead_share": statistics.median(row["share"] for row in rows),
        "overhead_share_of_all": 1 - sum(row["own_s"] for row in rows) / sum(row["wall_s"] for row in rows),
        "reentry": {**reentry(folder / "store" / ".prefect"), "command_s": again_s},
    }
    with installed(folder / "deployed") as place:
        measurement["ends"] = [end for phase in PHASES for end in ends(place, phase)]
    return {**measurement, "load": os.getloadavg()[0]}


def bars(figures: dict[str, Any]) -> list[Bar]:
    """What was promised, and what was measured."""
    return [
        Bar.at_most("overhead of an iteration, share", figures["overhead_share"], OVERHEAD_BAR),
        Bar.at_most("slowest cached stage, s", figures["reentry"]["worst_s"], CACHED_BAR_S),
        *(Bar.at_most(f"{one['what']} in {one['phase']}, s", one["gone_s"], one["bar_s"]) for one in figures["ends"]),
    ]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--recipe", default="answers_only", help="quickstart, tiny (that of the tests), or a TOML file")
    parser.add_argument("--iterations", type=int, default=8)
    options = parser.parse_args()
    recipe = str(TINY) if options.recipe == "tiny" else options.recipe
    with tempfile.TemporaryDirectory() as scratch:
        measurement = measured(recipe, options.iterations, Path(scratch))
    tell(measurement, bars(measurement), as_json=options.json)


if __name__ == "__main__":
    main()
