"""Time from a command to its first completion: `python -m tests.benchmarks.starting --before FOLDER`.

Each recipe starts in a new store (`first`), and again in the same store with another run name (`second`), so that
puzzles and model are there and caches are warm. The same two starts of an older commit (`--before`, its folder) are
made in turns; `NAME=OLD` is a recipe that has another name there. A command is interrupted as soon as its
first group of completions is stored. The ratios are those of the medians: a first start over a first start before, and
a second start over a first start before.

The timeline has the seconds from the command to the run's opening, to the end of each stage, and to the first
completion. CPU time is that of all processes of a command up to there: it changes little with other work on the
machine.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.bars import Bar, parser_of, progress, tell

HERE = Path(__file__).parents[2]
RECIPES = ("answers_only=quickstart", "smollm2")
FIRST_BAR, SECOND_BAR = 0.7, 0.5
_STAGE = re.compile(r"^(\S+) +(?:[0-9.]+ s|cached)$")
_LIMIT_S = 1200.0


def cpu_times(mark: str, known: dict[int, float]) -> None:
    """Notes the CPU time in seconds of each process whose environment has a mark; an ended one keeps its last."""
    ticks = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if int(entry.name) in known or mark.encode() in (entry / "environ").read_bytes():
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    known[int(entry.name)] = (int(fields[11]) + int(fields[12])) / ticks


def start(tree: Path, recipe: str, run: str, store: Path) -> dict[str, Any]:
    """Starts a run with the code of a checkout, and interrupts it after its first completion; returns its timeline."""
    temporary = store.with_name(f"{store.name}-{run}")
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tree), "TMPDIR": str(temporary)}
    program = [sys.executable, "-P", "-c", "from flows.cli.app import main; main()"]
    options = ["train", "--recipe", recipe, "--run", run, "--store", str(store), "--json"]
    started = time.monotonic()
    child = subprocess.Popen(
        [*program, *options], cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    timeline: dict[str, float] = {}
    lines: list[str] = []

    def read() -> None:
        for line in child.stderr or ():
            lines.append(line)
            if line.startswith(f"run {run}:"):
                timeline["opened"] = time.monotonic() - started
            elif match := _STAGE.match(line.strip()):
                timeline[match[1]] = time.monotonic() - started

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    cpu: dict[int, float] = {}
    groups = f"runs/{run}/iterations/0000/report/**/*.parquet"
    while not any(store.glob(groups)):
        if child.poll() is not None or time.monotonic() - started > _LIMIT_S:
            child.kill()
            sys.exit(f"{recipe} has no completion:\n{''.join(lines)}")
        cpu_times(str(temporary), cpu)
        time.sleep(0.1)
    timeline["first completion"] = time.monotonic() - started
    while child.poll() is None:  # 12c72f1 loses a signal now and then
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(20.0)
    reader.join()
    return {"seconds": timeline["first completion"], "cpu_s": sum(cpu.values()), "timeline": timeline}


def measured(recipe: str, before: Path, rounds: int) -> dict[str, Any]:
    """Returns the starts of one recipe, of both checkouts in turns."""
    figures: dict[str, Any] = {side: {"first": [], "second": []} for side in ("before", "now")}
    name, _, old_name = recipe.partition("=")
    for _ in range(rounds):
        for side, tree, named in (("before", before, old_name or name), ("now", HERE, name)):
            with tempfile.TemporaryDirectory(prefix="starting-") as folder:
                for number in ("first", "second"):
                    made = start(tree, named, number, Path(folder) / "store")
                    figures[side][number].append(made)
                    progress(f"{named} {side} {number}: {json.dumps(made)}")
    for figure in ("seconds", "cpu_s"):
        old = median(made[figure] for made in figures["before"]["first"])
        for number in ("first", "second"):
            figures[f"{number}_{figure}_ratio"] = median(made[figure] for made in figures["now"][number]) / old
    return figures


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--rounds", type=int, default=2, help="starts of each kind")
    parser.add_argument("--before", type=Path, required=True, metavar="FOLDER", help="a checkout of an older commit")
    options = parser.parse_args()
    recipes = {recipe: measured(recipe, options.before.resolve(), options.rounds) for recipe in options.recipes}
    bars: list[Bar] = []
    for recipe, figures in recipes.items():
        for number, bar in (("first", FIRST_BAR), ("second", SECOND_BAR)):
            what = f"{recipe}: {number} start to its first completion, over a first start before"
            bars.append(Bar.at_most(what, figures[f"{number}_seconds_ratio"], bar))
    document = {"recipes": recipes}
    tell(document, bars, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
