"""A made run whose stored facts say that reward rises while held-out accuracy falls."""

import json

from artifacts.layout import MANIFEST_NAME, RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Grades, Report
from artifacts.store.store import Store
from tests.support.made_run import make_run


def make_alarm_run(store: Store) -> RunLayout:
    """Publishes a run of four iterations; after the last, the alarm of its recipe is certain."""
    layout = make_run(store, run="diverging", iterations=4)
    recipe = json.loads(store.read_bytes(layout.recipe))
    recipe["alarm"] = {"window": 4, "standard_errors": 1.0}
    store.write_bytes(layout.recipe, json.dumps(recipe).encode())
    for number in range(1, 5):
        accuracy = {"mean": 1.0 - 0.1 * number, "low": 0.0, "high": 1.0}
        report = Artifact.at(store, layout.iteration(number, "report"), Report)
        sampled = {**report.manifest.facts["sampled"], "accuracy": accuracy}
        _set_facts(store, report, sampled=sampled)
        grades = Artifact.at(store, layout.iteration(number, "grades"), Grades)
        _set_facts(store, grades, **{"reward/mean": 0.02 * number})
    return layout


def _set_facts(store: Store, artifact: Artifact, **facts: object) -> None:
    manifest = artifact.manifest.model_copy(update={"facts": {**artifact.manifest.facts, **facts}})
    store.write_bytes(f"{artifact.key}/{MANIFEST_NAME}", manifest.to_bytes())
