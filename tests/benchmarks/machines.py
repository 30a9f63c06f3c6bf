"""`quickstart` on this machine and on an imitated one without native bf16: `python -m tests.benchmarks.machines`.

A few iterations under each compute type, side by side: `auto` must choose the quicker one. The older CPU is imitated by
the variables that oneDNN, ATen and MKL read, and by changed answers of torch (`tests/support/machines.py`). Its bf16 is
slow, so each run's warm start is cut to a few steps; seconds of the warm start are those of the steps it still takes.
Runs of a round follow one another, rounds repeat; a stage's time is the median of its times in all iterations and
rounds.

With `--whole` the README's first command also runs to its end on the imitated machine and on this one, both with the
environment installed already.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from artifacts.store.store import Store
from flows.lookup.history import read_run
from tests.support.bars import Bar, add_json_option, tell
from tests.support.machines import older_cpu

STAGES = ("warm_start", "sample", "finetune", "evaluate")
EXPLICIT = {
    "bf16": ["trainer.compute_dtype=bf16", "engine.dtype=bfloat16"],
    "fp32": ["trainer.compute_dtype=fp32", "engine.dtype=float32"],
}
MACHINES = {"native": None, "AVX2, imitated": "AVX2"}
TOLERANCE = 1.05
LEAST_S = 0.5
"""Stages that take less on median are not judged: their time is that of processes and files."""
WHOLE_LIMITS_S = {"native": 300.0, "AVX2, imitated": 600.0}


def train(folder: Path, level: str | None, settings: list[str]) -> tuple[float, str, dict[str, list[float]]]:
    """Runs `deerstalker train`; returns its seconds, the line on compute types, and seconds by stage."""
    command = [str(Path(sys.executable).with_name("deerstalker")), "train", "--store", str(folder), *settings]
    environment = None if level is None else older_cpu(level)
    started = time.perf_counter()
    done = subprocess.run(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, check=False
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    choice = next(line for line in done.stderr.splitlines() if line.startswith("trainer computes in"))
    record = read_run(Store.open(str(folder), writable=False), "quickstart")
    seconds_of: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for iteration in record.iterations:
        for stage, value in iteration.seconds().items():
            if stage in seconds_of and (iteration.number or stage == "evaluate"):
                seconds_of[stage].append(value)
    warm = Store.open(str(folder), writable=False).read_bytes("runs/quickstart/sft/0000/checkpoint/manifest.json")
    seconds_of["warm_start"].append(json.loads(warm)["provenance"]["seconds"])
    return seconds, choice, seconds_of


def compare(level: str | None, iterations: int, warm_steps: int, rounds: int) -> dict[str, Any]:
    """Seconds by stage under `auto` and under each explicit choice, medians over iterations and rounds."""
    variants: dict[str, list[str]] = {"auto": [], **EXPLICIT}
    seconds: dict[str, dict[str, list[float]]] = {name: {stage: [] for stage in STAGES} for name in variants}
    choice = ""
    for number in range(rounds):
        for name, changes in variants.items():
            print(f"{level or 'native'}, round {number + 1}: {name} ...", file=sys.stderr, flush=True)
            settings = ["--set", f"iterations={iterations}", "--set", f"warm_start.steps={warm_steps}"]
            settings += [
                "--set",
                "warm_start.epochs=1",
                "--set",
                "warm_start.warmup_share=0.1",
                "--set",
                "final.puzzles=16",
            ]
            for change in changes:
                settings += ["--set-profile", change]
            with tempfile.TemporaryDirectory() as folder:
                _, told, stage_seconds = train(Path(folder), level, settings)
            choice = told if name == "auto" else choice
            for stage in STAGES:
                seconds[name][stage] += stage_seconds[stage]
    return {
        "choice": choice,
        "seconds": {
            name: {stage: median(values) for stage, values in stages.items()} for name, stages in seconds.items()
        },
    }


def bars_of(machine: str, report: dict[str, Any]) -> list[Bar]:
    """A bar for each stage: its time under `auto` over that under the better explicit choice."""
    auto, explicit = report["seconds"]["auto"], [report["seconds"][name] for name in EXPLICIT]
    bars: list[Bar] = []
    for stage in STAGES:
        better = min(other[stage] for other in explicit)
        if better >= LEAST_S:
            ratio = auto[stage] / better
            name = f"{machine}: {stage} under auto / under the better explicit choice"
            bars.append(Bar.at_most(name, ratio, TOLERANCE))
    return bars


def show(reports: dict[str, dict[str, Any]], whole: dict[str, float]) -> None:
    """Prints the tables."""
    console = Console()
    for machine, report in reports.items():
        table = Table(title=f"{machine}: {report['choice']}; seconds a stage")
        for head in ("compute types", *STAGES):
            table.add_column(head, justify="left" if head == "compute types" else "right")
        for name, stages in report["seconds"].items():
            table.add_row(name, *(f"{stages[stage]:.2f}" for stage in STAGES))
        console.print(table)
    for machine, seconds in whole.items():
        console.print(f"{machine}: `deerstalker train`, whole: {seconds:.0f} s")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_json_option(parser)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--warm-steps", type=int, default=6, help="optimizer steps of each run's warm start")
    parser.add_argument("--whole", action="store_true", help="also run the README's command to its end on both")
    options = parser.parse_args()
    reports = {
        machine: compare(level, options.iterations, options.warm_steps, options.rounds)
        for machine, level in MACHINES.items()
    }
    bars = [bar for machine, report in reports.items() for bar in bars_of(machine, report)]
    whole: dict[str, float] = {}
    for machine, level in MACHINES.items() if options.whole else ():
        print(f"{machine}: whole ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            whole[machine] = train(Path(folder), level, [])[0]
        limit = WHOLE_LIMITS_S[machine]
        name = f"{machine}: the whole command, seconds"
        bars.append(Bar.at_most(name, whole[machine], limit))
    tell({"machines": reports, "whole_s": whole}, bars, lambda: show(reports, whole), as_json=options.json)


if __name__ == "__main__":
    main()
