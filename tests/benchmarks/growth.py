"""What grows with the length of a run and with the number of runs: `python -m tests.benchmarks.growth`.

A tiny recipe runs for many iterations. Whenever an iteration ends, the memory (RSS), threads and open files of each
kind of process are read, and the size of Prefect's database. The overhead of an iteration is its wall time less the own
work of its stages (see `tests.benchmarks.orchestration`). Then the commands that read the run are timed, and the same
command that trained it, which finds everything published. Then the run's first iterations are copied under the names
of many runs, and `runs` lists them, from the folder and from an S3 server over it. A short run counts the requests that
an iteration sends to S3.

Figures at an iteration are medians over a twentieth of the run, at least five iterations. Slopes are those of the
second half of the run, where caches are full; `predicted` prolongs them to ten times as many iterations.
"""

import os
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from artifacts.layout import RunLayout, manifest_key
from artifacts.store.store import Store
from flows.lookup.history import read_run
from flows.lookup.stages import PARTS
from tests.benchmarks.orchestration import overheads
from tests.support.bars import Bar, parser_of, progress, tell
from tests.support.fault_proxy import fault_proxy
from tests.support.installed import TINY
from tests.support.processes import DEERSTALKER
from tests.support.servers import moto_server, rclone_server
from tests.support.tiny_runs import SHORTEST

RUN = "growth"
OVERHEAD_BAR, MEMORY_BAR, RESUME_BAR_S, REPORT_BAR_S = 1.2, 1.2, 10.0, 20.0
RUNS_BARS_S = {"folder": 2.0, "S3": 5.0}
ROLES = {
    "flow": "deerstalker train", "prefect": "server_process.py", "engine": "EngineCore",
    "trainer": "worker_group.worker", "launcher": "torch.distributed.run",
}  # fmt: skip
COMMANDS = {
    "show": ("show", RUN), "runs": ("runs",), "report": ("report", RUN), "verify": ("verify",),
    "lineage": ("lineage", RUN), "prune": ("prune", "--keep-last", "5"),
}  # fmt: skip
COPIED = 3
"""Iterations of a copied run."""
COUNTED = (3, 6)
"""Iterations between whose ends the requests to S3 are counted."""


def used_by(processes: Sequence[psutil.Process], word: str) -> dict[str, float]:
    """Returns the memory in MB, the threads and the open files of the processes that have a word in their command."""
    sums = {"mb": 0.0, "threads": 0.0, "files": 0.0}
    for process in processes:
        with suppress(psutil.Error):
            if word in " ".join(process.cmdline()):
                sums["mb"] += process.memory_info().rss / 1e6
                sums["threads"] += process.num_threads()
                sums["files"] += process.num_fds()
    return sums


def watched(store: Path, iterations: int) -> list[dict[str, Any]]:
    """Runs the recipe to its end; returns a row for each iteration, read as it ended."""
    opened, layout = Store.open(str(store)), RunLayout(RUN)
    rows: list[dict[str, Any]] = []
    with subprocess.Popen(train_command(str(store), iterations), stdout=subprocess.DEVNULL) as child:
        flow = psutil.Process(child.pid)
        while child.poll() is None:
            number = len(rows) + 1
            if number <= iterations and opened.exists(manifest_key(layout.iteration(number, PARTS["promote"]))):
                processes = [flow, *flow.children(recursive=True)]
                used = {role: used_by(processes, word) for role, word in ROLES.items()}
                database = (store / ".prefect").glob("prefect.db*")
                size_mb = sum(path.stat().st_size for path in database) / 1e6
                rows.append({"iteration": number, **used, "database_mb": size_mb})
                if number % 100 == 0:
                    progress(f"iteration {number} of {iterations}")
            else:
                time.sleep(0.05)
    if child.returncode:
        raise SystemExit(f"the run ended with status {child.returncode}; its messages stand above")
    return rows


def train_command(store: str, iterations: int) -> list[str]:
    """Returns the command that trains the run, and resumes it."""
    words = [DEERSTALKER, "train", "--quiet", "--json", "--recipe", str(TINY), "--run", RUN, "--store", store]
    return words + [word for one in (f"iterations={iterations}", *SHORTEST) for word in ("--set", one)]


def timed(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> float:
    """Returns the seconds of a command that must succeed."""
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    return time.perf_counter() - started


def many_runs(store: Path, place: Path, count: int) -> dict[str, float]:
    """Returns the seconds of `runs` over a store with copies of the run's first iterations, by where the store is."""
    source, kept = store / RunLayout(RUN).root, {f"{number:04d}" for number in range(COPIED + 1)}

    def later(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(folder).name == "iterations" and name not in kept]

    for number in range(count):
        target = place / RunLayout(f"{RUN}-{number:03d}").root
        shutil.copytree(source, target, copy_function=os.link, ignore=later)
    seconds = {"folder": timed([DEERSTALKER, "runs", "--store", str(place)])}
    with rclone_server(place.parent) as server:
        environment = os.environ | server.environment()
        seconds["S3"] = timed([DEERSTALKER, "runs", "--store", f"s3://{place.name}"], environment)
    return seconds


def s3_requests(scratch: Path) -> dict[str, float]:
    """Returns how many requests an iteration sends to S3, by method."""
    sent, ends, lock = Counter[str](), dict[int, Counter[str]](), threading.Lock()
    decisions = {manifest_key(RunLayout(RUN).iteration(number, PARTS["promote"])): number for number in COUNTED}

    def count(method: str, path: str) -> None:
        with lock:
            sent[method] += 1
            number = decisions.get(re.sub(r"^/[^/]+/|[?].*$", "", path)) if method == "PUT" else None
            if number is not None:
                ends[number] = sent.copy()

    with moto_server() as server, fault_proxy(server.url, count) as proxy:
        server.create_bucket(RUN)
        environment = {"AWS_ENDPOINT_URL": proxy.url, "PREFECT_HOME": str(scratch / "prefect")}
        timed(train_command(f"s3://{RUN}", COUNTED[1]), os.environ | server.environment() | environment)
    first, last = COUNTED
    return {method: (number - ends[first][method]) / (last - first) for method, number in ends[last].items()}


def at(rows: Sequence[dict[str, Any]], iteration: int, *path: str) -> float:
    """Returns the median of a figure over the iterations around one."""
    width = max(2, len(rows) // 40)
    near = [row for row in rows if abs(row["iteration"] - iteration) <= width]
    values: list[Any] = near
    for name in path:
        values = [value[name] for value in values]
    return statistics.median(values)


def measured(iterations: int, runs: int, scratch: Path) -> dict[str, Any]:
    """Everything, in one store."""
    store = scratch / "store"
    rows = watched(store, iterations)
    for row, cost in zip(rows, overheads(read_run(Store.open(str(store)), RUN)), strict=True):
        row.update(cost)
    marks = sorted({mark for mark in (10, 50, 100, 150, 200, 300, 500, 1000, iterations) if mark <= iterations})
    paths = {name: (name,) for name in ("overhead_s", "wall_s", "database_mb")}
    paths |= {f"{role}_{unit}": (role, unit) for role in ROLES for unit in ("mb", "threads", "files")}
    shown = {mark: {name: at(rows, mark, *path) for name, path in paths.items()} for mark in marks}
    half = iterations // 2
    slopes = {
        name: (shown[iterations][name] - at(rows, half, *path)) / (iterations - half)
        for name, path in paths.items()
        if name.endswith("_mb")
    }
    seconds = {name: timed([DEERSTALKER, *words, "--store", str(store)]) for name, words in COMMANDS.items()}
    seconds["resume"] = timed(train_command(str(store), iterations))
    seconds |= {f"runs of {runs}, {place}": value for place, value in many_runs(store, scratch / "many", runs).items()}
    page_mb = (store / RunLayout(RUN).page).stat().st_size / 1e6
    return {
        "at": shown,
        "slopes_an_iteration": slopes,
        "predicted": {name: shown[iterations][name] + 9 * iterations * slope for name, slope in slopes.items()},
        "seconds": seconds,
        "report_mb": page_mb,
        "s3_requests_an_iteration": s3_requests(scratch),
        "load": os.getloadavg()[0],
        "rows": rows,
    }


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws memory, database and overhead over the iterations."""
    from flows.report.pictures.png import blank_figure, finish, to_png

    width = max(2, len(rows) // 40)
    numbers = [row["iteration"] for row in rows]
    curves = {
        "memory (RSS), MB": {role: [row[role]["mb"] for row in rows] for role in ROLES},
        "Prefect's database, MB": {"": [row["database_mb"] for row in rows]},
        f"overhead, s (medians of {2 * width + 1})": {"": [at(rows, number, "overhead_s") for number in numbers]},
    }
    figure = blank_figure(10.8, 3.1)
    panels = figure.subplots(1, len(curves))
    for axes, (title, lines) in zip(panels, curves.items(), strict=True):
        for label, values in lines.items():
            axes.plot(numbers, values, linewidth=1.4, label=label or None)
        axes.set_ylim(bottom=0)
        finish(axes, title, "iteration")
    path.write_bytes(to_png(figure))


def bars(figures: dict[str, Any], runs: int) -> list[Bar]:
    """What was promised, and what was measured."""
    first, last = figures["at"][10], figures["at"][max(figures["at"])]
    early = figures["at"][max(mark for mark in figures["at"] if mark <= 50)]
    seconds = figures["seconds"]
    return [
        Bar.at_most(
            "overhead of the last iteration, of iteration 10", last["overhead_s"] / first["overhead_s"], OVERHEAD_BAR
        ),
        *(
            Bar.at_most(
                f"memory of {role} at the end, of iteration 50", last[f"{role}_mb"] / early[f"{role}_mb"], MEMORY_BAR
            )
            for role in ROLES
        ),
        Bar.at_most("resume of the whole run, s", seconds["resume"], RESUME_BAR_S),
        *(
            Bar.at_most(f"`runs` of {runs} runs, {place}, s", seconds[f"runs of {runs}, {place}"], bar)
            for place, bar in RUNS_BARS_S.items()
        ),
        Bar.at_most("`report`, s", seconds["report"], REPORT_BAR_S),
    ]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--iterations", type=int, default=1000, help="at least 10")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--plot", type=Path, help="write the curves to this PNG")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        figures = measured(options.iterations, options.runs, Path(scratch))
    rows = figures.pop("rows")
    if options.plot:
        plot(rows, options.plot)
    tell(figures, bars(figures, options.runs), as_json=options.json)


if __name__ == "__main__":
    main()
