"""Compares two runs: their settings, artifacts, circumstances (code and hardware) and results."""

from typing import Any

from artifacts.manifest import Manifest
from artifacts.store.store import Store
from flows.config.recipe_diff import Difference, differences
from flows.lookup.history import RunRecord
from flows.lookup.stages import PARTS
from flows.report.paired import PairedResults
from stages.statistics.estimates import Interval


def settings(a: RunRecord, b: RunRecord) -> list[Difference]:
    """Returns the settings in which the frozen recipes differ."""
    return differences(a.typed_recipe(), b.typed_recipe())


def first_parting(a: RunRecord, b: RunRecord) -> dict[str, Any] | None:
    """Returns the first stage whose artifacts differ: its iteration and name, and both digests; None if there is none.

    Decisions are not compared, because each names its run.
    """
    others = {item.number: item for item in b.iterations}
    for item in a.iterations:
        other = others.get(item.number)
        for stage in PARTS:
            ours, theirs = item.manifests.get(stage), other.manifests.get(stage) if other else None
            if stage != "promote" and ours and theirs and ours.digest != theirs.digest:
                return {"iteration": item.number, "stage": stage, "a": ours.digest, "b": theirs.digest}
    return None


def circumstances(a: RunRecord, b: RunRecord) -> dict[str, dict[str, Any]]:
    """Returns the host, hardware, code and versions that differ, as the last artifact of each run records them."""
    ours, theirs = (manifest.provenance if (manifest := _newest(item)) else {} for item in (a, b))
    names = ("host", "machine", "hardware", "code", "versions")
    return {name: {"a": ours.get(name), "b": theirs.get(name)} for name in names if ours.get(name) != theirs.get(name)}


def paired(a: RunRecord, b: RunRecord, store: Store) -> dict[str, Interval]:
    """Returns the test accuracy of b minus that of a after training, by mode (see `flows.report.paired`).

    Empty if a run has no evaluation after training, or if the runs have different puzzles.
    """
    reports = [report for item in (a, b) if (report := item.tests(store).get("after"))]
    if len(reports) < 2 or len({report.manifest.inputs["puzzles"]["digest"] for report in reports}) > 1:
        return {}
    return PairedResults(*reports).gains()


def _newest(record: RunRecord) -> Manifest | None:
    manifests = [manifest for item in record.iterations for manifest in item.manifests.values()]
    return manifests[-1] if manifests else None
