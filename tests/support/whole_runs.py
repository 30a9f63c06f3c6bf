"""Whole runs of `deerstalker train` for benchmarks: each a process of its own, resumed if its store has it."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.store.store import Store
from flows.lookup.checkpoints import published_checkpoint
from tests.support.processes import DEERSTALKER
from tests.support.scaled_recipes import as_toml


def deerstalker(*arguments: str) -> dict[str, Any]:
    """Runs a command with `--json` and returns its document.

    Exits the benchmark if the command fails; its messages stand on stderr.
    """
    command = [DEERSTALKER, *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}; its messages stand above")
    return json.loads(done.stdout)


def train(
    recipe: str,
    run: str,
    store: str,
    settings: Sequence[str],
    profile: str = "cpu",
    profile_settings: Sequence[str] = (),
) -> dict[str, Any]:
    """Runs a recipe with changes; returns the command's document, with the wall time in seconds as `wall_s`.

    `resumed` tells whether an earlier command had begun the run, so that `wall_s` is the time of the rest. Exits the
    benchmark if the run fails; its messages stand on stderr.
    """
    resumed = Store.open(store).exists(RunLayout(run).recipe)
    print(f"{run} ...", file=sys.stderr, flush=True)
    options = ["--recipe", recipe, "--run", run, "--store", store, "--profile", profile]
    options += [word for setting in settings for word in ("--set", setting)]
    options += [word for setting in profile_settings for word in ("--set-profile", setting)]
    started = time.perf_counter()
    document = deerstalker("train", *options)
    return {**document, "wall_s": time.perf_counter() - started, "resumed": resumed}


def figures_of(document: dict[str, Any]) -> dict[str, float]:
    """Returns percentages on the test puzzles before and after a run, and its wall time in seconds.

    A name is `MODE_METRIC_WHEN`, such as `greedy_exact_after`.

    Args:
        document: What `train` returned.
    """
    return {
        f"{mode}_{metric}_{when}": 100 * document["test"][when][mode][metric]["mean"]
        for mode in ("sampled", "greedy")
        for metric in ("accuracy", "exact")
        for when in ("before", "after")
    } | {"wall_s": document["wall_s"]}


def warm_start_of(run: str, store: str) -> Artifact:
    """Returns the warm-started model of a run."""
    opened = Store.open(store, writable=False)
    return Artifact.open(opened, published_checkpoint(f"{run}@0", opened))


def from_warm_start(run: str, store: str) -> list[str]:
    """Returns the settings by which another run begins with the warm-started model of a run."""
    warm = warm_start_of(run, store)
    model = {"source": "folder", "path": f"{warm.store.url}/{warm.key}/{warm.manifest.attempt}"}
    return [f"model={as_toml(model)}", "warm_start=null"]
