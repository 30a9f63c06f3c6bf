"""Weights first, the optimizer state beside the next iteration: `python -m tests.benchmarks.saving --old FOLDER`.

Runs `smollm2` on a store of limited speed (`tests/support/limited_store.py`), in turns: this code, this code without a
optimizer state, and an earlier commit in a folder. All use the environment of this command. Measured are

* the wait: the seconds from the last optimizer step to the start of the next `sample`, without those of `evaluate` and
  `promote`. Without an optimizer state it is the time of the weights alone;
* the iteration: from the start of one `sample` to that of the next.

With `--s3` the store is a real S3 server (rclone) behind a proxy of that speed, so files go there in parallel parts.

The first iteration is left out, because no state is saved beside its sample. `--set` changes the recipe on all sides;
with fewer puzzles, an iteration has as little arithmetic as on a faster machine.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.bars import Bar, parser_of, progress, tell
from tests.support.limited_proxy import limited_proxy
from tests.support.servers import rclone_server

HERE = Path(__file__).resolve().parents[2]
RUNNER = HERE / "tests" / "support" / "limited_store.py"
WAIT_OF_WEIGHTS, ITERATION_OF_OLD = 1.15, 0.6
BUCKET = "saving"
_LIMIT_S = 3600.0
_POLL_S = 0.2


def run(
    side: str,
    code: Path,
    options: argparse.Namespace,
    folder: Path,
    settings: Sequence[str],
    s3: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Runs some iterations of a recipe and returns the medians of its waits and iterations, in seconds.

    Args:
        side: Name of the side, for the log.
        code: Folder of the code that runs.
        options: Of the command.
        folder: Empty folder for store, events and log.
        settings: Changes of the recipe.
        s3: Variables that lead to an S3 server of limited speed with the bucket `BUCKET`; None: a folder is the store.
    """
    store = f"s3://{BUCKET}/{folder.name}" if s3 else str(folder / "store")
    mb_per_s = "inf" if s3 else str(options.mb_per_s)
    events, last = folder / "events.jsonl", f"sample-{options.iterations + 1:04d}"
    command = [
        sys.executable, "-P", str(RUNNER), str(events), mb_per_s, "train", "--recipe", options.recipe,
        "--run", "saving", "--store", store,
    ]  # fmt: skip
    for setting in (f"iterations={options.iterations + 1}", "final.puzzles=2", *settings):
        command += ["--set", setting]
    environment = {**os.environ, "PYTHONPATH": str(code), **(s3 or {})}
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + _LIMIT_S
            while not (seen := times(events)).get(("started", last)):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{side}: {(folder / 'log.txt').read_text(errors='replace')[-2000:]}")
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait()
    waits: list[float] = []
    iterations: list[float] = []
    for n in range(2, options.iterations + 1):
        wait_s = seen["finished", f"finetune-{n:04d}"] - seen["last step", f"finetune {n}"]
        waits.append(wait_s + seen["started", f"sample-{n + 1:04d}"] - seen["finished", f"promote-{n:04d}"])
        iterations.append(seen["started", f"sample-{n + 1:04d}"] - seen["started", f"sample-{n:04d}"])
    figures = {"wait_s": statistics.median(waits), "iteration_s": statistics.median(iterations)}
    progress(f"{side}: {figures}")
    return figures


def s3_server(stack: ExitStack, folder: Path, mb_per_s: float) -> dict[str, str]:
    """Starts an S3 server that keeps its objects below a folder, and returns the variables that lead to it."""
    (folder / "objects").mkdir()
    server = stack.enter_context(rclone_server(folder / "objects"))
    server.create_bucket(BUCKET)
    return {**server.environment(), "AWS_ENDPOINT_URL": stack.enter_context(limited_proxy(server.url, mb_per_s * 1e6))}


def times(events: Path) -> dict[tuple[str, str], float]:
    """Returns the time of each event by its kind and its stage; the last one counts."""
    if not events.exists():
        return {}
    whole, _, _ = events.read_text().rpartition("\n")
    lines = (json.loads(line) for line in whole.splitlines())
    return {(line["event"], line["name"]): line["time_s"] for line in lines}


def main() -> None:
    """Measures and prints."""
    parser = parser_of(__doc__)
    parser.add_argument("--old", type=Path, help="folder of an earlier commit to compare with")
    parser.add_argument("--recipe", default="smollm2")
    parser.add_argument("--mb-per-s", type=float, default=200.0, help="speed of the store")
    parser.add_argument("--s3", action="store_true", help="a real S3 server of this speed")
    parser.add_argument("--iterations", type=int, default=3, help="at least 2; the first one does not count")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], dest="settings", help="a change of the recipe")
    parser.add_argument("--scratch", type=Path, help="a folder for the stores; by default the temporary one")
    options = parser.parse_args()
    stateless = ["finetune.carry_state=false"]
    sides: dict[str, tuple[Path, list[str]]] = {"new": (HERE, []), "weights alone": (HERE, stateless)}
    if options.old is not None:
        sides["old"] = (options.old.resolve(), [])
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for number in range(options.rounds):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            code, settings = sides[name]
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.scratch, prefix="saving-")))
                s3 = s3_server(stack, folder, options.mb_per_s) if options.s3 else None
                rounds[name].append(run(name, code, options, folder, [*options.settings, *settings], s3))
    medians = {
        name: {figure: statistics.median(one[figure] for one in measured) for figure in measured[0]}
        for name, measured in rounds.items()
    }
    of_weights = medians["new"]["wait_s"] / medians["weights alone"]["wait_s"]
    bars = [Bar.at_most("wait for the next sample, of that for the weights alone", of_weights, WAIT_OF_WEIGHTS)]
    if "old" in medians:
        of_old = medians["new"]["iteration_s"] / medians["old"]["iteration_s"]
        bars.append(Bar.at_most(f"iteration of {options.recipe}, of the old one's", of_old, ITERATION_OF_OLD))
    report = {
        "mb_per_s": options.mb_per_s,
        "s3": options.s3,
        "settings": options.settings,
        "sides": medians,
        "rounds": rounds,
    }
    tell(report, bars, as_json=options.json)


if __name__ == "__main__":
    main()
