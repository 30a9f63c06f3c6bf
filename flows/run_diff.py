"""Two runs side by side: what they were told, where they part, and what came of it."""

from typing import Any

import polars as pl

from artifacts.identity import Difference
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.schemas import RESULTS
from artifacts.store import Store
from flows.history import STAGES, RunRecord
from flows.recipe_diff import differences
from flows.recipes import Recipe, validate
from stages.statistics import Interval, estimate_gain


def settings(a: RunRecord, b: RunRecord) -> list[Difference]:
    """Returns the settings in which the frozen recipes of two runs differ."""
    ours, theirs = (validate(Recipe, item.recipe, f"recipe of {item.layout.run}") for item in (a, b))
    return differences(ours, theirs)


def first_parting(a: RunRecord, b: RunRecord) -> dict[str, Any] | None:
    """The first stage whose artifacts have other content, with both digests; None where all that both have agree.

    A decision names its run, so it is not looked at.
    """
    others = {item.number: item for item in b.iterations}
    for item in a.iterations:
        other = others.get(item.number)
        for stage in STAGES:
            pair = [one.manifests.get(stage) for one in (item, other) if one is not None]
            if stage != "promote" and len(pair) == 2 and pair[0] and pair[1] and pair[0].digest != pair[1].digest:
                return {"iteration": item.number, "stage": stage, "a": pair[0].digest, "b": pair[1].digest}
    return None


def circumstances(a: RunRecord, b: RunRecord) -> dict[str, dict[str, Any]]:
    """Code, versions and hardware, as the newest artifact of each run records them, where they differ."""
    ours, theirs = (found.provenance if (found := _newest(item)) else {} for item in (a, b))
    names = ("host", "machine", "hardware", "code", "versions")
    return {name: {"a": ours.get(name), "b": theirs.get(name)} for name in names if ours.get(name) != theirs.get(name)}


def paired(a: RunRecord, b: RunRecord, store: Store) -> dict[str, Interval]:
    """Accuracy of b less that of a, after training, with its 95% interval by mode, puzzle by puzzle of one test split.

    Empty where the runs were not measured on the same puzzles.
    """
    after = [item.evaluations.get("after") for item in (a, b)]
    if not after[0] or not after[1] or after[0].inputs["puzzles"]["digest"] != after[1].inputs["puzzles"]["digest"]:
        return {}
    ours, theirs = (_results(item, store) for item in (a, b))
    gains = {str(mode): estimate_gain(theirs, ours, mode=mode) for mode in ours["mode"].unique(maintain_order=True)}
    return {mode: gain for mode, gain in gains.items() if gain is not None}


def _newest(record: RunRecord) -> Manifest | None:
    manifests: list[Manifest] = [found for item in record.iterations for found in item.manifests.values()]
    return manifests[-1] if manifests else None


def _results(record: RunRecord, store: Store) -> pl.DataFrame:
    after = Artifact(store, record.layout.evaluation("after"), record.evaluations["after"])
    return after.read_table("results.parquet", RESULTS)
