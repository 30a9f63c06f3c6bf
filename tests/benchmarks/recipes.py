"""Does what every recipe asks for run? One small iteration of each: `python -m tests.benchmarks.recipes [NAME ...]`.

Each is a whole `deerstalker train`, with vLLM and torchrun, of the recipe as `tests/support/scaled_recipes.py` scales
it down. Recipes that others start from run first, also if they were not named. The figures show that something was
sampled, graded and learned from, not the recipe's merit.
"""

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from artifacts.store.store import Store
from flows.config.recipes import load_recipe, recipe_names
from flows.lookup.history import read_run
from flows.report.metrics import mean_known
from tests.support.bars import Bar, parser_of, progress, tell
from tests.support.processes import DEERSTALKER
from tests.support.scaled_recipes import in_order, scaled_settings, write_sums


def run(name: str, store: str, profile: str) -> dict[str, Any]:
    """One scaled run; where it failed, its last words in place of figures."""
    command = [DEERSTALKER, "train", "--json", "--recipe", name, "--run", name]
    command += ["--store", store, "--profile", profile]
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        write_sums(sums := Path(folder) / "sums.jsonl")
        for setting in scaled_settings(load_recipe(name), str(sums)):
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    outcome = {"recipe": name, "seconds": time.perf_counter() - started, "exit_status": done.returncode}
    if done.returncode:
        return {**outcome, "error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return {**outcome, **figures(name, store)}


def figures(name: str, store: str) -> dict[str, Any]:
    """Means over the iterations, of which a staged recipe has two, and over their optimizer steps.

    A mean is None where nothing gave a signal.
    """
    record = read_run(Store.open(store, writable=False), name)
    iterations = [one for one in record.iterations if one.number]
    steps = [step for one in iterations for step in one.steps]
    return {
        "reward": mean_known(one.facts("grade")["reward/mean"] for one in iterations),
        "iterations": len(iterations),
        "steps": len(steps),
        "policy_loss": mean_known(step["policy_loss"] for step in steps),
        "grad_norm": mean_known(step["grad_norm"] for step in steps),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("recipes", nargs="*", metavar="NAME", help="recipes to run; by default all")
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--store", help="keep the runs here; by default they go with the benchmark")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in in_order(options.recipes or recipe_names()):
            progress(f"{name} ...")
            rows.append(run(name, options.store or scratch, options.profile))
    bars = [Bar.at_most("recipes that failed", sum(bool(row["exit_status"]) for row in rows), 0)]
    tell({"recipes": rows}, bars, as_json=options.json)


if __name__ == "__main__":
    main()
